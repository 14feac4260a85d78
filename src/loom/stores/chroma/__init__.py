"""Vectors in Chroma; needs the extra `chroma`."""

from loom.stores.chroma.store import ChromaVectorStore

__all__ = ["ChromaVectorStore"]
