"""Vectors in Chroma; needs the extra `chroma`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.chroma.store import ChromaVectorStore

__all__ = ["ChromaVectorStore"]

__getattr__, __dir__ = door(__name__, {"ChromaVectorStore": "loom.stores.chroma.store"})
