"""specsim: a discrete-event serving simulator and scheduler lab for speculative decoding."""

__version__ = "0.1.0"
