"""Laws of checkpoint stores that fork and prune."""

from __future__ import annotations

import pytest

from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError
from loom.protocols.checkpoint_store import Forks, PrunesCheckpoints
from loom.testing.clock import FakeClock
from loom.testing.conformance.checkpoint_samples import (
    CHAT,
    ForkingStore,
    PruningForks,
    PruningStore,
    everything,
    ids_in,
    save,
    save_turns,
    staying,
    texts_of,
)
from loom.testing.conformance.samples import ALICE, BOB
from loom.testing.conformance.suite import needs

FORK = ALICE.for_session("fork")


class ForkLaws:
    """What a store promises that begins a session at a checkpoint of another."""

    @needs(Forks)
    async def test_a_fork_begins_where_it_was_taken(self, store: ForkingStore, clock: FakeClock) -> None:
        """Its first checkpoint has the source for a parent, and the source's view and log."""
        await save_turns(store, CHAT, "c1", "c2", "c3")
        source = await store.load(CHAT, "c2")
        assert source is not None
        clock.advance(60)
        fork = await store.fork(CHAT, "c2", session_id="fork")
        assert (fork.session_id, fork.parent, fork.at) == ("fork", "c2", clock.now())
        assert (fork.position, fork.turn, fork.usage) == (source.position, source.turn, source.usage)
        assert fork.compactions == source.compactions
        assert await store.load(FORK) == await store.load(FORK, fork.id) == fork
        assert await store.list(FORK) == (fork,)
        assert await store.history(FORK, fork.id) == await store.history(CHAT, "c2")

    @needs(Forks)
    async def test_both_sessions_go_on_alone(self, store: ForkingStore) -> None:
        """What one saves, the other does not see; equal ids are different checkpoints."""
        first = await save(store, CHAT, "c1", "tea")
        fork = await store.fork(CHAT, "c1", session_id="fork")
        await save(store, CHAT, "c2", "milk", after=first)
        second = await save(store, FORK, "c2", "honey", after=fork)
        await save(store, FORK, "c1", "rum", after=second)
        assert await texts_of(store, CHAT, "c2") == ["tea", "milk"]
        assert await texts_of(store, FORK, "c2") == ["tea", "honey"]
        assert await texts_of(store, FORK, "c1") == ["tea", "honey", "rum"]
        assert await texts_of(store, CHAT, "c1") == ["tea"]
        assert await ids_in(store, CHAT) == ["c2", "c1"]
        assert await ids_in(store, FORK) == ["c1", "c2", fork.id]
        with pytest.raises(UsageError):  # the source belongs to the other session
            await save(store, ALICE.for_session("third"), "c9", "x", after=first)

    @needs(Forks)
    async def test_forgetting_the_source_leaves_the_fork_whole(self, store: ForkingStore) -> None:
        """The receipt says what stays for it; with the fork, that goes too."""
        await save_turns(store, CHAT, "c1", "c2", "c3")
        fork = await store.fork(CHAT, "c2", session_id="fork")
        due = await store.history(FORK, fork.id)
        receipt = await store.forget(CHAT)
        assert receipt.removed == {"checkpoint": 3, "entry": 2}
        assert [words.startswith("4 log entries stay") for words in staying(receipt)] == [True]
        assert await store.list(ALICE) == (fork,)
        assert await store.history(FORK, fork.id) == due
        await save(store, FORK, "c9", "on", after=fork)
        assert (await texts_of(store, FORK, "c9"))[-1] == "on"
        assert (await store.forget(FORK)).removed == {"checkpoint": 2, "entry": 5}
        assert await store.list(ALICE) == ()

    @needs(Forks)
    async def test_forgetting_a_fork_leaves_the_source_whole(self, store: ForkingStore) -> None:
        """Only what the fork added goes."""
        await save_turns(store, CHAT, "c1", "c2")
        before = await everything(store, CHAT)
        fork = await store.fork(CHAT, "c2", session_id="fork")
        await save(store, FORK, "c3", "on", after=fork)
        receipt = await store.forget(FORK)
        assert (dict(receipt.removed), staying(receipt)) == ({"checkpoint": 2, "entry": 1}, [])
        assert await everything(store, CHAT) == before

    @needs(Forks)
    async def test_deleting_either_end_leaves_the_other_whole(self, store: ForkingStore) -> None:
        """A fork of a fork reads through both, whatever was deleted between."""
        await save_turns(store, CHAT, "c1", "c2")
        fork = await store.fork(CHAT, "c2", session_id="fork")
        last = await save(store, FORK, "c3", "on", after=fork)
        deeper = await store.fork(FORK, last.id, session_id="deeper")
        due = await texts_of(store, FORK, "c3")
        for scope, id in ((CHAT, "c2"), (FORK, fork.id), (FORK, "c3"), (CHAT, "c1")):
            assert await store.delete(scope, id) is True
            assert await texts_of(store, ALICE.for_session("deeper"), deeper.id) == due
        assert await store.list(ALICE) == (deeper,)

    @needs(Forks)
    async def test_a_fork_goes_into_a_new_session(self, store: ForkingStore) -> None:
        """An existing one, its own or an unknown source: refused, and nothing is written."""
        await save_turns(store, CHAT, "c1")
        await save_turns(store, FORK, "c1")
        await save_turns(store, BOB.for_session("free"), "c1")
        before = await everything(store, ALICE)
        for taken in ("fork", "chat"):
            with pytest.raises(StoreConflict):
                await store.fork(CHAT, "c1", session_id=taken)
        with pytest.raises(NotFound):
            await store.fork(CHAT, "nowhere", session_id="free")
        with pytest.raises(NotFound):
            await store.fork(ALICE.for_session("nobody"), "c1", session_id="free")
        with pytest.raises(ScopeRequired):
            await store.fork(ALICE, "c1", session_id="free")
        with pytest.raises(UsageError):
            await store.fork(CHAT, "c1", session_id="")
        assert await everything(store, ALICE) == before
        assert (await store.fork(CHAT, "c1", session_id="free")).session_id == "free"


