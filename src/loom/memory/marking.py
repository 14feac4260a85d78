"""Sets the importance of records, as a caller or a model rates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loom.core.record import Episode
from loom.core.scope import Scope
from loom.memory.accesses import successor
from loom.memory.neighbours import Store


async def with_importance(
    store: Store, user: Scope, importance: Mapping[str, float], *, may_fall: bool = False
) -> list[Episode]:
    """The records, and their successors, whose importance changes; ids that do not exist are ignored.

    Unless `may_fall`, importance only rises.
    """
    found: dict[str, Episode] = {}
    for id, value in importance.items():
        record = await store.get(user, id)
        if not isinstance(record, Episode):
            continue
        for episode in (record, await successor(store, user, record)):
            if episode.importance < value or (may_fall and episode.importance != value):
                found[episode.id] = replace(episode, importance=value)
    return list(found.values())
