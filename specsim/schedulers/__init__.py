"""Which drafts a step verifies."""
