"""Laws of a checkpoint store's logs: appending, reading a part, recorded entries, attributes, and lists of sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from loom.core.log import Checkpoint, LoggedMessage, Recorded, SavedSession
from loom.core.message import Message, TextPart, Usage
from loom.core.scope import Scope
from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.testing.conformance.checkpoint_store import (
    CHAT,
    FORK,
    CheckpointPruneLaws,
    ForgetLaws,
    ForkingPruningStore,
    ForkLaws,
    ListLaws,
    SaveLaws,
    a_checkpoint,
    a_message,
    everything,
    ids_in,
    save,
    save_turns,
    texts_of,
)
from loom.testing.conformance.suite import ALICE, BOB, Suite, at_once, needs
from loom.testing.fakes import START, FakeClock

BODIES: tuple[Any, ...] = (
    None, True, 0, -1.5, 2**70, "", "caf\u00e9 \U0001f375 \0 \ud83d \u2028", [], {}, [[], {"": None}],
    {"n": [1, 1.0, True, None, "x"], "\u00e9 \"'": {"b": {"a": []}}}, {"type": "text", "text": "tea"}, "x" * 200_000,
    b"", bytes(range(256)) * 40, b"\xff\xfeLM\n\0", b'{"type":"text","text":"tea"}', b'"x"', b"x" * 200_000,
)  # fmt: skip
"""Bodies that a careless store changes, takes for one another, or for a part of a message."""

NAMES_OF_ATTRIBUTES = ("run", "a.b", 'a"b', "caf\u00e9", "$.x[0]", "a\nb", "'; --", "%s")
"""Names of attributes, and values, that a query could take for more than text."""


def a_record(id: str, body: Any = None, *, kind: str = "test.state") -> Recorded:
    """A recorded entry of the start of time."""
    return Recorded(id, START, kind, body)


async def entry_ids(store: CheckpointStore, scope: Scope) -> list[str]:
    """The ids of the log of a session's newest checkpoint."""
    newest = await store.load(scope)
    return [] if newest is None else [entry.id for entry in await store.history(scope, newest.id)]


