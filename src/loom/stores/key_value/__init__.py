"""Checkpoints in anything that keeps values by key: a bucket, a key-value server, a table of blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.key_value.checkpoints import KeyValueCheckpointStore

__all__ = ["KeyValueCheckpointStore"]

__getattr__, __dir__ = door(__name__, {"KeyValueCheckpointStore": "loom.stores.key_value.checkpoints"})
