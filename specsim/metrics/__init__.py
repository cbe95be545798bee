"""What is measured, by definition."""
