"""How many drafts are accepted, and how confident the drafter is."""
