"""Who comes when, with what."""
