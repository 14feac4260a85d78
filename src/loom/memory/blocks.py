"""Writes working blocks: unconditionally, or only over the version that the caller read."""

from __future__ import annotations

from loom.core.clock import Clock
from loom.core.record import Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.memory.locks import Locks
from loom.protocols.memory_store import MemoryStore


class BlockWriter:
    """Writes the working blocks of users."""

    def __init__(self, store: MemoryStore, *, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._locks = Locks()  # so that only writers in other processes can cause a conflict

    async def write(
        self, scope: Scope, name: str, text: str, *, provenance: Provenance, version: int | None = None
    ) -> WorkingBlock:
        """Replace a block; with `version`, only if that is its current version, where 0 means that it must be new.

        An unconditional write is retried without a bound: each conflict means that another writer made progress.

        Raises:
            StoreConflict: the block has another version; `current` is the block as it is now.
        """
        if version is not None and version < 0:
            raise UsageError(f"version={version} is not a version of a block; give the one you read, 0 for a new block")
        async with self._locks.of(scope):
            while True:
                current = await self._current(scope, name)
                held = current.version if current else 0
                if version is not None and version != held:
                    raise _conflict(name, version, current)
                block = WorkingBlock(
                    name=name, text=text, updated_at=self._clock.now(), provenance=provenance, version=held + 1
                )
                try:
                    await self._store.put(scope, block)
                except StoreConflict:
                    continue
                return block

    async def _current(self, scope: Scope, name: str) -> WorkingBlock | None:
        found = await self._store.get(scope, f"block:{name}")
        return found if isinstance(found, WorkingBlock) else None


def _conflict(name: str, version: int, current: WorkingBlock | None) -> StoreConflict:
    if current is None:
        state = "the block does not exist; create it with version=0"
    else:
        state = (
            f"it has version {current.version} now, with the text {_short(current.text)!r}; "
            f"change that text, and write it with version={current.version}"
        )
    return StoreConflict(f"block {name!r} was to follow version {version}, but {state}", current=current)


def _short(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
