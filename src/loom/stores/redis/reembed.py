"""Whose vectors a store keeps, and which records have none."""

from __future__ import annotations

from loom.core.filter import Filter
from loom.core.record import Record
from loom.core.scope import Scope
from loom.stores.inmemory.shelf import copied
from loom.stores.redis.codec import Binding, unpack_owner
from loom.stores.redis.link import Link
from loom.stores.redis.names import StoreNames
from loom.stores.redis.replica import Replicas
from loom.stores.redis.scripts import REBIND

BOUND = "bound"


async def binding(link: Link, names: StoreNames) -> Binding | None:
    """Whose vectors the store keeps."""
    return Binding.unpacked(await link.call("HGET", names.embedder, BOUND))


async def bind(link: Link, names: StoreNames, old: Binding | None, new: Binding) -> bool:
    """Bind the store, and let go of all vectors of the old embedder; False if it was not bound to that."""
    expected = b"-" if old is None else b"=" + old.packed()
    arguments = (expected, new.packed(), names.of_digest("").vectors, names.near if await link.searches() else "")
    return bool(await link.run(REBIND, (names.embedder, names.users), arguments))


async def unembedded(
    link: Link,
    names: StoreNames,
    replicas: Replicas,
    *,
    where: Filter | None,
    after: tuple[Scope, str] | None,
    limit: int,
) -> tuple[tuple[Scope, Record], ...]:
    """Records of all users without a vector, by namespace, user and id."""
    found: list[tuple[Scope, Record]] = []
    for scope in await all_users(link, names):
        if after is not None and owner(scope) < owner(after[0]):
            continue
        start = after[1] if after is not None and owner(scope) == owner(after[0]) else None
        of_user = await _of_user(link, names, replicas, scope, where)
        found += [(scope, record) for record in of_user if start is None or record.id > start]
        if len(found) >= limit:
            break
    return tuple((scope, copied(record)) for scope, record in found[:limit])


async def count_unembedded(link: Link, names: StoreNames, replicas: Replicas, where: Filter | None) -> int:
    """How many records have no vector."""
    return sum([len(await _of_user(link, names, replicas, scope, where)) for scope in await all_users(link, names)])


async def all_users(link: Link, names: StoreNames) -> list[Scope]:
    """Everybody who has something in the store, by namespace and user."""
    return sorted((unpack_owner(data) for data in await link.call("HVALS", names.users)), key=owner)


async def _of_user(
    link: Link, names: StoreNames, replicas: Replicas, scope: Scope, where: Filter | None
) -> list[Record]:
    has_vector = {id.decode() for id in await link.call("HKEYS", names.user(scope).vectors)}
    found = await replicas.ask(scope, lambda replica: replica.shelf.select(scope, where))
    return [record for record in found if record.id not in has_vector]


def owner(scope: Scope) -> tuple[str, str]:
    """By what users are ordered."""
    return (scope.namespace, scope.user_id)
