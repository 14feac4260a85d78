"""What the kernel of checkpoint stores asks of a port."""

import asyncio

import pytest

from loom.core.scope import Scope
from loom.core.threads import run_here
from loom.stores.checkpoints import MemoryTree
from loom.stores.inmemory import MemoryCheckpointStore
from loom.testing.conformance.checkpoint_store import CHAT, a_checkpoint, a_message, ids_in, save, save_turns, texts_of

pytestmark = pytest.mark.anyio


async def test_pruning_every_turn_does_not_walk_through_the_log(monkeypatch):
    walks = []
    links = MemoryTree.links

    async def counted(self, keys, *, ancestors):
        found = await links(self, keys, ancestors=ancestors)
        walks.append(len(found))
        return found

    monkeypatch.setattr(MemoryTree, "links", counted)
    store = MemoryCheckpointStore()
    last = await save_turns(store, CHAT, "c0", "c1")
    for n in range(2, 30):
        last = await save(store, CHAT, f"c{n}", "tea", after=last)
        assert await store.prune(CHAT, keep=2) == (f"c{n - 2}",)
    assert set(walks) == {1}
    assert len(await texts_of(store, CHAT, "c29")) == 4 + 28
    await store.delete(CHAT, "c29")
    await store.delete(CHAT, "c28")
    assert walks[-1] == 29, "the last one takes the log with it"
    assert (await store.forget(CHAT)).removed == {}


async def test_a_session_id_forks_and_prunes_too():
    store = MemoryCheckpointStore()
    default = Scope("default", "default")
    await save_turns(store, default.for_session("s1"), "c1", "c2")
    assert await store.prune("s1", keep=1) == ("c1",)
    fork = await store.fork("s1", "c2", session_id="s2")
    assert await ids_in(store, default.for_session("s2")) == [fork.id]


async def test_ids_of_a_log_that_is_not_continued_are_not_held():
    store = MemoryCheckpointStore()
    await store.append(CHAT, [a_message("m1")], id="c1")
    assert (await store.append(CHAT, [a_message("m1")], once=True)).id == "c1"
    await store.save(CHAT, a_checkpoint(id="c2", position=0, parent=None), entries=(), head="c1")
    assert (await store.append(CHAT, [a_message("m1")], once=True)).position == 1


def test_a_port_without_an_event_loop_may_not_wait():
    with pytest.raises(RuntimeError, match="waited"):
        run_here(asyncio.sleep(0))