class AppendLaws:
    """The laws of appending behind whatever is newest."""

    async def test_append_continues_the_newest(self, store: CheckpointStore, clock: FakeClock) -> None:
        """The first one begins the session; the position is counted, and time and id are new."""
        first = await store.append(CHAT, [a_message("m1")])
        clock.advance(5)
        second = await store.append(CHAT, [a_message("m2"), a_record("r1", {"n": 1})])
        assert (first.parent, first.position, first.turn, first.session_id) == (None, 1, 0, "chat")
        assert (second.parent, second.position, second.at) == (first.id, 3, clock.now())
        assert await store.load(CHAT) == second
        assert await store.list(CHAT) == (second, first)
        assert await store.history(CHAT, second.id) == (a_message("m1"), a_message("m2"), a_record("r1", {"n": 1}))
        empty = await store.append(CHAT, [], attributes={"run": "r2"})
        assert (empty.position, dict(empty.attributes)) == (3, {"run": "r2"})

    async def test_append_keeps_the_view(self, store: CheckpointStore) -> None:
        """All but time, position and attributes is as in the checkpoint that is continued."""
        saved = a_checkpoint(
            "c1", position=1, turn=7, pins=("m1",), compactions=("k",), usage=Usage(input=3, cache_read=2),
            unfinished=True, attributes={"run": "old"},
        )  # fmt: skip
        await store.save(CHAT, saved, entries=[a_message("m1")], head=None)
        made = await store.append(CHAT, [a_message("m2")], attributes={"step": "1"})
        due = replace(
            saved, id=made.id, at=made.at, parent="c1", position=2, attributes={"step": "1"},
            format_version=made.format_version,
        )  # fmt: skip
        assert made == due == await store.load(CHAT)

    async def test_a_save_that_missed_an_append_is_refused(self, store: CheckpointStore) -> None:
        """An append moves the head like any save, and goes on behind one."""
        first = await save(store, CHAT, "c1", "tea")
        made = await store.append(CHAT, [a_message("m2", "milk")])
        with pytest.raises(StoreConflict):
            await store.save(CHAT, a_checkpoint("c2", position=1, parent="c1"), entries=(), head=first.id)
        await save(store, CHAT, "c3", "rum", after=made)
        await store.append(CHAT, [a_message("m4", "honey")])
        newest = await store.load(CHAT)
        assert newest is not None
        assert await texts_of(store, CHAT, newest.id) == ["tea", "milk", "rum", "honey"]

    async def test_appends_at_one_moment_all_arrive(self, store: CheckpointStore) -> None:
        """None is lost, none is doubled, and each writer's entries stay together and in order."""

        async def write(writer: int) -> Checkpoint:
            return await store.append(CHAT, [a_message(f"w{writer}.{n}") for n in range(3)])

        made = await at_once(*(write(writer) for writer in range(12)))
        found = await entry_ids(store, CHAT)
        assert sorted(found) == sorted(f"w{writer}.{n}" for writer in range(12) for n in range(3))
        assert all(
            found[start : start + 3] == [f"{found[start][:-2]}.{n}" for n in range(3)] for start in range(0, 36, 3)
        )
        assert sorted(one.position for one in made) == [*range(3, 37, 3)]

    async def test_once_leaves_out_what_is_held(self, store: CheckpointStore) -> None:
        """By id, also what a save brought; where nothing is new nothing is written."""
        await save(store, CHAT, "c1", "tea")  # its entry has the id c1.0
        made = await store.append(CHAT, [a_message("c1.0", "other"), a_message("m1"), a_message("m1")], once=True)
        assert await entry_ids(store, CHAT) == ["c1.0", "m1"]
        assert await texts_of(store, CHAT, made.id) == ["tea", "we drank tea"]
        again = await store.append(CHAT, [a_message("m1"), a_message("c1.0")], once=True, attributes={"run": "x"})
        assert again == made
        assert await ids_in(store, CHAT) == [made.id, "c1"]
        third = await store.append(CHAT, [a_record("r1", b"x"), a_message("m1"), a_message("M1")], once=True)
        assert (third.position, await entry_ids(store, CHAT)) == (4, ["c1.0", "m1", "r1", "M1"])
        await store.append(CHAT, [a_message("m1")])
        assert await entry_ids(store, CHAT) == ["c1.0", "m1", "r1", "M1", "m1"]

    async def test_once_is_about_the_log_that_is_continued(self, store: CheckpointStore) -> None:
        """Not about other sessions and users, not about a branch that was left, and not about what was removed."""
        await store.append(ALICE.for_session("other"), [a_message("m1"), a_message("m2")], once=True)
        await store.append(BOB.for_session("chat"), [a_message("m1"), a_message("m2")], once=True)
        first = await store.append(CHAT, [a_message("m1")], once=True)
        left = await store.append(CHAT, [a_message("m2")], once=True)
        await save(store, CHAT, "c3", "on", after=first)
        await store.append(CHAT, [a_message("m1"), a_message("m2"), a_message("c3.0")], once=True)
        assert await entry_ids(store, CHAT) == ["m1", "c3.0", "m2"]
        assert await texts_of(store, CHAT, left.id) == ["we drank tea", "we drank tea"]
        newest = await store.load(CHAT)
        assert newest is not None
        await store.delete(CHAT, newest.id)
        await store.append(CHAT, [a_message("m2"), a_message("c3.0")], once=True)
        assert await entry_ids(store, CHAT) == ["m1", "c3.0", "m2"]
        await store.forget(CHAT)
        await store.append(CHAT, [a_message("m1"), a_message("m2")], once=True)
        assert await entry_ids(store, CHAT) == ["m1", "m2"]

    async def test_once_at_one_moment_doubles_nothing(self, store: CheckpointStore) -> None:
        """Many writers with the same entries leave each entry once."""
        entries = [a_message(f"m{n}") for n in range(6)]
        await at_once(*(store.append(CHAT, entries[n:] + entries[:n], once=True) for n in range(6)))
        assert sorted(await entry_ids(store, CHAT)) == [f"m{n}" for n in range(6)]

    async def test_an_older_checkpoint_can_be_continued_by_name(self, store: CheckpointStore) -> None:
        """As after going back; `once` looks at the log of that one."""
        first = await store.append(CHAT, [a_message("m1")], id="k1")
        await store.append(CHAT, [a_message("m2")])
        branch = await store.append(CHAT, [a_message("m1"), a_message("m2")], parent="k1", id="k2", once=True)
        assert (first.id, branch.id, branch.parent, branch.position) == ("k1", "k2", "k1", 2)
        assert await store.load(CHAT) == branch
        assert await entry_ids(store, CHAT) == ["m1", "m2"]
        before = await everything(store, ALICE)
        with pytest.raises(StoreConflict):
            await store.append(CHAT, [a_message("m3")], id="k1")
        with pytest.raises(NotFound):
            await store.append(CHAT, [a_message("m3")], parent="nowhere")
        with pytest.raises(NotFound):
            await store.append(ALICE.for_session("none"), [a_message("m3")], parent="k1")
        assert await everything(store, ALICE) == before

    async def test_an_append_names_its_session(self, store: CheckpointStore) -> None:
        """A user's scope is not enough, and attributes are text."""
        with pytest.raises(ScopeRequired):
            await store.append(ALICE, [a_message()])
        wrong: list[Any] = [{"n": 1}, {"": "x"}, {"a" * 201: "x"}, {"a": "x" * 2001}, {"a": "\0"}]
        wrong += [{f"a{n}": "x" for n in range(65)}]
        for attributes in wrong:
            with pytest.raises(UsageError):
                await store.append(CHAT, [a_message()], attributes=attributes)
        assert await store.list(ALICE) == ()

    @needs(Forks)
    async def test_a_fork_is_appended_to_alone(self, store: ForkingPruningStore) -> None:
        """It holds what it began with, and nothing that came to the source afterwards."""
        source = await store.append(CHAT, [a_message("m1")], once=True)
        await store.fork(CHAT, source.id, session_id="fork")
        await store.append(CHAT, [a_message("m2")], once=True)
        await store.append(FORK, [a_message("m1"), a_message("m2"), a_message("m3")], once=True)
        assert await entry_ids(store, FORK) == ["m1", "m2", "m3"]
        assert await entry_ids(store, CHAT) == ["m1", "m2"]
        await store.forget(CHAT)
        await store.append(FORK, [a_message("m1"), a_message("m4")], once=True)
        assert await entry_ids(store, FORK) == ["m1", "m2", "m3", "m4"]

    @needs(PrunesCheckpoints)
    async def test_pruning_after_each_append_forgets_no_id(self, store: ForkingPruningStore) -> None:
        """The log stays, and with it what is held."""
        for n in range(6):
            await store.append(CHAT, [a_message(f"m{max(0, n - 1)}"), a_message(f"m{n}")], once=True)
            await store.prune(CHAT, keep=1)
        assert await entry_ids(store, CHAT) == [f"m{n}" for n in range(6)]


