"""Memory and sessions on a Redis server; needs the extra `redis`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.stores.redis.checkpoints import RedisCheckpointStore
    from loom.stores.redis.connection import Guarantees
    from loom.stores.redis.store import RedisStore

__all__ = ["Guarantees", "RedisCheckpointStore", "RedisStore"]

__getattr__, __dir__ = door(
    __name__,
    {
        "Guarantees": "loom.stores.redis.connection",
        "RedisCheckpointStore": "loom.stores.redis.checkpoints",
        "RedisStore": "loom.stores.redis.store",
    },
)
