"""Extracts facts from episodes: by rules, or with a model."""
