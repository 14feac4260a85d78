"""Forgetting beside every other call of a memory, on the embedded stores."""

from contextlib import AsyncExitStack

import pytest

from loom import open_memory
from loom.stores.inmemory import InMemoryStore
from loom.testing.conformance import ErasureSuite
from loom.testing.conformance.isolation import Memories


async def opened(stack, *places):
    """Memories on these places; of one place that is a store, both use it."""
    return Memories(*[await stack.enter_async_context(open_memory(place, embedder="hash")) for place in places])


class TestInMemory(ErasureSuite):
    @pytest.fixture
    async def memories(self):
        store = InMemoryStore()
        async with AsyncExitStack() as stack:
            yield await opened(stack, store, store)


class TestSqlite(ErasureSuite):
    @pytest.fixture
    async def memories(self, tmp_path):
        place = f"sqlite:{tmp_path}/memory.db"
        async with AsyncExitStack() as stack:
            yield await opened(stack, place, place)
