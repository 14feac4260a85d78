"""Laws of a checkpoint store, with fork and prune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Protocol

import pytest

from loom.core.log import Checkpoint, Compaction, LogEntry, LoggedMessage, Replacement
from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.testing.conformance.suite import ALICE, BOB, TWINS, at_once, needs
from loom.testing.fakes import START, FakeClock

# Checkpoints, log entries and ids that the laws are tried on.

CHAT = ALICE.for_session("chat")
"""The session that most laws are tried on."""

NAMES: tuple[tuple[str, str], ...] = (
    *TWINS,
    ("a:b", "a_b"),
    ("a/b", "a_b"),
    ("../up", "up"),
    ("../../etc/passwd", "/etc/passwd"),
    (".", ".."),
    ("a.log", "a"),
    ("lock", "LOCK"),
    ("CON", "con"),
    ("NUL", "nul.log"),
    ("a\nb", "a b"),
    ("C:\\x", "C:/x"),
    ("~", "$HOME"),
    ("x" * 512, "x" * 511),
)
"""Pairs of different ids that a careless store takes for one, for a pattern, or for the name of a file."""


class ForkingPruningStore(CheckpointStore, Forks, PrunesCheckpoints, Protocol):
    """A checkpoint store that forks and prunes."""


def staying(receipt: Receipt) -> list[str]:
    """The lines of a receipt about log entries that stay.

    Other lines may be about bytes that the files of a store keep until they are swept.
    """
    return [words for words in receipt.pending if "log entries stay" in words]


def a_message(id: str = "m1", text: str = "we drank tea", **fields: Any) -> LoggedMessage:
    """A user's message of the start of time; `message` says otherwise."""
    given: dict[str, Any] = {"at": START, "message": Message.user(text)} | fields
    return LoggedMessage(id, **given)


def a_checkpoint(id: str = "c1", *, session_id: str = "chat", **fields: Any) -> Checkpoint:
    """A checkpoint of the start of time, of an empty log unless `fields` say otherwise."""
    given: dict[str, Any] = {"at": START, "position": 0, "turn": 0} | fields
    return Checkpoint(id=id, session_id=session_id, **given)


async def save(
    store: CheckpointStore,
    scope: Scope,
    id: str,
    *texts: str,
    after: Checkpoint | None = None,
    entries: Sequence[LogEntry] | None = None,
) -> Checkpoint:
    """Save a checkpoint that continues `after` with one message for each text; the head is what the store says."""
    added = tuple(a_message(f"{id}.{n}", text) for n, text in enumerate(texts)) if entries is None else tuple(entries)
    before = 0 if after is None else after.position
    checkpoint = a_checkpoint(
        id,
        session_id=scope.session_id or "",
        position=before + len(added),
        turn=0 if after is None else after.turn + 1,
        parent=None if after is None else after.id,
    )
    newest = await store.load(scope)
    await store.save(scope, checkpoint, entries=added, head=None if newest is None else newest.id)
    return checkpoint


async def save_turns(store: CheckpointStore, scope: Scope, *ids: str, after: Checkpoint | None = None) -> Checkpoint:
    """Save one turn for each id, each continuing the one before; returns the last."""
    assert ids
    for id in ids:
        after = await save(store, scope, id, f"question {id}", f"answer {id}", after=after)
    assert after is not None
    return after


async def texts_of(store: CheckpointStore, scope: Scope, id: str) -> list[str]:
    """The texts of the log up to a checkpoint."""
    return [entry.message.text for entry in await store.history(scope, id) if isinstance(entry, LoggedMessage)]


async def ids_in(store: CheckpointStore, scope: Scope) -> list[str]:
    """The ids that list() gives."""
    return [checkpoint.id for checkpoint in await store.list(scope)]


async def everything(store: CheckpointStore, scope: Scope) -> list[tuple[Checkpoint, tuple[LogEntry, ...]]]:
    """All checkpoints of a scope, with their logs."""
    found = await store.list(scope)
    return [(one, await store.history(scope.for_session(one.session_id), one.id)) for one in found]