class RecordedLaws:
    """The laws of entries that are neither messages nor compactions, and of reading a part of a log."""

    async def test_what_is_recorded_comes_back(self, store: CheckpointStore) -> None:
        """Any JSON value and any bytes, each as what it was."""
        at = datetime(2027, 3, 4, 5, 6, 7, 891011, tzinfo=timezone(timedelta(hours=5)))
        entries = [Recorded(f"r{n}", at, f"kind \u00e9 {n % 3}", body) for n, body in enumerate(BODIES)]
        text = LoggedMessage("m1", START, Message("user", (TextPart("tea"),)))
        made = await store.append(CHAT, [text, *entries, replace(text, id="m2")])
        found = await store.history(CHAT, made.id)
        assert found == (text, *entries, replace(text, id="m2"))
        assert [type(entry.body) for entry in found if isinstance(entry, Recorded)] == [type(body) for body in BODIES]
        assert found[1].at.tzinfo is UTC

    async def test_recorded_entries_are_read_alone(self, store: CheckpointStore) -> None:
        """In order, of one kind or of all, up to any checkpoint and behind any position."""
        assert await store.recorded(CHAT) == ()
        first = await store.append(CHAT, [a_message("m1"), a_record("r1", 1, kind="a"), a_record("r2", b"2", kind="b")])
        await store.append(CHAT, [a_record("r3", {"n": 3}, kind="a"), a_message("m2")])
        found = [a_record("r1", 1, kind="a"), a_record("r2", b"2", kind="b"), a_record("r3", {"n": 3}, kind="a")]
        assert [*await store.recorded(CHAT)] == found
        assert [*await store.recorded(CHAT, kind="a")] == [found[0], found[2]]
        assert [*await store.recorded(CHAT, first.id, kind="a")] == [found[0]]
        assert [*await store.recorded(CHAT, after=2)] == found[1:]
        assert [*await store.recorded(CHAT, first.id, after=2)] == [found[1]]
        assert await store.recorded(CHAT, kind="none") == await store.recorded(CHAT, after=99) == ()
        with pytest.raises(NotFound):
            await store.recorded(CHAT, "nowhere")
        with pytest.raises(ScopeRequired):
            await store.recorded(ALICE)

    async def test_bodies_can_be_left_out(self, store: CheckpointStore) -> None:
        """The entries are there, in their places; of recorded ones the body is None."""
        entries = [a_message("m1"), a_record("r1", {"n": 1}), a_record("r2", b"x"), a_message("m2")]
        made = await store.append(CHAT, entries)
        bare = (entries[0], a_record("r1"), a_record("r2"), entries[3])
        assert await store.history(CHAT, made.id, bodies=False) == bare
        assert await store.history(CHAT, made.id, bodies=False, after=2) == bare[2:]
        assert await store.history(CHAT, made.id) == tuple(entries)

    async def test_equal_bodies_come_back_from_every_place(self, store: CheckpointStore) -> None:
        """Stored once or not: also when the first to bring it is gone, and beside a part of the same bytes."""
        body = b'{"type":"text","text":"same"}'
        other = ALICE.for_session("other")
        entries = [a_record("r1", body), a_record("r2", {"type": "text", "text": "same"}), a_message("m1", "same")]
        await store.append(CHAT, entries)
        made = await store.append(other, entries[::-1])
        await store.forget(CHAT)
        assert await store.history(other, made.id) == tuple(entries[::-1])

    async def test_what_was_recorded_does_not_change_from_outside(self, store: CheckpointStore) -> None:
        """Neither the value that was given nor the one that was got is the store's own."""
        body = {"at": ["tea"]}
        entry = a_record("r1", body)
        body["at"].append("early")
        made = await store.append(CHAT, [entry])
        held: Any = entry.body
        held["at"].append("late")
        for _ in range(2):
            (found,) = await store.recorded(CHAT, made.id)
            got: Any = found.body
            assert got == {"at": ["tea"]}
            got["at"].append("milk")

    async def test_a_log_is_read_from_a_position_on(self, store: CheckpointStore) -> None:
        """What is behind it, and no more, for every checkpoint and every position."""
        first = await save(store, CHAT, "c1", "a", "b", "c")
        second = await save(store, CHAT, "c2", after=first, entries=())
        third = await save(store, CHAT, "c3", "d", after=second)
        await save(store, CHAT, "c4", "e", "f", after=third)
        await save(store, CHAT, "c5", "g", after=first)
        await store.delete(CHAT, "c1")
        for id in ("c2", "c3", "c4", "c5"):
            whole = await store.history(CHAT, id)
            for after in range(len(whole) + 2):
                assert await store.history(CHAT, id, after=after) == whole[after:]
        with pytest.raises(UsageError):
            await store.history(CHAT, "c4", after=-1)
        with pytest.raises(NotFound):
            await store.history(CHAT, "c1", after=1)

    @needs(Forks)
    async def test_a_fork_is_read_from_a_position_on(self, store: ForkingPruningStore) -> None:
        """Positions count from the beginning of the source."""
        await store.append(CHAT, [a_message("m1"), a_record("r1", b"1")])
        source = await store.append(CHAT, [a_message("m2")])
        fork = await store.fork(CHAT, source.id, session_id="fork")
        made = await store.append(FORK, [a_record("r2", [2])])
        assert await store.history(FORK, fork.id, after=2) == (a_message("m2"),)
        assert await store.history(FORK, made.id, after=1) == (
            a_record("r1", b"1"),
            a_message("m2"),
            a_record("r2", [2]),
        )
        assert await store.recorded(FORK) == (a_record("r1", b"1"), a_record("r2", [2]))
        await store.forget(CHAT)
        assert await store.recorded(FORK) == (a_record("r1", b"1"), a_record("r2", [2]))


