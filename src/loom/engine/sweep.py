"""Sweeping a store: no bytes of what was forgotten stay in its files."""

from __future__ import annotations

from loom.engine.places import Opening, check_is_there, places_of, store_at
from loom.protocols.memory_store import MemoryStore, Scrubs, Sweeps

_POSTGRES = ("postgres", "postgresql")


async def sweep_store(where: str, *, schema: str | None = None, owner_role: str | None = None) -> tuple[str, ...]:
    """Leave no bytes of what was deleted at any place of a store; returns what is pending, in words.

    `schema` and `owner_role` are those of Postgres, whose URL names an administrator here.
    """
    check_is_there(where)
    pending: list[str] = []
    # An index of vectors beside the truth clears what it forgets by itself.
    for place in dict.fromkeys(place for part, place in places_of(where).items() if part != "vectors"):
        if place.partition(":")[0] in _POSTGRES:
            pending += await _schema(place, schema, owner_role)
        else:
            pending += await _files(place)
    return tuple(pending)


async def _schema(place: str, schema: str | None, owner_role: str | None) -> tuple[str, ...]:
    from loom.stores.postgres import sweep_schema  # noqa: PLC0415 - needs a driver

    given = {"schema": schema, "owner_role": owner_role}
    return await sweep_schema(place, **{name: value for name, value in given.items() if value is not None})


async def _files(place: str) -> tuple[str, ...]:
    store: MemoryStore = store_at(place, Opening())
    try:
        if isinstance(store, Sweeps):
            return await store.sweep()
        return await store.scrub() if isinstance(store, Scrubs) else ()
    finally:
        await store.aclose()
