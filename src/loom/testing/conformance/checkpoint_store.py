"""The laws of a checkpoint store, with those of its optional powers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from loom.core.checkpoint import LoggedMessage
from loom.core.message import Message, ToolCallPart, Usage
from loom.core.scope import Scope
from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.testing.clock import START, FakeClock
from loom.testing.conformance.checkpoint_powers import ForkLaws, PruneLaws
from loom.testing.conformance.checkpoint_samples import (
    CHAT,
    NAMES,
    a_checkpoint,
    a_message,
    awkward_checkpoint,
    awkward_entries,
    everything,
    ids_in,
    save,
    save_turns,
    staying,
    texts_of,
)
from loom.testing.conformance.samples import ALICE, BOB
from loom.testing.conformance.suite import Suite

pairs = pytest.mark.parametrize(("mine", "theirs"), NAMES, ids=range(len(NAMES)))


class SaveLaws:
    """What every checkpoint store promises about saving and loading."""

    async def test_what_is_saved_is_loaded(self, store: CheckpointStore) -> None:
        """Every field of every kind of entry and part comes back equal."""
        entries = awkward_entries()
        checkpoint = awkward_checkpoint(len(entries))
        await store.save(CHAT, checkpoint, entries=entries, head=None)
        assert await store.load(CHAT, checkpoint.id) == checkpoint
        assert await store.history(CHAT, checkpoint.id) == entries
        assert await store.list(CHAT) == (checkpoint,)

    async def test_an_empty_store_answers(self, store: CheckpointStore) -> None:
        """What is not there is None, empty or NotFound, never another error."""
        assert await store.load(CHAT) is None
        assert await store.load(CHAT, "c1") is None
        assert await store.list(CHAT) == await store.list(ALICE) == ()
        assert await store.delete(CHAT, "c1") is False
        assert (await store.forget(ALICE)).removed == {}
        with pytest.raises(NotFound):
            await store.history(CHAT, "c1")

    async def test_a_turn_without_entries_can_be_saved(self, store: CheckpointStore) -> None:
        """A checkpoint may move only the view."""
        first = await save(store, CHAT, "c1", "tea")
        undone = replace(first, id="c2", parent="c1", turn=1, usage=Usage(output=1))
        await store.save(CHAT, undone, entries=(), head="c1")
        assert await store.load(CHAT) == undone
        assert await texts_of(store, CHAT, "c2") == ["tea"]

    async def test_every_turn_can_be_restored(self, store: CheckpointStore) -> None:
        """The log up to each checkpoint, however many there are."""
        ids = [f"c{n}" for n in range(40)]
        await save_turns(store, CHAT, *ids)
        for n, id in enumerate(ids):
            due = [text for one in ids[: n + 1] for text in (f"question {one}", f"answer {one}")]
            assert await texts_of(store, CHAT, id) == due

    async def test_entries_continue_their_parent(self, store: CheckpointStore) -> None:
        """A wrong position or an unknown parent is refused, and nothing is written."""
        await save(store, CHAT, "c1", "tea", "milk")
        for parent, position in (("c1", 4), ("c1", 1), (None, 3), ("nowhere", 3), ("c2", 1)):
            wrong = a_checkpoint("c2", parent=parent, position=position)
            with pytest.raises(UsageError):
                await store.save(CHAT, wrong, entries=[a_message()], head="c1")
        assert await ids_in(store, CHAT) == ["c1"]
        assert await store.load(CHAT, "c2") is None

    @pytest.mark.parametrize("head", [None, "c1", "c3", "nowhere"])
    async def test_a_writer_who_missed_a_save_is_refused(self, store: CheckpointStore, head: str | None) -> None:
        """`head` is the checkpoint last saved, or nothing is written."""
        await save_turns(store, CHAT, "c1", "c2")
        before = await everything(store, CHAT)
        with pytest.raises(StoreConflict):
            await store.save(CHAT, a_checkpoint("c3", position=5, parent="c2"), entries=[a_message()], head=head)
        assert await everything(store, CHAT) == before

    async def test_the_first_save_has_no_head(self, store: CheckpointStore) -> None:
        """A head that was never saved is a conflict."""
        with pytest.raises(StoreConflict):
            await store.save(CHAT, a_checkpoint(), entries=(), head="c0")
        assert await store.list(CHAT) == ()

    async def test_of_many_writers_one_wins(self, store: CheckpointStore) -> None:
        """Writers who know the same head: one save holds, the others hear of it."""
        first = await save(store, CHAT, "c1", "tea")
        lost: list[str] = []

        async def write(id: str) -> None:
            checkpoint = a_checkpoint(id, position=2, parent=first.id)
            try:
                await store.save(CHAT, checkpoint, entries=[a_message(id, id)], head=first.id)
            except StoreConflict:
                lost.append(id)

        async with anyio.create_task_group() as group:
            for n in range(8):
                group.start_soon(write, f"w{n}")
        assert len(lost) == 7
        winner = await store.load(CHAT)
        assert winner is not None
        assert winner.id not in lost
        assert await texts_of(store, CHAT, winner.id) == ["tea", winner.id]
        assert await ids_in(store, CHAT) == [winner.id, "c1"]

    async def test_going_on_from_an_older_checkpoint_overwrites_nothing(self, store: CheckpointStore) -> None:
        """Both branches stay loadable; the last saved is the newest."""
        first = await save(store, CHAT, "c1", "tea")
        second = await save(store, CHAT, "c2", "milk", after=first)
        other = await save(store, CHAT, "c3", "sugar", "honey", "rum", after=first)
        again = await save(store, CHAT, "c4", "rum", after=second)
        assert await store.load(CHAT) == again
        assert await texts_of(store, CHAT, "c2") == ["tea", "milk"]
        assert await texts_of(store, CHAT, other.id) == ["tea", "sugar", "honey", "rum"]
        assert await texts_of(store, CHAT, "c4") == ["tea", "milk", "rum"]
        fresh = await save(store, CHAT, "c5", "water")
        assert (fresh.parent, await texts_of(store, CHAT, "c5")) == (None, ["water"])
        assert await ids_in(store, CHAT) == ["c5", "c4", "c3", "c2", "c1"]

    async def test_saving_the_same_again_is_a_no_op(self, store: CheckpointStore) -> None:
        """A retry after a lost answer succeeds, whatever head it names, and moves nothing."""
        first = await save(store, CHAT, "c1", "tea")
        await save(store, CHAT, "c2", "milk", after=first)
        before = await everything(store, CHAT)
        for head in (None, "c1", "c2", "nowhere"):
            await store.save(CHAT, first, entries=[a_message("c1.0", "tea")], head=head)
        assert await everything(store, CHAT) == before

    async def test_an_id_with_other_content_is_a_conflict(self, store: CheckpointStore) -> None:
        """Neither the checkpoint nor its entries can be replaced."""
        first = await save(store, CHAT, "c1", "tea")
        for other, entries in (
            (replace(first, turn=7), [a_message("c1.0", "tea")]),
            (replace(first, at=START.replace(year=2030)), [a_message("c1.0", "tea")]),
            (first, [a_message("c1.0", "coffee")]),
            (first, [a_message("other", "tea")]),
            (first, []),
        ):
            with pytest.raises(StoreConflict):
                await store.save(CHAT, other, entries=entries, head="c1")
        assert await everything(store, CHAT) == [(first, (a_message("c1.0", "tea"),))]

    async def test_what_was_saved_does_not_change_from_outside(self, store: CheckpointStore) -> None:
        """Neither the values that were given nor those that were got are the store's own."""
        call = ToolCallPart("t1", "look", {"at": ["tea"]})
        await save(store, CHAT, "c1", entries=[LoggedMessage("m1", START, Message("assistant", (call,)))])
        call.input["at"].append("milk")
        for _ in range(2):
            (entry,) = await store.history(CHAT, "c1")
            assert isinstance(entry, LoggedMessage)
            (part,) = entry.message.parts
            assert isinstance(part, ToolCallPart)
            assert part.input == {"at": ["tea"]}
            part.input["at"].append("milk")

    async def test_equal_parts_come_back_from_every_place(self, store: CheckpointStore) -> None:
        """Stored once or not: each entry has its own, also when the first to bring it is gone."""
        first = await save(store, CHAT, "c1", "same", "same")
        await save(store, CHAT, "c2", "same", "other", after=first)
        other = ALICE.for_session("other")
        await save(store, other, "c1", "other", "same")
        await store.forget(CHAT)
        assert await texts_of(store, other, "c1") == ["other", "same"]

    async def test_a_session_must_be_named(self, store: CheckpointStore) -> None:
        """A user's scope is not enough, and a checkpoint goes into its own session."""
        calls: list[Callable[[], Any]] = [
            lambda: store.save(ALICE, a_checkpoint(), entries=(), head=None),
            lambda: store.load(ALICE),
            lambda: store.history(ALICE, "c1"),
            lambda: store.delete(ALICE, "c1"),
        ]
        for call in calls:
            with pytest.raises(ScopeRequired):
                await call()
        with pytest.raises(UsageError):
            await store.save(CHAT, a_checkpoint(session_id="other"), entries=(), head=None)
        assert await store.list(ALICE) == ()


