"""Forgetting beside every other call of a memory, on Redis."""

from contextlib import AsyncExitStack

import pytest

from loom.testing.conformance import ErasureSuite
from tests.memory.test_erasure import opened
from tests.stores.redis.conftest import new_store, twin_of


class TestRedis(ErasureSuite):
    stride = 3

    @pytest.fixture
    async def memories(self):
        one = new_store()
        async with AsyncExitStack() as stack:
            yield await opened(stack, one, twin_of(one))