def awkward_entries() -> tuple[LogEntry, ...]:
    """An entry of each kind, with a part of each kind, every field set to something that is easily lost."""
    text = (
        "caf\u00e9 cafe\u0301 \u202e \U0001f375 \"quoted\" 'single' % _ * \\ \r\n\t \0 \u4e1c\u4eac \u2028 \xff \ud83d"
    )
    later = datetime(2027, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
    picture = ImagePart("iVBORw0KGgo=", "image/png", "a \u00e9.png")
    nested: dict[str, Any] = {
        "n": [1, 1.0, 0.1, -0.0, 2**70, True, None, "", {"b": {"a": []}, "a": "\u00e9"}],
        "": text,
    }
    call = Message("assistant", (
        ThinkingPart(text, "seal=="), ThinkingPart(redacted="xx", provider="other"), TextPart(""), TextPart(text),
        ToolCallPart("t1", "look", nested), ToolCallPart("t2", "look", ["no object"]), ToolCallPart("t3", "look", None),
        NativePart("anthropic", {"type": "compaction", **nested}),
    ))  # fmt: skip
    result = Message("user", (
        ToolResultPart("t1", (TextPart(text), picture, DocumentPart("JVBERi0=", name=None))),
        ToolResultPart("t2", (), is_error=True), ToolResultPart("t3", (TextPart(""),)),
        picture, ImagePart("iVBORw0KGgo=", "image/png"), DocumentPart("JVBERi0=", "text/plain", "\U0001f375"),
    ))  # fmt: skip
    compaction = Compaction(
        id="k \u00e9", at=later + timedelta(microseconds=1), strategy="summarize", tokens_before=10**12, tokens_after=0,
        replacements=(
            Replacement(("m1",), Message("user", (TextPart(text), picture))), Replacement(("m2", "m3"), None),
        ),
    )  # fmt: skip
    zone = timedelta(hours=5, minutes=30)
    return (
        LoggedMessage("m1", later, Message("system", (TextPart(text),))),
        LoggedMessage("m2", (later + zone).astimezone(), call),
        LoggedMessage("m3", later, result),
        compaction,
    )


def awkward_checkpoint(position: int) -> Checkpoint:
    """A checkpoint with every field set."""
    return a_checkpoint(
        "c \u00e9 \U0001f375", at=datetime(2027, 3, 4, 5, 6, 7, 1, tzinfo=UTC), position=position, turn=10**9,
        compactions=("k \u00e9", "'", "k,k"), pins=("m1", "\u00e9"),
        usage=Usage(input=2**53, output=3, cache_read=2, cache_write=1),
    )  # fmt: skip


FORK = ALICE.for_session("fork")
pairs = pytest.mark.parametrize(("mine", "theirs"), NAMES, ids=range(len(NAMES)))


class SaveLaws:
    """The laws of saving and loading."""

    async def test_what_is_saved_is_loaded(self, store: CheckpointStore) -> None:
        """Every field of every kind of entry and part comes back equal."""
        entries = awkward_entries()
        checkpoint = awkward_checkpoint(len(entries))
        await store.save(CHAT, checkpoint, entries=entries, head=None)
        assert await store.load(CHAT, checkpoint.id) == checkpoint
        assert await store.history(CHAT, checkpoint.id) == entries
        assert await store.list(CHAT) == (checkpoint,)

    async def test_an_empty_store_answers(self, store: CheckpointStore) -> None:
        """A missing checkpoint is None, empty or NotFound, never another error."""
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
        """Of writers who know the same head one succeeds, and the others get StoreConflict."""
        first = await save(store, CHAT, "c1", "tea")
        lost: list[str] = []

        async def write(id: str) -> None:
            checkpoint = a_checkpoint(id, position=2, parent=first.id)
            try:
                await store.save(CHAT, checkpoint, entries=[a_message(id, id)], head=first.id)
            except StoreConflict:
                lost.append(id)

        await at_once(*(write(f"w{n}") for n in range(8)))
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
    """The laws of listing and deleting."""

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

    async def test_a_user_lists_all_their_sessions(self, store: CheckpointStore) -> None:
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
        """After the last is deleted the head is None."""
        await save(store, CHAT, "c1", "tea")
        await store.delete(CHAT, "c1")
        assert await store.list(ALICE) == ()
        await store.save(CHAT, a_checkpoint("c1", position=1), entries=[a_message()], head=None)
        assert await texts_of(store, CHAT, "c1") == ["we drank tea"]


class ForgetLaws:
    """The laws of scopes and forgetting."""

    @pairs
    @pytest.mark.parametrize("part", ["user_id", "namespace", "session_id"])
    async def test_scopes_never_meet(self, store: CheckpointStore, mine: str, theirs: str, part: str) -> None:
        """Two scopes whose ids look alike share nothing, in any call."""
        one, other = (replace(Scope("default", "user", "chat"), **{part: value}) for value in (mine, theirs))
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
        """All of their sessions go, and everything of other users is as it was."""
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


@needs(Forks)
class ForkLaws:
    """Optional laws: a store that begins a session at a checkpoint of another."""

    async def test_a_fork_begins_where_it_was_taken(self, store: ForkingPruningStore, clock: FakeClock) -> None:
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

    async def test_a_fork_is_stamped_with_the_time_that_is_given(
        self, store: ForkingPruningStore, clock: FakeClock
    ) -> None:
        """In UTC, and not with the clock of the store; a time without a zone is refused, and nothing is written."""
        await save_turns(store, CHAT, "c1")
        with pytest.raises(UsageError):
            await store.fork(CHAT, "c1", session_id="fork", at=clock.now().replace(tzinfo=None))
        assert await store.load(FORK) is None
        given = clock.now() + timedelta(days=1)
        fork = await store.fork(CHAT, "c1", session_id="fork", at=given.astimezone(timezone(timedelta(hours=9))))
        assert (fork.at, fork.at.tzinfo) == (given, UTC)
        assert await store.load(FORK) == fork

    async def test_both_sessions_go_on_alone(self, store: ForkingPruningStore) -> None:
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

    async def test_forgetting_the_source_leaves_the_fork_whole(self, store: ForkingPruningStore) -> None:
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

    async def test_forgetting_a_fork_leaves_the_source_whole(self, store: ForkingPruningStore) -> None:
        """Only what the fork added goes."""
        await save_turns(store, CHAT, "c1", "c2")
        before = await everything(store, CHAT)
        fork = await store.fork(CHAT, "c2", session_id="fork")
        await save(store, FORK, "c3", "on", after=fork)
        receipt = await store.forget(FORK)
        assert (dict(receipt.removed), staying(receipt)) == ({"checkpoint": 2, "entry": 1}, [])
        assert await everything(store, CHAT) == before

    async def test_deleting_either_end_leaves_the_other_whole(self, store: ForkingPruningStore) -> None:
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

    async def test_a_fork_goes_into_a_new_session(self, store: ForkingPruningStore) -> None:
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


@needs(PrunesCheckpoints)
class CheckpointPruneLaws:
    """Optional laws: a store that drops old checkpoints."""

    async def test_the_newest_stay_with_their_whole_history(self, store: ForkingPruningStore) -> None:
        """The ids of the others are returned, and the session goes on."""
        last = await save_turns(store, CHAT, "c1", "c2", "c3", "c4", "c5")
        kept = (await everything(store, CHAT))[:2]
        assert sorted(await store.prune(CHAT, keep=2)) == ["c1", "c2", "c3"]
        assert await everything(store, CHAT) == kept
        assert await store.prune(CHAT, keep=2) == ()
        assert await store.load(CHAT, "c3") is None
        await save(store, CHAT, "c6", "on", after=last)
        assert len(await texts_of(store, CHAT, "c6")) == 11

    async def test_newest_means_last_saved(self, store: ForkingPruningStore) -> None:
        """Not the largest id, and branches count like others."""
        first = await save(store, CHAT, "z", "tea")
        await save(store, CHAT, "y", "milk", after=first)
        await save(store, CHAT, "a", "sugar", after=first)
        assert await store.prune(CHAT, keep=1) in {("z", "y"), ("y", "z")}
        assert await texts_of(store, CHAT, "a") == ["tea", "sugar"]

    async def test_prune_touches_one_session_and_keeps_at_least_one(self, store: ForkingPruningStore) -> None:
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
    async def test_forks_of_pruned_checkpoints_stay(self, store: ForkingPruningStore) -> None:
        """A fork keeps the log that it begins with."""
        await save_turns(store, CHAT, "c1", "c2", "c3")
        fork = await store.fork(CHAT, "c1", session_id="fork")
        due = await everything(store, FORK)
        await store.prune(CHAT, keep=1)
        assert await everything(store, FORK) == due
        assert await ids_in(store, ALICE) == [fork.id, "c3"]
