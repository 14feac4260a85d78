"""Tools for the source tree."""
