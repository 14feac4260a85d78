"""Memory and sessions on a Redis server; needs the extra `redis`."""

from loom.stores.redis.checkpoints import RedisCheckpointStore
from loom.stores.redis.connection import Guarantees
from loom.stores.redis.store import RedisStore

__all__ = ["Guarantees", "RedisCheckpointStore", "RedisStore"]
