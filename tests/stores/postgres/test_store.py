"""The Postgres store keeps every law of a memory store, and those of its own."""

from contextlib import asynccontextmanager

import pytest
from hypothesis import settings

from loom.stores.postgres import PostgresStore
from loom.testing.conformance import MemoryStoreMachine, MemoryStoreSuite
from tests.stores.postgres.conftest import started

pytestmark = pytest.mark.anyio


class TestPostgres(MemoryStoreSuite):
    @pytest.fixture
    async def store(self, clock, server):
        async with PostgresStore(server.app, clock=clock) as store:
            yield store


class PostgresMachine(MemoryStoreMachine):
    @asynccontextmanager
    async def open_store(self, clock):
        server = started()
        server.empty()
        async with PostgresStore(server.app, clock=clock) as store:
            yield store


TestPostgresModel = PostgresMachine.TestCase
TestPostgresModel.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
