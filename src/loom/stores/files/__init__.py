"""Checkpoints in a folder of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.files.checkpoints import FileCheckpointStore

__all__ = ["FileCheckpointStore"]

__getattr__, __dir__ = door(__name__, {"FileCheckpointStore": "loom.stores.files.checkpoints"})