class AttributeLaws:
    """The laws of attributes, and of lists that start at a checkpoint."""

    async def test_attributes_are_found_among_many(self, store: CheckpointStore) -> None:
        """Old ones and new ones, in the order of saving, from a checkpoint on, and none of another session."""
        for n in range(230):
            await store.append(CHAT, (), id=f"c{n}", attributes={"kind": "rare" if n in {3, 120} else "common"})
        await store.append(ALICE.for_session("other"), (), id="elsewhere", attributes={"kind": "rare"})
        rare = {"kind": "rare"}
        assert [one.id for one in await store.list(CHAT, attributes=rare)] == ["c120", "c3"]
        assert [one.id for one in await store.list(CHAT, attributes=rare, limit=1)] == ["c120"]
        assert [one.id for one in await store.list(CHAT, attributes=rare, before="c120")] == ["c3"]
        assert [one.id for one in await store.list(ALICE, attributes=rare, limit=2)] == ["elsewhere", "c120"]
        common = await store.list(CHAT, attributes={"kind": "common"}, before="c121", limit=2)
        assert [one.id for one in common] == ["c119", "c118"]
        assert [one.id for one in await store.list(CHAT, before="c110", limit=1)] == ["c109"]
        await store.delete(CHAT, "c120")
        assert [one.id for one in await store.list(CHAT, attributes=rare, limit=1)] == ["c3"]

    async def test_attributes_come_back(self, store: CheckpointStore) -> None:
        """Whatever text they are; a list has those that are equal."""
        for n, name in enumerate(NAMES_OF_ATTRIBUTES):
            await store.append(CHAT, (), attributes={name: NAMES_OF_ATTRIBUTES[-n - 1], "all": "yes", "empty": ""})
        for n, name in enumerate(NAMES_OF_ATTRIBUTES):
            value = NAMES_OF_ATTRIBUTES[-n - 1]
            (found,) = await store.list(CHAT, attributes={name: value})
            assert dict(found.attributes) == {name: value, "all": "yes", "empty": ""}
            assert await store.list(CHAT, attributes={name: f"{value} "}) == ()
            assert await store.list(ALICE, attributes={name: value, "all": "yes"}) == (found,)
            assert await store.list(CHAT, attributes={name: value, "all": "no"}) == ()
            assert await store.list(CHAT, attributes={name: ""}) == ()
        assert await store.list(CHAT, attributes={"all": "yes", "empty": ""}) == await store.list(CHAT)
        assert await store.list(BOB, attributes={"all": "yes"}) == ()

    async def test_a_limit_counts_what_fits(self, store: CheckpointStore) -> None:
        """Last saved first, across sessions, and checkpoints without attributes never fit."""
        other = ALICE.for_session("other")
        await save(store, CHAT, "plain", "x")
        for n in range(6):
            scope = CHAT if n % 2 else other
            await store.append(scope, (), id=f"k{n}", attributes={"even": "no" if n % 2 else "yes", "n": str(n)})
        await save(store, other, "late", after=await store.load(other))
        assert [one.id for one in await store.list(ALICE, attributes={"even": "yes"}, limit=2)] == ["k4", "k2"]
        assert [one.id for one in await store.list(CHAT, attributes={"even": "no"}, limit=2)] == ["k5", "k3"]
        assert await store.list(CHAT, attributes={"even": "yes"}) == ()
        assert [one.id for one in await store.list(CHAT, attributes={})] == ["k5", "k3", "k1", "plain"]
        with pytest.raises(UsageError):
            await store.list(CHAT, attributes={"even": 1})  # pyright: ignore[reportArgumentType]

    async def test_a_list_goes_on_before_a_checkpoint(self, store: CheckpointStore) -> None:
        """With the limit it is a page, and with attributes a page of those."""
        for n in range(7):
            await store.append(CHAT, (), id=f"k{n}", attributes={"odd": str(n % 2)})
        assert [one.id for one in await store.list(CHAT, before="k4", limit=2)] == ["k3", "k2"]
        assert [one.id for one in await store.list(CHAT, before="k2")] == ["k1", "k0"]
        assert await store.list(CHAT, before="k0") == ()
        assert [one.id for one in await store.list(CHAT, before="k5", attributes={"odd": "1"}, limit=1)] == ["k3"]
        with pytest.raises(NotFound):
            await store.list(CHAT, before="nowhere")
        with pytest.raises(ScopeRequired):
            await store.list(ALICE, before="k3")
        with pytest.raises(UsageError):
            await store.list(CHAT, before="k3", limit=0)


