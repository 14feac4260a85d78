"""Memory and sessions on a Redis Cluster keep every law that they keep on a single server."""

from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import settings

from loom.stores.redis import cluster
from loom.stores.redis.cluster import ClusterConnection
from loom.testing.conformance import (
    CheckpointStoreMachine,
    CheckpointStoreSuite,
    MemoryStoreMachine,
    MemoryStoreSuite,
)
from tests.stores.redis.conftest import cluster_sessions, cluster_store

pytestmark = pytest.mark.anyio


class TestCluster(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_store(clock)) as store:
            yield store


class TestClusterSessions(CheckpointStoreSuite):
    @pytest.fixture
    async def store(self, clock):
        async with aclosing(cluster_sessions(clock)) as store:
            yield store
