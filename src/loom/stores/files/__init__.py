"""Checkpoints in a folder of files."""

from loom.stores.files.checkpoints import FileCheckpointStore

__all__ = ["FileCheckpointStore"]
