"""The six-line door."""
