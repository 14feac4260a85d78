"""Memory on a Redis server; needs the extra `redis`."""

from loom.stores.redis.link import Guarantees
from loom.stores.redis.store import RedisStore

__all__ = ["Guarantees", "RedisStore"]