class SessionLaws:
    """The laws of the list of sessions."""

    async def test_sessions_are_listed_with_times_and_counts(self, store: CheckpointStore, clock: FakeClock) -> None:
        """Last saved first; of a user all, of a session's scope that one."""
        assert await store.sessions(ALICE) == await store.sessions(CHAT) == ()
        other, begun = ALICE.for_session("caf\u00e9 '"), clock.now()
        await store.append(CHAT, [a_message("m1"), a_message("m2")])
        clock.advance(60)
        await store.append(other, [a_record("r1", b"x")])
        clock.advance(60)
        await store.append(CHAT, [a_message("m3")])
        await store.append(BOB.for_session("chat"), [a_message("m4")])
        chat = SavedSession(session_id="chat", first_at=begun, last_at=clock.now(), checkpoints=2, entries=3)
        at = begun + timedelta(seconds=60)
        second = SavedSession(session_id="caf\u00e9 '", first_at=at, last_at=at, checkpoints=1, entries=1)
        assert await store.sessions(ALICE) == (chat, second)
        assert await store.sessions(ALICE, limit=1) == (chat,)
        assert await store.sessions(CHAT) == (chat,)
        assert await store.sessions(other) == (second,)
        assert [one.checkpoints for one in await store.sessions(BOB)] == [1]
        with pytest.raises(UsageError):
            await store.sessions(ALICE, limit=0)

    async def test_a_session_that_is_gone_is_not_listed(self, store: CheckpointStore) -> None:
        """Counts follow what is deleted; entries are those of the newest log."""
        first = await save(store, CHAT, "c1", "a", "b")
        await save(store, CHAT, "c2", "c", after=first)
        await save(store, CHAT, "c3", "d", "e", "f", after=first)
        await save(store, ALICE.for_session("other"), "c1", "x")
        assert [(one.session_id, one.checkpoints, one.entries) for one in await store.sessions(CHAT)] == [
            ("chat", 3, 5)
        ]
        await store.delete(CHAT, "c3")
        assert [(one.checkpoints, one.entries) for one in await store.sessions(CHAT)] == [(2, 3)]
        assert [one.session_id for one in await store.sessions(ALICE)] == ["other", "chat"]
        await store.forget(CHAT)
        assert await store.sessions(CHAT) == ()
        assert [one.session_id for one in await store.sessions(ALICE)] == ["other"]

    @needs(Forks, PrunesCheckpoints)
    async def test_forks_and_pruned_sessions_are_counted(self, store: ForkingPruningStore, clock: FakeClock) -> None:
        """A fork counts the entries that it began with; times are those of checkpoints that are there."""
        await save_turns(store, CHAT, "c1", "c2", "c3")
        clock.advance(60)
        fork = await store.fork(CHAT, "c2", session_id="fork")
        await store.append(CHAT, [a_message("late")])
        await store.prune(CHAT, keep=1)
        due = [("chat", 1, 7, clock.now()), ("fork", 1, 4, fork.at)]
        found = await store.sessions(ALICE)
        assert [(one.session_id, one.checkpoints, one.entries, one.first_at) for one in found] == due


