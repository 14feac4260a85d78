"""Vectors in Qdrant."""

from loom.stores.qdrant.vectors import QdrantVectorStore

__all__ = ["QdrantVectorStore"]
