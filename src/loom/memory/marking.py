"""Marking: how important records are, as somebody or a model says."""

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
    """Records with another importance, and what speaks for each of them now; those that are not there are left out.

    Unless it `may_fall`, what is more important already stays so.
    """
    found: dict[str, Episode] = {}
    for id, value in importance.items():
        record = await store.get(user, id)
        if not isinstance(record, Episode):
            continue
        for one in (record, await successor(store, user, record)):
            if one.importance < value or (may_fall and one.importance != value):
                found[one.id] = replace(one, importance=value)
    return list(found.values())
