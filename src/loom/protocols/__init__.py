"""One protocol a file, its contract in the docstring."""
