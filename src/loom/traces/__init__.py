"""Recorded requests of any program, read back as blocks: four wire formats and the logs around them."""
