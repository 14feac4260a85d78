"""Vectors in Qdrant."""

from loom.stores.qdrant.store import QdrantVectorStore

__all__ = ["QdrantVectorStore"]
