"""Recorded requests of any program, read as prompts: four wire formats, the logs around them, and usage."""