class PruneLaws:
    """What a store promises that drops old checkpoints."""

    @needs(PrunesCheckpoints)
    async def test_the_newest_stay_with_their_whole_history(self, store: PruningStore) -> None:
        """The ids of the others are returned, and the session goes on."""
        last = await save_turns(store, CHAT, "c1", "c2", "c3", "c4", "c5")
        kept = (await everything(store, CHAT))[:2]
        assert sorted(await store.prune(CHAT, keep=2)) == ["c1", "c2", "c3"]
        assert await everything(store, CHAT) == kept
        assert await store.prune(CHAT, keep=2) == ()
        assert await store.load(CHAT, "c3") is None
        await save(store, CHAT, "c6", "on", after=last)
        assert len(await texts_of(store, CHAT, "c6")) == 11

    @needs(PrunesCheckpoints)
    async def test_newest_means_last_saved(self, store: PruningStore) -> None:
        """Not the largest id, and branches count like others."""
        first = await save(store, CHAT, "z", "tea")
        await save(store, CHAT, "y", "milk", after=first)
        await save(store, CHAT, "a", "sugar", after=first)
        assert await store.prune(CHAT, keep=1) in {("z", "y"), ("y", "z")}
        assert await texts_of(store, CHAT, "a") == ["tea", "sugar"]

    @needs(PrunesCheckpoints)
    async def test_prune_touches_one_session_and_keeps_at_least_one(self, store: PruningStore) -> None:
        """Other sessions and users stay as they were."""
        others = [ALICE.for_session("other"), BOB.for_session("chat")]
        for scope in (CHAT, *others):
            await save_turns(store, scope, "c1", "c2", "c3")
        before = [await everything(store, scope) for scope in others]
        for keep in (0, -1):
            with pytest.raises(UsageError):
                await store.prune(CHAT, keep=keep)
        with pytest.raises(ScopeRequired):
            await store.prune(ALICE, keep=1)
        assert len(await store.prune(CHAT, keep=1)) == 2
        assert await store.prune(ALICE.for_session("nobody"), keep=1) == ()
        assert [await everything(store, scope) for scope in others] == before

    @needs(Forks, PrunesCheckpoints)
    async def test_forks_of_pruned_checkpoints_stay(self, store: PruningForks) -> None:
        """A fork keeps the log that it begins with."""
        await save_turns(store, CHAT, "c1", "c2", "c3")
        fork = await store.fork(CHAT, "c1", session_id="fork")
        due = await everything(store, FORK)
        await store.prune(CHAT, keep=1)
        assert await everything(store, FORK) == due
        assert await ids_in(store, ALICE) == [fork.id, "c3"]
