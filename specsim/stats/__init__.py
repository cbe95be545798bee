"""Warm-up and intervals."""
