"""Preparing stores for their first use: schemas and roles in a database, files, folders."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from loom.engine.doctor import labels_of
from loom.engine.places import Opening, places_of, store_at
from loom.engine.vector_places import index_at

_POSTGRES = ("postgres", "postgresql")


class Made(NamedTuple):
    """The work done for one part of a store, in words."""

    part: str
    done: str


async def init_store(where: str, **roles: Any) -> tuple[Made, ...]:
    """Make what is needed at `where`, and at every place it is made of; what is there already stays.

    `roles` are the options of `init_schema`, for Postgres, whose URL names an administrator here.
    """
    return tuple([Made(part, await _made(part, place, roles)) for part, place in places_of(where).items()])


async def _made(part: str, place: str, roles: dict[str, Any]) -> str:
    if place.partition(":")[0] in _POSTGRES:
        return await _schema(place, roles)
    if part == "vectors":
        return await _index(place)
    store = store_at(place, Opening())
    try:
        await store.users(limit=1)  # a file is made, and a server is looked at, at the first use
        labels = await labels_of(store)
    finally:
        await store.aclose()
    return "; ".join(["ready", *(labels[label] for label in ("server", "durability", "index") if label in labels)])


async def _schema(place: str, roles: dict[str, Any]) -> str:
    from loom.stores.postgres import init_schema  # noqa: PLC0415 - needs a driver
    from loom.stores.postgres.schema import APP_ROLE, OWNER_ROLE, SCHEMA, VERSION  # noqa: PLC0415

    given = {name: value for name, value in roles.items() if value is not None}
    made = await init_schema(place, **given)
    notes = "".join(f"; {note}" for note in made.notes)
    schema, app, owner = (
        given.get(name, usual)
        for name, usual in (("schema", SCHEMA), ("app_role", APP_ROLE), ("owner_role", OWNER_ROLE))
    )
    at = urlsplit(place)
    if made.one_role:
        return f"schema {schema!r} is at version {VERSION} and belongs to the role of this URL: connect as that{notes}"
    return (
        f"schema {schema!r} is at version {VERSION} and belongs to {owner!r}, which is not for connecting; open "
        f"the store as {app!r}: postgresql://{app}@{at.netloc.rpartition('@')[2]}{at.path}{notes}"
    )


async def _index(place: str) -> str:
    index = index_at(place)
    try:
        bound = await index.bound()
    finally:
        await index.aclose()
    if bound is None:
        return f"ready: {index.place}; collections are made with the first vector, which says their size"
    return f"ready: {index.place}; holds vectors of {bound[0]} ({bound[1]} numbers)"
