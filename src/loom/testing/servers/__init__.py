"""Real servers for tests: started from pip packages in a folder of their own, stopped and removed afterwards."""

from loom.testing.servers.chroma import ChromaServer, chroma
from loom.testing.servers.postgres import PostgresServer, postgres
from loom.testing.servers.process import ServerFailed
from loom.testing.servers.redis import RedisServer, redis

__all__ = ["ChromaServer", "PostgresServer", "RedisServer", "ServerFailed", "chroma", "postgres", "redis"]
