"""A memory store in the process's own memory."""

from loom.stores.inmemory.store import InMemoryStore

__all__ = ["InMemoryStore"]
