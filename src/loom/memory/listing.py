"""Reads all records that match a filter, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from loom.core.filter import And, Eq, Filter
from loom.core.record import Episode, Fact, Record
from loom.core.scope import Scope
from loom.memory.candidates import is_candidate
from loom.protocols.memory_store import MemoryStore

PAGE = 500
FILE = "file:"
"""Name prefix of blocks that are files of the memory tool; they are not shown in prompts."""


async def every(store: MemoryStore, scope: Scope, where: Filter | None = None) -> AsyncGenerator[Record]:
    """All records that match, ordered by id."""
    after: str | None = None
    while page := await store.list(scope, where=where, after=after, limit=PAGE):
        for record in page:
            yield record
        after = page[-1].id


async def every_fact(store: MemoryStore, scope: Scope, *filters: Filter) -> list[Fact]:
    """All facts that match, including retired ones."""
    found = every(store, scope.for_user(), And(Eq("kind", "fact"), *filters))
    return [record async for record in found if isinstance(record, Fact)]


async def counts(store: MemoryStore, scope: Scope) -> dict[str, int]:
    """Number of records: episodes by layer, archived episodes, facts, unconfirmed instructions, blocks."""
    found = {"L1": 0, "L2": 0, "L3": 0, "L4": 0, "archived": 0, "facts": 0, "unconfirmed": 0, "blocks": 0}
    async for record in every(store, scope):
        if isinstance(record, Episode):
            found["archived" if record.archived_at else record.layer.label] += 1
        elif isinstance(record, Fact):
            found["unconfirmed" if is_candidate(record) else "facts"] += 1
        else:
            found["blocks"] += 1
    return found
