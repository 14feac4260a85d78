"""The embedder that a store is bound to."""

from __future__ import annotations

import secrets

from loom.stores.base import Bound
from loom.stores.redis.codec import Binding
from loom.stores.redis.link import RedisConnection
from loom.stores.redis.names import StoreNames
from loom.stores.redis.scripts import REBIND

BOUND = "bound"


async def binding(link: RedisConnection, names: StoreNames) -> Binding | None:
    """The embedder of the vectors; None before bind()."""
    return Binding.unpacked(await link.call("HGET", names.embedder, BOUND))


async def bind(link: RedisConnection, names: StoreNames, old: Bound | None, new: Bound) -> bool:
    """Bind the store and remove all vectors of the old embedder; False if it was not bound to that."""
    stored = await binding(link, names)
    if (None if stored is None else (stored.identity, stored.dimension)) != old:
        return False
    expected = b"-" if stored is None else b"=" + stored.packed()
    packed = Binding(*new, secrets.token_hex(8)).packed()
    arguments = (expected, packed, names.of_digest("").vectors, names.near if await link.searches() else "")
    return bool(await link.run(REBIND, (names.embedder, names.users), arguments))
