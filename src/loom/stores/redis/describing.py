"""The description of a Redis store and its guarantees, as the server is set up now."""

from __future__ import annotations

from loom.stores.base import embedder_label
from loom.stores.redis import reembed
from loom.stores.redis.link import FORMAT, Guarantees, RedisConnection
from loom.stores.redis.names import StoreNames
from loom.stores.redis.near import EXACT
from loom.stores.redis.retention import Retention

_ISOLATION = (
    "every user has keys of their own, named by a hash of their scope; the server knows no users of Loom: anyone "
    "who may log in may read everything"
)


def server_labels(found: Guarantees, prefix: str) -> dict[str, str]:
    """The labels that hold for every store on the server."""
    known = {"appendfsync": found.appendfsync, "maxmemory-policy": found.eviction}
    settings = [f"appendonly={'yes' if found.appendonly else 'no'}"]
    settings += [f"{name}={value or 'not known'}" for name, value in known.items()]
    return {
        "server": f"Redis {found.version}",
        "schema": f"keys that start with {prefix}:, format {FORMAT}",
        "durability": f"{found} ({', '.join(settings)})",
        "isolation": _ISOLATION,
    }


async def labels(link: RedisConnection, names: StoreNames, retention: Retention, *, is_near: bool) -> dict[str, str]:
    """Server, schema, durability, isolation, index, embedder, and what does not stay for ever."""
    users = await link.call("HLEN", names.users)
    bound = await reembed.binding(link, names)
    how = "every text and vector of a user is compared, in this process"
    if is_near:
        how = f"texts in this process, vectors by RediSearch, which asks its HNSW graph beyond {EXACT:,} of a user"
    return {
        **server_labels(await link.guarantees(), names.prefix),
        "index": f"{'RediSearch' if is_near else 'exact'}: {how}; {users} users",
        "embedder": embedder_label(None if bound is None else (bound.identity, bound.dimension)),
        "retention": str(retention),
    }
