"""Doors to configuration."""
