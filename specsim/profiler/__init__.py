"""Timing decode-verify forwards on this machine, or the steps of a running server."""
