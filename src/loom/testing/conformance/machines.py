"""Stores against plain models: random calls, the same answers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.log import Checkpoint, LogEntry, LoggedMessage, Recorded
from loom.core.message import Message, TextPart, ToolCallPart, Usage
from loom.core.record import Episode, Fact, Layer, Record, WorkingBlock, rank_key
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.protocols.memory_store import MemoryStore, Query
from loom.testing.conformance.checkpoint_store import NAMES, a_checkpoint
from loom.testing.conformance.isolation import WORDS
from loom.testing.conformance.suite import DAY, TWINS, a_block, a_fact, an_episode
from loom.testing.fakes import START, FakeClock


class Machine(RuleBasedStateMachine):
    """Base of the machines: all calls of one run are made from one event loop."""

    changed = False
    """Whether there was a change since the last comparison."""

    def start_loop(self) -> None:
        """Start the event loop of a run."""
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())

    def enter(self, stack: ExitStack, opened: AbstractAsyncContextManager[Any]) -> Any:
        """What a context manager gives that is entered on the loop, and left with the stack."""
        return stack.enter_context(self._portal.wrap_async_context_manager(opened))

    def ask(self, call: Any, *args: Any, **named: Any) -> Any:
        """Make one call and wait for it."""

        async def run() -> Any:
            return await call(*args, **named)

        return self._portal.call(run)

    @invariant()
    def holds_what_it_should(self) -> None:
        """After a change, what is stored is compared with what should be."""
        if self.changed:
            self.changed = False
            self.compare()

    def compare(self) -> None:
        """Compare all that is stored."""
        raise NotImplementedError(f"{type(self).__name__} has to say how to compare")

    def teardown(self) -> None:
        """Close what was opened."""
        if hasattr(self, "_stack"):
            self._stack.close()


class Oracle:
    """A memory store as plain dicts: the model that the real store is compared with."""

    def __init__(self) -> None:
        self.users: dict[Scope, dict[str, Record]] = {}

    def seen(self, scope: Scope, where: Filter | None = None) -> dict[str, Record]:
        """The records that the scope sees, by id."""
        of_user = self.users.get(scope.for_user(), {})
        return {id: of_user[id] for id in sorted(of_user) if _sees(scope, of_user[id], where)}

    def put(self, scope: Scope, records: list[Record]) -> tuple[type[Exception], ...]:
        """Write all, or say which errors are due; of several any may be raised."""
        of_user = dict(self.users.get(scope.for_user(), {}))
        due: list[type[Exception]] = []
        for record in records:
            if not _sees(scope, record, None):
                due.append(UsageError)
            stored = of_user.get(record.id)
            held = stored.version if isinstance(stored, WorkingBlock) else 0
            if isinstance(record, WorkingBlock) and record != stored and record.version != held + 1:
                due.append(StoreConflict)
            of_user[record.id] = record
        if not due:
            self.users[scope.for_user()] = of_user
        return tuple(due)

    def remove(self, scope: Scope, ids: set[str]) -> int:
        """Remove what the scope sees of these ids."""
        gone = ids & set(self.seen(scope))
        for id in gone:
            del self.users[scope.for_user()][id]
        return len(gone)

    def found(self, scope: Scope, query: Query, now: datetime) -> set[str]:
        """The ids that a search without a limit finds."""
        words = set(query.text.split())
        seen = self.seen(scope, query.where)
        return {id for id, r in seen.items() if _shown(r, query, now) and (not words or words & set(r.text.split()))}


def _sees(scope: Scope, record: Record, where: Filter | None) -> bool:
    in_session = scope.session_id is None or getattr(record, "session_id", scope.session_id) == scope.session_id
    return in_session and (where is None or where.matches(record))


def _shown(record: Record, query: Query, now: datetime) -> bool:
    if isinstance(record, Fact):
        return query.history or record.is_current(query.at or now, query.known_at or now)
    return query.archived or getattr(record, "archived_at", None) is None


WHO = st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from([None, None, None, "s1", "S1"]))
"""One of the two users of a run, and one of their sessions; few, so that calls meet what others left."""
IDS = st.sampled_from(["a", "A", "b", "a b", "%", "_", "'", "\u00e9", "e\u0301"])
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
TIMES = st.integers(0, 4).map(lambda day: START + day * DAY)
ENDS = st.none() | TIMES.map(lambda time: time + 4 * DAY)
SCALARS = st.sampled_from([1, 1.0, True, "1", None, 0.5, START, "", "tea"])
EPISODES = st.builds(
    an_episode, IDS, TEXTS, at=TIMES, recorded_at=TIMES, layer=st.sampled_from(Layer),
    session_id=st.sampled_from([None, "s1", "S1"]), speaker=st.none() | IDS, archived_at=st.none() | TIMES,
    attributes=st.dictionaries(st.sampled_from(["n", "N", "x y"]), SCALARS, max_size=2),
)  # fmt: skip
FACTS = st.builds(
    a_fact, IDS, TEXTS, recorded_at=TIMES, valid_from=st.none() | TIMES, valid_until=ENDS, superseded_at=ENDS
)
BLOCKS = st.builds(a_block, IDS, TEXTS | st.just(""), version=st.integers(1, 3))
RECORDS = st.lists(EPISODES | FACTS | BLOCKS, min_size=1, max_size=4)
LEAVES = (
    st.builds(Eq, st.sampled_from(["id", "speaker", "session_id", "meta.n", "meta.N", "meta.x y"]), SCALARS | IDS)
    | st.builds(Eq, st.just("kind"), st.sampled_from(["episode", "fact", "block"]))
    | st.builds(In, st.just("layer"), st.lists(st.sampled_from(Layer), max_size=2).map(tuple))
    | st.builds(Range, st.sampled_from(["at", "recorded_at", "valid_from"]), low=TIMES, high=st.none() | TIMES)
    | st.builds(Range, st.sampled_from(["id", "text"]), low=IDS)
)
FILTERS = st.recursive(
    LEAVES,
    lambda part: st.builds(Not, part) | st.builds(And, part, part) | st.builds(Or, part, part),
    max_leaves=4,
)
QUERIES = st.builds(
    Query, text=TEXTS | st.just(""), where=st.none() | FILTERS, limit=st.just(1000), at=st.none() | TIMES,
    known_at=st.none() | TIMES, history=st.booleans(), archived=st.booleans(),
)  # fmt: skip


Who: TypeAlias = tuple[int, str | None]


class MemoryStoreMachine(Machine):
    """Subclass it and say how a store is opened; its `TestCase` is the test.

    The store is opened and closed in one task.
    """

    def open_store(self, clock: FakeClock) -> AbstractAsyncContextManager[MemoryStore]:
        """A new, empty store that takes its time from `clock`."""
        raise NotImplementedError(f"{type(self).__name__} has to say how to open a store")

    @initialize(users=st.sampled_from(TWINS))
    def open(self, users: tuple[str, str]) -> None:
        """Start with nothing, and with two users whose ids look alike."""
        self.users = users
        self.clock, self.oracle = FakeClock(START + 2 * DAY), Oracle()
        self.start_loop()
        self.store: MemoryStore = self.enter(self._stack, self.open_store(self.clock))

    def scope(self, who: Who) -> Scope:
        """The scope of one of the two users."""
        return Scope("default", self.users[who[0]], who[1])

    @rule(who=WHO, records=RECORDS)
    def put(self, who: Who, records: list[Record]) -> None:
        """A write happens, or is refused with the error that is due."""
        scope = self.scope(who)
        self._put(scope, records)

    @rule(who=WHO, records=RECORDS)
    def put_into_its_session(self, who: Who, records: list[Record]) -> None:
        """Like put, with episodes that the scope sees."""
        scope = self.scope(who)
        session = scope.session_id
        fit = [replace(r, session_id=session) if isinstance(r, Episode) and session else r for r in records]
        self._put(scope, fit)

    def _put(self, scope: Scope, records: list[Record]) -> None:
        self.changed = True
        due = self.oracle.put(scope, records)
        with pytest.raises(due) if due else nullcontext():
            self.ask(self.store.put, scope, *records)

    @rule(who=WHO, query=QUERIES)
    def search(self, who: Who, query: Query) -> None:
        """The hits are those of the oracle, in order, and a limit cuts the end off."""
        scope = self.scope(who)
        hits = self.ask(self.store.search, scope, query)
        assert {hit.item.id for hit in hits} == self.oracle.found(scope, query, self.clock.now())
        seen = self.oracle.seen(scope)
        assert [hit.item for hit in hits] == [seen[hit.item.id] for hit in hits]
        assert list(hits) == sorted(hits, key=rank_key)
        assert self.ask(self.store.search, scope, replace(query, limit=2)) == hits[:2]

    @rule(who=WHO, where=FILTERS, after=st.none() | IDS)
    def list_page(self, who: Who, where: Filter, after: str | None) -> None:
        """A page is a slice of what the oracle holds."""
        scope = self.scope(who)
        rest = [r for id, r in self.oracle.seen(scope, where).items() if after is None or id > after]
        assert list(self.ask(self.store.list, scope, where=where, after=after, limit=2)) == rest[:2]
        assert self.ask(self.store.count, scope, where=where) == len(self.oracle.seen(scope, where))

    @rule(who=WHO, ids=st.sets(IDS | IDS.map("block:{}".format), max_size=3))
    def delete(self, who: Who, ids: set[str]) -> None:
        """As many go as were there."""
        scope = self.scope(who)
        self.changed = True
        assert self.ask(self.store.delete, scope, *ids) == self.oracle.remove(scope, ids)

    @rule(who=WHO)
    def forget(self, who: Who) -> None:
        """A user goes, or the episodes of a session."""
        scope = self.scope(who)
        self.changed = True
        seen = self.oracle.seen(scope)
        gone = {id for id, r in seen.items() if scope.session_id is None or isinstance(r, Episode)}
        removed = self.ask(self.store.forget, scope).removed
        assert sum(removed.get(kind, 0) for kind in ("episode", "fact", "block")) == len(gone)
        self.oracle.remove(scope, gone)

    def compare(self) -> None:
        """Every user has exactly the records they should have."""
        for user, records in self.oracle.users.items():
            assert list(self.ask(self.store.list, user, limit=1000)) == [records[id] for id in sorted(records)]


# A checkpoint store against plain lists: random calls, and after each the same answers.


@dataclass(frozen=True)
class SavedLog:
    """A save as the oracle has it: with its whole log."""

    checkpoint: Checkpoint
    added: tuple[LogEntry, ...]
    history: tuple[LogEntry, ...]


class CheckpointOracle:
    """A checkpoint store in lists: the saves of all scopes, in order, each with its whole log."""

    def __init__(self) -> None:
        self.saves: list[tuple[Scope, SavedLog]] = []

    def of(self, scope: Scope) -> list[SavedLog]:
        """The saves that a scope covers, last saved first."""
        return [saved for owner, saved in reversed(self.saves) if scope.covers(owner)]

    def find(self, scope: Scope, id: str | None) -> SavedLog | None:
        """A save by its id, or the last one."""
        return next((saved for saved in self.of(scope) if id is None or saved.checkpoint.id == id), None)

    def save(
        self, scope: Scope, checkpoint: Checkpoint, entries: tuple[LogEntry, ...], head: str | None
    ) -> type[Exception] | None:
        """Save, or say which error is due."""
        held = self.find(scope, checkpoint.id)
        if held is not None:
            return None if (held.checkpoint, held.added) == (checkpoint, entries) else StoreConflict
        newest = self.find(scope, None)
        if head != (newest and newest.checkpoint.id):
            return StoreConflict
        parent = None if checkpoint.parent is None else self.find(scope, checkpoint.parent)
        if checkpoint.parent is not None and parent is None:
            return UsageError
        before = parent.history if parent else ()
        if checkpoint.position != len(before) + len(entries):
            return UsageError
        self.saves.append((scope, SavedLog(checkpoint, entries, before + entries)))
        return None

    def remove(self, scope: Scope, ids: set[str]) -> None:
        """Drop these saves of a scope."""
        self.saves = [(o, s) for o, s in self.saves if not (scope.covers(o) and s.checkpoint.id in ids)]


CheckpointOwner: TypeAlias = tuple[int, int]
OWNERS = st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (1, 0)])
"""One of two users and one of three sessions; mostly the first, so that calls meet what others left."""
USUAL_IDS = ("a", "A", "b", "a b", "%", "'", "\u00e9")
CHECKPOINT_IDS = st.sampled_from(USUAL_IDS)
CHECKPOINT_TEXTS = st.sampled_from(["", "tea", "tea", "milk", "\u00e9\0\ud83d", "x" * 600])
MESSAGES = st.one_of(
    CHECKPOINT_TEXTS.map(lambda text: Message("user", (TextPart(text), TextPart("tea")))),
    CHECKPOINT_TEXTS.map(lambda text: Message("assistant", (ToolCallPart("t", "look", {"q": [text]}),))),
)
ENTRY = st.one_of(
    st.builds(LoggedMessage, CHECKPOINT_IDS, st.just(START), MESSAGES),
    st.builds(Recorded, CHECKPOINT_IDS, st.just(START), st.just("test"), st.sampled_from(["tea", b"tea", {"q": [1]}])),
)
ENTRIES = st.lists(ENTRY, max_size=3).map(tuple)
CHECKPOINTS = st.builds(a_checkpoint, CHECKPOINT_IDS, parent=st.none() | CHECKPOINT_IDS, position=st.integers(0, 6))
USAGES = st.builds(Usage, input=st.integers(0, 3), output=st.integers(0, 3))


class CheckpointStoreMachine(Machine):
    """Subclass it and say how a store is opened; its `TestCase` is the test.

    A store that keeps nothing when it is closed says so with `is_durable = False`.
    """

    is_durable = True

    def open_store(self, clock: FakeClock) -> AbstractAsyncContextManager[CheckpointStore]:
        """The store of this run, empty at first; opened again it holds what it held."""
        raise NotImplementedError(f"{type(self).__name__} has to say how to open a store")

    @initialize(users=st.sampled_from(NAMES), sessions=st.sampled_from(NAMES))
    def open(self, users: tuple[str, str], sessions: tuple[str, str]) -> None:
        """Start with nothing, with two users and three sessions whose ids look alike."""
        self.users, self.sessions = users, (*sessions, "third")
        self.clock, self.oracle = FakeClock(), CheckpointOracle()
        self.start_loop()
        self._start()

    def _start(self) -> None:
        self._opened = self._stack.enter_context(ExitStack())
        self.store: Any = self.enter(self._opened, self.open_store(self.clock))
        self.changed = True

    def scope(self, who: CheckpointOwner) -> Scope:
        """The scope of a session."""
        return Scope("default", self.users[who[0]], self.sessions[who[1]])

    @precondition(lambda self: self.is_durable)
    @rule()
    def reopen(self) -> None:
        """Nothing is lost."""
        self._opened.close()
        self._start()

    @rule(who=OWNERS, turns=st.lists(st.tuples(ENTRIES, USAGES), min_size=1, max_size=3))
    def go_on(self, who: CheckpointOwner, turns: list[tuple[tuple[LogEntry, ...], Usage]]) -> None:
        """Some turns, each continuing the one before."""
        for entries, usage in turns:
            self._continue(self.scope(who), 0, entries, usage)

    @rule(who=OWNERS, after=st.integers(1, 4), entries=ENTRIES, usage=USAGES)
    def go_back(self, who: CheckpointOwner, after: int, entries: tuple[LogEntry, ...], usage: Usage) -> None:
        """A turn that continues an older checkpoint, or begins anew."""
        self._continue(self.scope(who), after, entries, usage)

    def _continue(self, scope: Scope, after: int, entries: tuple[LogEntry, ...], usage: Usage) -> None:
        held = self.oracle.of(scope)
        id = next((id for id in USUAL_IDS if self.oracle.find(scope, id) is None), f"n{len(held)}")
        parent = held[after] if after < len(held) else None
        before = len(parent.history) if parent else 0
        checkpoint = a_checkpoint(
            id, session_id=scope.session_id or "", position=before + len(entries), usage=usage,
            turn=len(held), parent=parent.checkpoint.id if parent else None,
        )  # fmt: skip
        self._save(scope, checkpoint, entries, held[0].checkpoint.id if held else None)

    @rule(who=OWNERS, made=CHECKPOINTS, entries=ENTRIES, head=st.none() | CHECKPOINT_IDS)
    def save_anything(
        self, who: CheckpointOwner, made: Checkpoint, entries: tuple[LogEntry, ...], head: str | None
    ) -> None:
        """A save that may not fit: the error is the one that is due."""
        scope = self.scope(who)
        self._save(scope, replace(made, session_id=scope.session_id or ""), entries, head)

    @rule(who=OWNERS, at=st.integers(0, 4), twist=st.booleans(), head=st.none() | CHECKPOINT_IDS)
    def save_again(self, who: CheckpointOwner, at: int, twist: bool, head: str | None) -> None:
        """The same save is a no-op, a changed one a conflict."""
        scope = self.scope(who)
        held = self.oracle.of(scope)
        if at < len(held):
            checkpoint = replace(held[at].checkpoint, turn=10**6) if twist else held[at].checkpoint
            self._save(scope, checkpoint, held[at].added, head)

    def _save(self, scope: Scope, checkpoint: Checkpoint, entries: tuple[LogEntry, ...], head: str | None) -> None:
        self.changed = True
        due = self.oracle.save(scope, checkpoint, entries, head)
        with pytest.raises(due) if due else nullcontext():
            self.ask(self.store.save, scope, checkpoint, entries=entries, head=head)

    @rule(who=OWNERS, entries=ENTRIES, once=st.booleans())
    def append(self, who: CheckpointOwner, entries: tuple[LogEntry, ...], once: bool) -> None:
        """Entries behind the newest checkpoint, all of them or those that its log does not hold."""
        scope, self.changed = self.scope(who), True
        newest = self.oracle.find(scope, None)
        before = newest.history if newest else ()
        held = {entry.id for entry in before} if once else set[str]()
        fresh = tuple({e.id: e for e in reversed(entries) if e.id not in held}.values())[::-1] if once else entries
        made = self.ask(self.store.append, scope, entries, once=once)
        if newest is not None and once and entries and not fresh:
            assert made == newest.checkpoint
            return
        view = newest.checkpoint if newest else a_checkpoint(session_id=scope.session_id or "")
        due = replace(
            view, id=made.id, at=self.clock.now(), position=len(before) + len(fresh),
            parent=newest.checkpoint.id if newest else None, format_version=made.format_version,
        )  # fmt: skip
        assert made == due
        self.oracle.saves.append((scope, SavedLog(made, fresh, before + fresh)))

    @rule(who=OWNERS, at=st.integers(0, 4), after=st.integers(0, 6))
    def read_from(self, who: CheckpointOwner, at: int, after: int) -> None:
        """A part of a log, and the sessions of the user."""
        scope = self.scope(who)
        held = self.oracle.of(scope)
        if at < len(held):
            id, history = held[at].checkpoint.id, held[at].history
            assert self.ask(self.store.history, scope, id, after=after) == history[after:]
            recorded = tuple(entry for entry in history[after:] if isinstance(entry, Recorded))
            assert self.ask(self.store.recorded, scope, id, kind="test", after=after) == recorded
        newest = {saved.checkpoint.session_id: saved for saved in reversed(self.oracle.of(scope.for_user()))}
        counted = {one.session_id: one.entries for one in self.ask(self.store.sessions, scope.for_user())}
        assert counted == {id: len(saved.history) for id, saved in newest.items()}

    @rule(who=OWNERS, at=st.integers(0, 4), id=CHECKPOINT_IDS)
    def delete(self, who: CheckpointOwner, at: int, id: str) -> None:
        """It goes if it was there."""
        scope = self.scope(who)
        held = self.oracle.of(scope)
        id = held[at].checkpoint.id if at < len(held) else id
        self.changed = True
        assert self.ask(self.store.delete, scope, id) is (self.oracle.find(scope, id) is not None)
        self.oracle.remove(scope, {id})

    @rule(who=OWNERS, what=st.sampled_from(["nothing", "nothing", "session", "session", "user"]))
    def forget(self, who: CheckpointOwner, what: str) -> None:
        """A session goes, or all sessions of a user; more often nothing, or little would grow."""
        if what == "nothing":
            return
        scope = self.scope(who).for_user() if what == "user" else self.scope(who)
        self.changed = True
        held = self.oracle.of(scope)
        assert self.ask(self.store.forget, scope).removed.get("checkpoint", 0) == len(held)
        self.oracle.remove(scope, {saved.checkpoint.id for saved in held})

    @precondition(lambda self: isinstance(getattr(self, "store", None), Forks))
    @rule(who=OWNERS, at=st.integers(0, 3), other=st.sampled_from([0, 1, 2]))
    def fork(self, who: CheckpointOwner, at: int, other: int) -> None:
        """A new session begins with the log of the source."""
        scope = self.scope(who)
        held = self.oracle.of(scope)
        source = held[at % len(held)] if held else None
        into = scope.for_session(self.sessions[other])
        id = source.checkpoint.id if source else "nowhere"
        due = NotFound if source is None else StoreConflict if self.oracle.of(into) else None
        self.changed = True
        with pytest.raises(due) if due else nullcontext():
            fork = self.ask(self.store.fork, scope, id, session_id=into.session_id)
            assert source is not None
            made = replace(source.checkpoint, id=fork.id, session_id=into.session_id, parent=id, at=self.clock.now())
            assert fork == made
            self.oracle.saves.append((into, SavedLog(made, (), source.history)))

    @precondition(lambda self: isinstance(getattr(self, "store", None), PrunesCheckpoints))
    @rule(who=OWNERS, keep=st.integers(1, 3))
    def prune(self, who: CheckpointOwner, keep: int) -> None:
        """All but the newest go."""
        scope = self.scope(who)
        self.changed = True
        gone = {saved.checkpoint.id for saved in self.oracle.of(scope)[keep:]}
        assert set(self.ask(self.store.prune, scope, keep=keep)) == gone
        self.oracle.remove(scope, gone)

    def compare(self) -> None:
        """Every session has exactly what it should have, with every log."""
        for user in {self.scope((n, 0)).for_user() for n in (0, 1)}:
            due = self.oracle.of(user)
            assert list(self.ask(self.store.list, user)) == [saved.checkpoint for saved in due]
            for saved in due:
                scope = user.for_session(saved.checkpoint.session_id)
                assert self.ask(self.store.load, scope, saved.checkpoint.id) == saved.checkpoint
                assert self.ask(self.store.history, scope, saved.checkpoint.id) == saved.history
            for session in self.sessions:
                newest = self.oracle.find(user.for_session(session), None)
                assert self.ask(self.store.load, user.for_session(session)) == (newest and newest.checkpoint)
