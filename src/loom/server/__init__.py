"""Loom for programs that are not written in Python: servers, and the hosts that start them."""
