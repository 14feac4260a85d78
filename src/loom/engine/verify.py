"""Comparing the indexes of a store with its records, part by part, and repairing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loom.protocols.memory_store import MemoryStore
from loom.protocols.whole_store import HasParts
from loom.stores.index_difference import IndexDifference

NOTHING = "nothing to verify: it keeps no index beside its records that could differ from them"


@runtime_checkable
class Verifies(Protocol):
    """A store that can compare an index with what it indexes."""

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """The differences between index and store; with `repair` they are removed."""
        ...


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for one part of a store; `difference` is None where there is nothing to compare."""

    part: str
    store: str
    difference: IndexDifference | None

    @property
    def is_right(self) -> bool:
        """Whether both are the same now."""
        found = self.difference
        return found is None or found.is_equal or (found.is_repaired and not found.problems)


async def verify_store(store: MemoryStore, *, repair: bool = False, part: str = "") -> tuple[Verified, ...]:
    """The report of every part of a store, lower parts first.

    So an index is compared with a truth that was put right already.
    """
    found: list[Verified] = []
    for name, below in store.parts.items() if isinstance(store, HasParts) else ():
        found += await verify_store(below, repair=repair, part=f"{part}.{name}" if part else name)
    verifies = isinstance(store, Verifies)
    if verifies or not found:
        difference = await store.verify(repair=repair) if verifies else None
        found.append(Verified(part or "store", type(store).__name__, difference))
    return tuple(found)
