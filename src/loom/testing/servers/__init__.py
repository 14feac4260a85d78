"""Real servers for tests: started from pip packages in a folder of their own, stopped and removed afterwards."""

from loom.testing.servers.postgres import PostgresServer, postgres
from loom.testing.servers.process import ServerFailed

__all__ = ["PostgresServer", "ServerFailed", "postgres"]
