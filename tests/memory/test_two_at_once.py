"""Two memories on one file, as two processes would be: neither waits for the other to decide."""

import anyio
import pytest

from loom import open_memory

pytestmark = pytest.mark.anyio


async def test_facts_that_two_state_at_once_leave_one_that_is_believed(tmp_path):
    where = f"sqlite:{tmp_path}/memory.db"
    async with open_memory(where, embedder="hash") as one, open_memory(where, embedder="hash") as other:
        await one.assert_fact("user", "lives_in", "Rome", user_id="alice")
        for number in range(8):
            async with anyio.create_task_group() as tasks:
                for memory, town in ((one, f"Oslo {number}"), (other, f"Bergen {number}")):
                    tasks.start_soon(lambda m=memory, t=town: m.assert_fact("user", "lives_in", t, user_id="alice"))
            assert len(await one.facts(user_id="alice")) == 1
        assert len(await one.facts(user_id="alice", history=True)) >= 17
