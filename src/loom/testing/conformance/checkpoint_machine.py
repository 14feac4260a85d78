"""A checkpoint store against plain lists: random calls, and after each the same answers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loom.core.checkpoint import Checkpoint, LogEntry, LoggedMessage
from loom.core.message import Message, TextPart, ToolCallPart, Usage
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks, PrunesCheckpoints
from loom.testing.clock import START, FakeClock
from loom.testing.conformance.checkpoint_samples import NAMES, a_checkpoint


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


def _user_text(text: str) -> Message:
    return Message("user", (TextPart(text), TextPart("tea")))


def _tool_call(text: str) -> Message:
    return Message("assistant", (ToolCallPart("t", "look", {"q": [text]}),))


Who: TypeAlias = tuple[int, int]
WHO = st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (1, 0)])
"""One of two users and one of three sessions; mostly the first, so that calls meet what others left."""
USUAL_IDS = ("a", "A", "b", "a b", "%", "'", "\u00e9")
IDS = st.sampled_from(USUAL_IDS)
TEXTS = st.sampled_from(["", "tea", "tea", "milk", "\u00e9\0\ud83d", "x" * 600])
MESSAGES = TEXTS.map(_user_text) | TEXTS.map(_tool_call)
ENTRIES = st.lists(st.builds(LoggedMessage, IDS, st.just(START), MESSAGES), max_size=3).map(tuple)
USAGES = st.builds(Usage, input=st.integers(0, 3), output=st.integers(0, 3))


class CheckpointStoreMachine(RuleBasedStateMachine):
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
        self._portal_stack = ExitStack()
        self._portal = self._portal_stack.enter_context(start_blocking_portal())
        self._start()

    def _start(self) -> None:
        self._stack = ExitStack()
        opened = self._portal.wrap_async_context_manager(self.open_store(self.clock))
        self.store: Any = self._stack.enter_context(opened)
        self.changed = True

    def teardown(self) -> None:
        """Close what was opened."""
        if hasattr(self, "_portal_stack"):
            if hasattr(self, "_stack"):
                self._stack.close()
            self._portal_stack.close()

    def scope(self, who: Who) -> Scope:
        """The scope of a session."""
        return Scope("default", self.users[who[0]], self.sessions[who[1]])

    def ask(self, call: Any, *args: Any, **named: Any) -> Any:
        """Make one call of the store and wait for it."""

        async def run() -> Any:
            return await call(*args, **named)

        return self._portal.call(run)

    @precondition(lambda self: self.is_durable)
    @rule()
    def reopen(self) -> None:
        """Nothing is lost."""
        self._stack.close()
        self._start()

    @rule(who=WHO, turns=st.lists(st.tuples(ENTRIES, USAGES), min_size=1, max_size=3))
    def go_on(self, who: Who, turns: list[tuple[tuple[LogEntry, ...], Usage]]) -> None:
        """Some turns, each continuing the one before."""
        for entries, usage in turns:
            self._continue(self.scope(who), 0, entries, usage)

    @rule(who=WHO, after=st.integers(1, 4), entries=ENTRIES, usage=USAGES)
    def go_back(self, who: Who, after: int, entries: tuple[LogEntry, ...], usage: Usage) -> None:
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

    @rule(who=WHO, id=IDS, parent=st.none() | IDS, position=st.integers(0, 6), entries=ENTRIES, head=st.none() | IDS)
    def save_anything(
        self, *, who: Who, id: str, parent: str | None, position: int, entries: tuple[LogEntry, ...], head: str | None
    ) -> None:
        """A save that may not fit: the error is the one that is due."""
        scope = self.scope(who)
        checkpoint = a_checkpoint(id, session_id=scope.session_id or "", position=position, parent=parent)
        self._save(scope, checkpoint, entries, head)

    @rule(who=WHO, at=st.integers(0, 4), twist=st.booleans(), head=st.none() | IDS)
    def save_again(self, who: Who, at: int, twist: bool, head: str | None) -> None:
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

    @rule(who=WHO, at=st.integers(0, 4), id=IDS)
    def delete(self, who: Who, at: int, id: str) -> None:
        """It goes if it was there."""
        scope = self.scope(who)
        held = self.oracle.of(scope)
        id = held[at].checkpoint.id if at < len(held) else id
        self.changed = True
        assert self.ask(self.store.delete, scope, id) is (self.oracle.find(scope, id) is not None)
        self.oracle.remove(scope, {id})

    @rule(who=WHO, what=st.sampled_from(["nothing", "nothing", "session", "session", "user"]))
    def forget(self, who: Who, what: str) -> None:
        """A session goes, or all sessions of a user; more often nothing, or little would grow."""
        if what == "nothing":
            return
        scope = self.scope(who).for_user() if what == "user" else self.scope(who)
        self.changed = True
        held = self.oracle.of(scope)
        assert self.ask(self.store.forget, scope).removed.get("checkpoint", 0) == len(held)
        self.oracle.remove(scope, {saved.checkpoint.id for saved in held})

    @precondition(lambda self: isinstance(getattr(self, "store", None), Forks))
    @rule(who=WHO, at=st.integers(0, 3), other=st.sampled_from([0, 1, 2]))
    def fork(self, who: Who, at: int, other: int) -> None:
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
    @rule(who=WHO, keep=st.integers(1, 3))
    def prune(self, who: Who, keep: int) -> None:
        """All but the newest go."""
        scope = self.scope(who)
        self.changed = True
        gone = {saved.checkpoint.id for saved in self.oracle.of(scope)[keep:]}
        assert set(self.ask(self.store.prune, scope, keep=keep)) == gone
        self.oracle.remove(scope, gone)

    @invariant()
    def holds_what_the_oracle_holds(self) -> None:
        """After a change, every session has exactly what it should have, with every log."""
        if not getattr(self, "changed", False):
            return
        self.changed = False
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
