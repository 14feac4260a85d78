"""Writing working blocks: blindly, or only over the version that the caller saw."""

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
        self._locks = Locks()  # writers of this object take turns, so that only those of others come in between

    async def write(
        self, scope: Scope, name: str, text: str, *, provenance: Provenance, version: int | None = None
    ) -> WorkingBlock:
        """Write a block over whatever stands there; or over `version` alone, where 0 means that there is none yet.

        A blind write is tried again as often as another one comes first: each of those got on, so it ends.

        Raises:
            StoreConflict: the block has another version than the one given; `current` is the block as it stands.
        """
        if version is not None and version < 0:
            raise UsageError(f"version={version} is not a version of a block; give the one you read, 0 for a new block")
        async with self._locks.of(scope):
            while True:
                current = await self._current(scope, name)
                held = current.version if current else 0
                if version is not None and version != held:
                    raise _moved(name, version, current)
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


def _moved(name: str, version: int, current: WorkingBlock | None) -> StoreConflict:
    if current is None:
        stands = "there is no such block; write it with version=0 to begin it"
    else:
        stands = (
            f"it has version {current.version} now, with the text {_short(current.text)!r}; "
            f"change that text, and write it with version={current.version}"
        )
    return StoreConflict(f"block {name!r} was to follow version {version}, but {stands}", current=current)


def _short(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
