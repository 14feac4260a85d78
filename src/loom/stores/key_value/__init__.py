"""Checkpoints in anything that keeps values by key: a bucket, a key-value server, a table of blobs."""

from loom.stores.key_value.checkpoints import KeyValueCheckpointStore

__all__ = ["KeyValueCheckpointStore"]
