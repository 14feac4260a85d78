"""The embedder of a memory: the one that was named, or else the one that its store was made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loom.errors import EmbedderMismatch
from loom.protocols.embedder import Embedder
from loom.protocols.memory_store import KeepsVectors, MemoryStore
from loom.protocols.whole_store import WholeStore

Adopt: TypeAlias = Callable[[str], Embedder | None]
"""Returns the embedder with an identity, if it is installed and runs on this machine."""


class EmbedderBinding:
    """The embedder of a store. If none was named, the store's own embedder is adopted, if this machine has it."""

    def __init__(
        self, store: MemoryStore, embedder: Embedder | None, *, note: str = "", adopt: Adopt | None = None
    ) -> None:
        self.embedder = embedder
        self.note = note or (f"embedding with {embedder.identity}" if embedder else "no embedder")
        """Which embedder it is, and why."""
        self._store, self._find = store, adopt

    async def bind(self) -> Embedder:
        """Bind the store to the embedder, and return it.

        Raises:
            EmbedderMismatch: the store holds vectors of another embedder.
        """
        assert self.embedder is not None
        assert isinstance(self._store, KeepsVectors)
        try:
            await self._store.bind(self.embedder.identity, self.embedder.dimension)
        except EmbedderMismatch as error:
            if not self._adopt(error.stored):
                raise
            await self._store.bind(self.embedder.identity, self.embedder.dimension)
        return self.embedder

    async def adopt_stored(self) -> None:
        """Adopt the embedder that the store was made with, without binding a store that has none yet."""
        bound = await self._store.bound() if isinstance(self._store, WholeStore) else None
        if bound is not None and self.embedder is not None and bound[0] != self.embedder.identity:
            self._adopt(bound[0])

    def _adopt(self, identity: str) -> bool:
        other = self._find(identity) if self._find else None
        if other is not None:
            self.embedder = other
            self.note = f"embedding with {other.identity}, because this store was made with it"
        return other is not None
