"""The discrete-event simulation of ranks, steps and requests."""
