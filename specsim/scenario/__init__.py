"""Scenarios: YAML to typed, frozen models to objects."""
