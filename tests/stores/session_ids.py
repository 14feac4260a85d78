"""The laws of a session id in place of a scope, for every checkpoint store."""

from __future__ import annotations

from loom.core.scope import Scope
from loom.stores.checkpoints import BaseCheckpointStore
from loom.testing.conformance.checkpoint_store import save_turns


async def check_session_ids(store: BaseCheckpointStore) -> None:
    """An id is a session of the default user; its checkpoint has its messages, and nobody else's is touched."""
    default = Scope("default", "default")
    for session in ("s1", "s2"):
        await save_turns(store, default.for_session(session), "c1", "c2")
    other = Scope("default", "alice", "s1")
    await save_turns(store, other, "c1")
    found = await store.load("s1")
    assert found is not None
    assert found == await store.load(default.for_session("s1"))
    assert len(found.messages) == len(await store.history("s1", "c2")) == 4
    assert [(c.session_id, c.id) for c in await store.list()] == [("s2", "c2"), ("s1", "c2")]
    assert [c.id for c in await store.list("s1")] == ["c2", "c1"]
    assert await store.delete("s1", "c1")
    assert await store.delete("s1")
    assert not await store.delete("s1")
    assert await store.load("s1") is None
    assert await store.load(other) is not None
    assert (await store.forget("s2")).removed["checkpoint"] == 2
    assert await store.list() == ()
