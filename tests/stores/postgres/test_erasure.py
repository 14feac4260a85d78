"""Forgetting beside every other call of a memory, on Postgres."""

from contextlib import AsyncExitStack

import pytest

from loom.stores.postgres import PostgresStore
from loom.testing.conformance import ErasureSuite
from tests.memory.test_erasure import opened


class TestPostgres(ErasureSuite):
    stride = 7

    @pytest.fixture
    async def memories(self, server):
        async with AsyncExitStack() as stack:
            yield await opened(stack, PostgresStore(server.app), PostgresStore(server.app))
