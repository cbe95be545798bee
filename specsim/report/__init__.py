"""Tables, figures and pages from stored runs."""
