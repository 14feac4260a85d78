"""Vectors in Chroma."""

from loom.stores.chroma.vectors import ChromaVectorStore

__all__ = ["ChromaVectorStore"]