class ErasureLaws:
    """The laws of forgetting what was recorded, appended and attributed."""

    async def test_nothing_recorded_is_found_after_forgetting(self, store: CheckpointStore) -> None:
        """In no call, and the session begins anew."""
        await store.append(CHAT, [a_record("r1", {"secret": 1}), a_message("m1")], attributes={"run": "x"}, once=True)
        await store.append(CHAT, [a_record("r2", b"secret")], once=True)
        receipt = await store.forget(CHAT)
        assert receipt.removed == {"checkpoint": 2, "entry": 3}
        calls: list[Callable[[], Any]] = [
            lambda: store.recorded(CHAT),
            lambda: store.sessions(ALICE),
            lambda: store.list(ALICE, attributes={"run": "x"}),
        ]
        assert [await call() for call in calls] == [(), (), ()]
        again = await store.append(CHAT, [a_record("r1", 1), a_message("m1")], once=True)
        assert (again.parent, again.position) == (None, 2)


class CheckpointStoreSuite(
    SaveLaws,
    ListLaws,
    ForgetLaws,
    ForkLaws,
    CheckpointPruneLaws,
    AppendLaws,
    RecordedLaws,
    AttributeLaws,
    SessionLaws,
    ErasureLaws,
    Suite,
):
    """Subclass it and override the fixture `store`. Optional laws are skipped where a store lacks their protocol."""

    @pytest.fixture
    async def store(self, clock: FakeClock) -> CheckpointStore:
        """An empty store that takes its time from `clock`; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `store`")
