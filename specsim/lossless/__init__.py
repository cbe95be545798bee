"""Whether a scheduler leaves the target distribution alone."""