class ListLaws:
    """What every checkpoint store promises about listing and deleting."""

    async def test_the_last_saved_comes_first(self, store: CheckpointStore) -> None:
        """Whatever the ids, times and positions say."""
        at = START.replace(year=2030)
        for n, id in enumerate(("z", "a", "m")):
            checkpoint = a_checkpoint(id, at=at.replace(year=2030 - n), turn=9 - n)
            newest = await store.load(CHAT)
            await store.save(CHAT, checkpoint, entries=(), head=newest and newest.id)
        assert await ids_in(store, CHAT) == ["m", "a", "z"]
        assert [one.id for one in await store.list(CHAT, limit=2)] == ["m", "a"]
        with pytest.raises(UsageError):
            await store.list(CHAT, limit=0)

    async def test_a_user_lists_all_his_sessions(self, store: CheckpointStore) -> None:
        """In the order of saving, across sessions."""
        one, two = ALICE.for_session("one"), ALICE.for_session("two")
        first = await save(store, one, "c1", "tea")
        await save(store, two, "c1", "milk")
        await save(store, BOB.for_session("one"), "c1", "rum")
        await save(store, one, "c2", "tea", after=first)
        found = [(each.session_id, each.id) for each in await store.list(ALICE)]
        assert found == [("one", "c2"), ("two", "c1"), ("one", "c1")]
        assert await store.list(ALICE, limit=1) == await store.list(one, limit=1)

    async def test_deleting_one_leaves_the_others_whole(self, store: CheckpointStore) -> None:
        """The log of a deleted checkpoint stays as long as another needs it."""
        last = await save_turns(store, CHAT, "c1", "c2", "c3", "c4")
        due = await store.history(CHAT, "c4")
        for id, left in (("c2", ["c4", "c3", "c1"]), ("c1", ["c4", "c3"]), ("c3", ["c4"])):
            assert await store.delete(CHAT, id) is True
            assert await store.delete(CHAT, id) is False
            assert await store.load(CHAT, id) is None
            with pytest.raises(NotFound):
                await store.history(CHAT, id)
            assert await ids_in(store, CHAT) == left
            assert await store.history(CHAT, "c4") == due
        assert await store.load(CHAT) == last

    async def test_after_the_newest_is_deleted_the_one_before_is_the_head(self, store: CheckpointStore) -> None:
        """load() and the head of the next save agree."""
        second = await save_turns(store, CHAT, "c1", "c2")
        await save(store, CHAT, "c3", "gone", after=second)
        await store.delete(CHAT, "c3")
        assert await store.load(CHAT) == second
        stale = a_checkpoint("c4", position=5, parent="c3")
        with pytest.raises(StoreConflict):
            await store.save(CHAT, stale, entries=(), head="c3")
        with pytest.raises(UsageError):
            await store.save(CHAT, stale, entries=(), head="c2")
        await save(store, CHAT, "c3", "new", after=second)
        assert (await texts_of(store, CHAT, "c3"))[-1] == "new"

    async def test_a_session_without_checkpoints_begins_anew(self, store: CheckpointStore) -> None:
        """After the last is deleted there is no head."""
        await save(store, CHAT, "c1", "tea")
        await store.delete(CHAT, "c1")
        assert await store.list(ALICE) == ()
        await store.save(CHAT, a_checkpoint("c1", position=1), entries=[a_message()], head=None)
        assert await texts_of(store, CHAT, "c1") == ["we drank tea"]


class ForgetLaws:
    """What every checkpoint store promises about scopes and forgetting."""

    @pairs
    @pytest.mark.parametrize("part", ["user_id", "namespace", "session_id"])
    async def test_scopes_never_meet(self, store: CheckpointStore, mine: str, theirs: str, part: str) -> None:
        """Two scopes whose ids look alike share nothing, in any call."""
        one, other = _scope(part, mine), _scope(part, theirs)
        for scope, text in ((one, "mine"), (other, "theirs")):
            first = await save(store, scope, "c1", text)
            await save(store, scope, "c2", text, after=first)
        await save(store, one, "extra", "mine")
        assert await store.load(other, "extra") is None
        assert await store.delete(other, "extra") is False
        assert (await ids_in(store, one), await ids_in(store, other)) == (["extra", "c2", "c1"], ["c2", "c1"])
        assert await texts_of(store, one, "c2") == ["mine", "mine"]
        assert (await store.forget(one)).removed["checkpoint"] == 3
        assert await texts_of(store, other, "c2") == ["theirs", "theirs"]
        assert await store.list(one) == ()

    @pytest.mark.parametrize("id", sorted({id for pair in NAMES for id in pair}), ids=lambda id: ascii(id)[:20])
    async def test_checkpoint_ids_are_data(self, store: CheckpointStore, id: str) -> None:
        """No character of an id has a meaning."""
        twin = id.swapcase() if id.swapcase() != id else f"{id} "
        twin = twin if len(twin.encode()) <= 512 else twin[:-2]
        first = await save(store, CHAT, id, entries=[a_message(id, "mine")])
        await save(store, CHAT, twin, after=first, entries=[a_message(id, "twin")])
        assert await store.load(CHAT, id) == first
        assert await store.history(CHAT, id) == (a_message(id, "mine"),)
        assert await store.delete(CHAT, id) is True
        assert await ids_in(store, CHAT) == [twin]
        assert await texts_of(store, CHAT, twin) == ["mine", "twin"]

    async def test_forgetting_a_session_leaves_the_others(self, store: CheckpointStore) -> None:
        """The receipt counts what went, and the session can begin anew."""
        other = ALICE.for_session("other")
        await save_turns(store, CHAT, "c1", "c2", "c3")
        await save_turns(store, other, "c1", "c2")
        before = await everything(store, other)
        receipt = await store.forget(CHAT)
        assert receipt.removed == {"checkpoint": 3, "entry": 6}
        assert staying(receipt) == []
        assert await store.load(CHAT) is None
        assert await store.list(CHAT) == ()
        assert await everything(store, other) == before
        await save(store, CHAT, "c1", "new")
        assert await texts_of(store, CHAT, "c1") == ["new"]
        assert (await store.forget(CHAT)).removed == {"checkpoint": 1, "entry": 1}
        assert (await store.forget(CHAT)).removed == {}

    async def test_forgetting_a_user_touches_nobody_else(self, store: CheckpointStore) -> None:
        """All of his sessions go, and everything of everybody else is as it was."""
        others = [Scope(user_id="bob"), Scope("other", "alice"), Scope(user_id="alic"), Scope(user_id="alice2")]
        for scope in (ALICE, *others):
            for session in ("one", "two"):
                await save_turns(store, scope.for_session(session), "c1", "c2")
        before = [await everything(store, scope) for scope in others]
        receipt = await store.forget(ALICE)
        assert receipt.removed == {"checkpoint": 4, "entry": 8}
        assert await store.list(ALICE) == ()
        assert [await everything(store, scope) for scope in others] == before
        assert len(before[0]) == 4


class CheckpointStoreSuite(SaveLaws, ListLaws, ForgetLaws, ForkLaws, PruneLaws, Suite):
    """Subclass it, override the fixture `store`, and every law runs; powers that a store lacks are skipped."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The store's time, which stands still unless a law moves it."""
        return FakeClock()

    @pytest.fixture
    async def store(self, clock: FakeClock) -> CheckpointStore:
        """An empty store that takes its time from `clock`; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `store`")


def _scope(part: str, value: str) -> Scope:
    makers: dict[str, Callable[[], Scope]] = {
        "user_id": lambda: Scope("default", value, "chat"),
        "namespace": lambda: Scope(value, "user", "chat"),
        "session_id": lambda: Scope("default", "user", value),
    }
    return makers[part]()
