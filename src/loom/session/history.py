"""The history of a session: its log, where it may be cut, and how it is saved and restored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import dropwhile, takewhile
from typing import Any, Final, cast

from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.checks import MAX_TEXT, as_utc, check_id, check_length
from loom.core.clock import Clock, RecordIds
from loom.core.log import (
    Checkpoint,
    Compaction,
    LogEntry,
    LoggedMessage,
    Recorded,
    Replacement,
    Shown,
    end_of_turn,
    recorded_again,
    shown_of,
)
from loom.core.message import JSON, Message, TextPart, ToolCallPart, ToolResultPart, Usage, from_mapping
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks
from loom.session.compaction.summary_message import is_record
from loom.telemetry import Bill

SPILL: Final = "spill"
"""The strategy of a rewrite that only shortens one message of tool results."""
NOT_USABLE: Final = "This is not a usable answer: "
"""How a message begins that asks a model for its answer once more."""
_INTERRUPTED: Final = "the run was interrupted before this call answered; whether it had an effect is not known"


class History:
    """One session's log and its view, kept in step with the conversation of a context.

    Entries of the log never change; a compaction is an entry like a message. The model is shown the messages with the
    compactions in `applied`.
    """

    def __init__(self, context: Context, *, clock: Clock, ids: RecordIds) -> None:
        self._context = context
        self._clock = clock
        self._ids = ids
        self.log: list[LogEntry] = []
        self.applied: tuple[str, ...] = ()
        self.shown: list[Shown] = []
        self.pins: dict[str, None] = {}
        """Ids of messages that no compaction may touch."""
        self.turn = 0
        """Finished turns."""
        self.usage = Usage()
        """Of all calls, compactions included."""
        self.unfinished = False
        """Whether the log ends inside a turn."""
        self._entries: dict[str, MessageEntry] = {}
        begun = [Message(entry.show().role or "user", entry.show().parts) for entry in context.convo]
        context.convo.clear()
        for message in begun:
            self.append(message)
        self._begun = tuple(self.log)

    def append(self, message: Message) -> LoggedMessage:
        """Add a message at the end."""
        entry = MessageEntry(message)  # first, because it refuses what no provider takes
        logged = LoggedMessage(self._ids.next_id(), self._clock.now(), message)
        self.log.append(logged)
        self.shown.append(Shown(logged.id, message))
        self._entries[logged.id] = entry
        self._context.convo.add(entry)
        return logged

    def now(self) -> datetime:
        """The time that an entry would get."""
        return self._clock.now()

    def record(self, kind: str, body: JSON) -> Recorded:
        """Add an entry that no model is shown; the body is JSON that nobody changes any more."""
        recorded = recorded_again(self._ids.next_id(), self._clock.now(), kind, body)
        self.log.append(recorded)
        return recorded

    def drop_bodies(self, start: int, end: int) -> None:
        """Keep only the places of what was recorded: it is saved, and read from the store where it is wanted."""
        for place in range(start, end):
            entry = self.log[place]
            if isinstance(entry, Recorded):
                self.log[place] = recorded_again(entry.id, entry.at, entry.kind, None)

    def spend(self, bill: Bill) -> None:
        """Count the tokens of a bill."""
        self.usage += bill.usage

    def withdraw(self, position: int) -> None:
        """Take back the messages that the log gained since it had this length.

        A compaction made since stays, unless it covers one of them; what was recorded stays.
        """
        gone = {entry.id for entry in self.log[position:] if isinstance(entry, LoggedMessage)}
        made = [entry for entry in self.log[position:] if isinstance(entry, Compaction)]
        kept = list(takewhile(lambda compaction: gone.isdisjoint(compaction.covered), made))
        stays = {compaction.id for compaction in kept}
        self.log[position:] = [e for e in self.log[position:] if isinstance(e, Recorded) or e.id in stays]
        entries = [self._entries.pop(id) for id in gone]
        if len(kept) < len(made):
            undone = {compaction.id for compaction in made[len(kept) :]}
            self.applied = tuple(id for id in self.applied if id not in undone)
            self._show(shown_of(self.log, self.applied))
            return
        self.shown = [item for item in self.shown if item.id not in gone]
        self._context.convo.drop(entries)

    def rewrite(self, strategy: str, replacements: Sequence[Replacement], *, before: int, after: int) -> Compaction:
        """Show the history with a compaction more; `before` and `after` are its tokens."""
        made = Compaction(
            id=self._ids.next_id(),
            at=self._clock.now(),
            strategy=strategy,
            replacements=tuple(replacements),
            tokens_before=before,
            tokens_after=after,
        )
        shown = None if self._replace_last(made) else made.apply(self.shown)
        self.log.append(made)
        self.applied = (*self.applied, made.id)
        if shown is not None:
            self._show(shown)
        return made

    def _replace_last(self, made: Compaction) -> bool:
        """Apply a compaction that rewrites the last message alone, before it was sent: all others stay as they are."""
        (first, *more), last = made.replacements, self.shown[-1] if self.shown else None
        if more or last is None or first.covers != (last.id,) or first.message is None or last.id not in self._entries:
            return False
        entry = MessageEntry(first.message)
        if not self._context.replace_unsent(self._entries[last.id], entry):
            return False
        self.shown[-1] = Shown(f"{made.id}.0", first.message)
        self._entries[self.shown[-1].id] = entry
        return True

    @property
    def last_compaction(self) -> str | None:
        """The compaction applied last; results that were only shortened do not count."""
        return next((id for id in reversed(self.applied) if self.compaction(id).strategy != SPILL), None)

    def undo(self, handle: str) -> None:
        """Show again what a compaction replaced."""
        if handle not in self.applied:
            known = ", ".join(self.applied) or "none"
            raise NotFound(f"no compaction {handle!r} applies here; those that do: {known}")
        applied = tuple(id for id in self.applied if id != handle)
        shown = shown_of(self.log, applied)
        self.applied = applied
        self._show(shown, void=_behind(self.log, {handle}))

    def restore(self, checkpoint: Checkpoint, log: Iterable[LogEntry], *, trust_thinking: bool) -> None:
        """Become the history of a checkpoint, with its counts."""
        self.load(log, checkpoint.compactions, trust_thinking=trust_thinking)
        self.pins = dict.fromkeys(checkpoint.pins)
        self.turn, self.usage, self.unfinished = checkpoint.turn, checkpoint.usage, checkpoint.unfinished

    def begin_again(self, *, trust_thinking: bool) -> None:
        """Go back to before the first turn."""
        self.load(self._begun, (), trust_thinking=trust_thinking)
        self.pins, self.turn, self.usage, self.unfinished = {}, 0, Usage(), False

    def adopt(self, log: Sequence[LogEntry], *, turn: int, usage: Usage) -> None:
        """Become a conversation from elsewhere; its thinking is bound to a prompt that is not known here."""
        self.load(log, (), trust_thinking=False)
        self.pins, self.turn, self.usage, self.unfinished = {}, turn, usage, False

    def follow(self, other: History) -> None:
        """Become what another history is that began with the same log."""
        self.load(other.log, other.applied)
        self.pins = dict(other.pins)
        self.turn, self.usage, self.unfinished = other.turn, other.usage, other.unfinished

    def load(self, log: Iterable[LogEntry], applied: Sequence[str], *, trust_thinking: bool = True) -> None:
        """Show another log; thinking that is not trusted is void, for a model that binds it to the prompt."""
        log = list(log)
        shown = shown_of(log, applied)  # first, because it refuses what does not fit
        self.log, self.applied = log, tuple(applied)
        self._entries = {}
        undone = {entry.id for entry in log if isinstance(entry, Compaction)} - {*applied}
        self._show(shown, void=_behind(log, undone) if trust_thinking else {item.id for item in shown})

    def entry(self, id: str) -> MessageEntry | None:
        """The entry of the context that shows a message; None where there is nothing to show of it."""
        return self._entries.get(id)

    def compaction(self, handle: str) -> Compaction:
        """The compaction with this id, applied or not."""
        for entry in self.log:
            if isinstance(entry, Compaction) and entry.id == handle:
                return entry
        raise NotFound(f"this session has no compaction {handle!r}")

    def find_cut_turn(self, session_id: str) -> LoggedMessage:
        """The message that began the last turn, which was cut off.

        Raises:
            UsageError: the last turn is complete, or there is none.
        """
        messages = [entry for entry in self.log if isinstance(entry, LoggedMessage)]
        request = next((entry for entry in reversed(messages) if _is_request(entry.message)), None)
        waits = bool(messages) and any(isinstance(part, ToolResultPart) for part in messages[-1].message.parts)
        if request is None or not (self.unfinished or waits or self.missing_results()):
            reason = "its last turn is complete; give it a message" if request else "nothing was said in it yet"
            raise UsageError(f"session {session_id!r} has nothing to resume: {reason}")
        return request

    def missing_results(self) -> list[Message]:
        """Results for the calls of the last message that have none."""
        last = self.shown[-1].message if self.shown else None
        calls = [part for part in last.parts if isinstance(part, ToolCallPart)] if last else []
        results = tuple(ToolResultPart(call.id, (TextPart(_INTERRUPTED),), is_error=True) for call in calls)
        return [Message("user", results)] if results else []

    def expand(self, id: str) -> tuple[LoggedMessage, ...]:
        """The messages of the log behind something shown: a summary, a message, or a whole compaction."""
        messages = {e.id: e for e in self.log if isinstance(e, LoggedMessage)}
        compactions = {e.id: e for e in self.log if isinstance(e, Compaction)}
        if id in compactions:
            waiting = [covered for r in compactions[id].replacements for covered in r.covers]
        elif id in messages or id.rpartition(".")[0] in compactions:
            waiting = [id]
        else:
            raise NotFound(f"nothing in this session has the id {id!r}; explain() lists what is shown")
        found: list[LoggedMessage] = []
        while waiting:
            next_id = waiting.pop(0)
            if next_id in messages:
                found.append(messages[next_id])
            else:
                handle, _, number = next_id.rpartition(".")
                waiting = [*compactions[handle].replacements[int(number)].covers, *waiting]
        return tuple(found)

    def _show(self, shown: Sequence[Shown], *, void: Collection[str] = ()) -> None:
        self.shown = list(shown)
        # The same message keeps its entry, so that what comes back after an undo is the very same bytes.
        # A message that lost its thinking may hold nothing any more: then there is nothing to show of it.
        visible = [item for item in shown if has_content(item.message)]
        self._entries |= {item.id: MessageEntry(item.message) for item in visible if item.id not in self._entries}
        entries = [self._entries[item.id] for item in visible]
        self._context.rewrite(entries, void=[e for item, e in zip(visible, entries, strict=True) if item.id in void])


def _behind(log: Sequence[LogEntry], undone: Collection[str]) -> set[str]:
    """The messages whose thinking was done in view of a compaction that applies no more."""
    seen = dropwhile(lambda entry: entry.id not in undone, log)
    return {entry.id for entry in seen if isinstance(entry, LoggedMessage)}


def has_content(message: Message) -> bool:
    """Whether a message holds anything a provider takes: text that is only white space is nothing."""
    return any(not isinstance(part, TextPart) or part.text.strip() for part in message.parts)


def _is_request(message: Message) -> bool:
    """Whether the user wrote it: not the result of a tool, and not a demand for an answer of another form."""
    if message.role != "user" or message.text.startswith(NOT_USABLE):
        return False
    return not any(isinstance(part, ToolResultPart) for part in message.parts)


# Where a history may be cut: rounds, and inside them the units that stay or go together.


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that stay together or go together: one message, or calls with all their results.

    A system message inside a history belongs to the message before it, which is the turn it speaks about.
    """

    items: tuple[Shown, ...]
    open: bool = False
    """It holds a call that has no result."""
    stray: bool = False
    """It holds a result that has no call."""

    @property
    def request(self) -> Shown | None:
        """The user's own message in it, if there is one."""
        return next((item for item in self.items if is_request(item.message)), None)


@dataclass(frozen=True, slots=True)
class Round:
    """A real user message and everything up to the next one. Only the first round may lack the message."""

    units: tuple[Unit, ...]

    @property
    def request(self) -> Shown | None:
        """The message that opened it."""
        return self.units[0].request

    @property
    def items(self) -> tuple[Shown, ...]:
        """Its messages."""
        return tuple(item for unit in self.units for item in unit.items)


def is_request(message: Message) -> bool:
    """Whether the user wrote this: some part is not a tool result, and it is not a record of earlier messages."""
    return (
        message.role == "user"
        and any(not isinstance(part, ToolResultPart) for part in message.parts)
        and not is_record(message)
    )


def current_request(shown: Sequence[Shown]) -> Shown | None:
    """The last message of the user."""
    return next((item for item in reversed(shown) if is_request(item.message)), None)


def leading_system(shown: Sequence[Shown]) -> int:
    """How many system messages a history begins with."""
    return len(list(takewhile(lambda item: item.message.role == "system", shown)))


def units_of(shown: Sequence[Shown]) -> tuple[Unit, ...]:
    """The units of a history, in order.

    A result belongs to the last open call of its id, and so does everything between the two. Call ids may come back
    later in a history: some providers count from 0.
    """
    reach = list(range(len(shown)))  # the last place that belongs together with this one
    waiting: dict[str, int] = {}
    stray: set[int] = set()
    opening = leading_system(shown)
    for place, item in enumerate(shown):
        if item.message.role == "system" and place > opening:
            reach[place - 1] = max(reach[place - 1], place)
        for part in item.message.parts:
            if isinstance(part, ToolCallPart):
                waiting[part.id] = place
            elif isinstance(part, ToolResultPart):
                if part.call_id in waiting:
                    reach[waiting.pop(part.call_id)] = place
                else:
                    stray.add(place)
    dangling = set(waiting.values())
    return tuple(
        Unit(
            tuple(shown[start:end]),
            open=not dangling.isdisjoint(range(start, end)),
            stray=not stray.isdisjoint(range(start, end)),
        )
        for start, end in _spans(reach)
    )


def rounds_of(units: Iterable[Unit]) -> tuple[Round, ...]:
    """The rounds of a history."""
    rounds: list[list[Unit]] = []
    for unit in units:
        if unit.request is not None or not rounds:
            rounds.append([])
        rounds[-1].append(unit)
    return tuple(Round(tuple(found)) for found in rounds)


def _spans(reach: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The smallest spans that nothing reaches out of."""
    start, furthest = 0, 0
    for place, last in enumerate(reach):
        furthest = max(furthest, last)
        if furthest == place:
            yield start, place + 1
            start = furthest = place + 1


# Saving a session to its checkpoint store.


class Saver:
    """Knows how much of a log is durable, and writes the rest.

    `last` is the checkpoint that the history continues; `head` the one last saved in this session, which differs after
    going back. A write that failed or was cancelled may have arrived all the same. It is repeated before the next one:
    a store accepts the same write twice.
    """

    def __init__(self, store: CheckpointStore, scope: Scope, *, clock: Clock, ids: RecordIds) -> None:
        self.store = store
        self.scope = scope
        self.last: Checkpoint | None = None
        self.head: str | None = None
        self.is_discarded = False
        self._unsure: tuple[Checkpoint, tuple[LogEntry, ...], str | None] | None = None
        self._clock = clock
        self._ids = ids

    def discard(self) -> None:
        """The session was forgotten: nothing more of it is ever saved."""
        self.is_discarded = True

    def check_wanted(self) -> None:
        """Refuse to save anything of a session that was forgotten."""
        if self.is_discarded:
            raise NotFound(
                f"session {self.scope.session_id!r} of user {self.scope.user_id!r} was forgotten, and with it the turn "
                "that was running; begin another one"
            )

    def is_saved(self, history: History) -> bool:
        """Whether everything of a history is durable, its view included."""
        last = self.last
        if last is None or self._unsure is not None or last.position != len(history.log):
            return False
        return (last.compactions, last.usage, last.pins) == (history.applied, history.usage, tuple(history.pins))

    def is_durable(self, position: int) -> bool:
        """Whether the log is saved beyond a position."""
        return self.last is not None and self.last.position > position

    async def check_new(self) -> None:
        """Refuse to begin a session under a name that the store has already: nothing of it could be saved."""
        if self.head is not None or self._unsure is not None or await self.store.load(self.scope) is None:
            return
        raise StoreConflict(
            f"session {self.scope.session_id!r} already exists; restore() it to go on with it, or take another id"
        )

    async def save(self, history: History) -> Checkpoint:
        """Write the new entries, and a checkpoint at their end."""
        assert self.scope.session_id is not None
        if self._unsure is not None:
            await self._write(*self._unsure)
        done = self.last.position if self.last else 0
        checkpoint = Checkpoint(
            id=self._ids.next_id(),
            session_id=self.scope.session_id,
            at=self._clock.now(),
            position=len(history.log),
            turn=history.turn,
            parent=self.last.id if self.last else None,
            compactions=history.applied,
            pins=tuple(history.pins),
            usage=history.usage,
            unfinished=history.unfinished,
        )
        await self._write(checkpoint, tuple(history.log[done:]), self.head)
        history.drop_bodies(done, checkpoint.position)
        return checkpoint

    async def _write(self, checkpoint: Checkpoint, entries: tuple[LogEntry, ...], head: str | None) -> None:
        self.check_wanted()
        self._unsure = (checkpoint, entries, head)
        try:
            await self.store.save(self.scope, checkpoint, entries=entries, head=head)
        except StoreConflict as error:
            self._unsure = None
            if head is not None and await self.store.load(self.scope) is None:
                self.discard()
                self.check_wanted()
            raise StoreConflict(
                f"session {self.scope.session_id!r} was continued somewhere else; call restore() to go on from "
                f"there, or fork() to go on from here ({error})"
            ) from error
        self.last, self.head, self._unsure = checkpoint, checkpoint.id, None

    async def load(self, at: int | str | None = None) -> tuple[Checkpoint, Sequence[LogEntry]]:
        """A checkpoint and the log up to it: the one named, the last of a turn, or the last of all."""
        newest = await self.store.load(self.scope)
        found = newest if at is None else await self._find(at)
        if newest is None or found is None:
            what = repr(at) if isinstance(at, str) else "yet" if at is None else f"of turn {at}"
            raise NotFound(f"session {self.scope.session_id!r} has no checkpoint {what}; checkpoints() lists them")
        log = await self.store.history(self.scope, found.id, bodies=False)
        self.last, self.head, self._unsure = found, newest.id, None
        return found, log

    async def find_same(self, messages: Sequence[Message]) -> str | None:
        """The id of the newest checkpoint, if it shows exactly these messages; None where nothing is saved.

        Raises:
            StoreConflict: the session is saved with other messages.
        """
        saved = await self.store.load(self.scope)
        if saved is None:
            return None
        log = await self.store.history(self.scope, saved.id, bodies=False)
        if tuple(item.message for item in shown_of(log, saved.compactions)) != tuple(messages):
            raise StoreConflict(
                f"session {self.scope.session_id!r} is saved with other messages; restore() brings those back, and a "
                "session with another id can go on with these"
            )
        return saved.id

    async def fork(self, at: int | str | None, *, session_id: str, now: datetime) -> Checkpoint:
        """Begin another session at a checkpoint of this one: the one named, the last of a turn, or the last."""
        if not isinstance(self.store, Forks):
            raise UsageError(f"{type(self.store).__name__} cannot fork; use a store that can, such as SQLite")
        found = self.last if at is None else await self._find(at)
        if found is None:
            what = "has no turn to fork at yet" if at is None else f"has no checkpoint {at!r}"
            raise NotFound(f"session {self.scope.session_id!r} {what}")
        return await self.store.fork(self.scope, found.id, session_id=session_id, at=now)

    async def _find(self, at: int | str) -> Checkpoint | None:
        if isinstance(at, str):
            return await self.store.load(self.scope, at)
        return end_of_turn(await self.store.list(self.scope), at)


# Restoring a session from a checkpoint or from plain values.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A conversation to continue, wherever it was kept: another store, a file of yours, another program.

    It has the messages that the model is shown, and no log: earlier compactions cannot be undone, and there are no
    earlier turns to go back to.
    """

    session_id: str
    """The name it had. The session that continues it keeps its own."""
    messages: Sequence[Message]
    turn_count: int = 0
    total_usage: Usage | Mapping[str, Any] = field(default_factory=Usage)
    """Tokens so far; of a mapping the names of Usage count, and `model` may stand among them."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    """When it was saved; messages have no times of their own here, so all of them get this one."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "the session_id of a state")
        if isinstance(self.messages, str) or not all(isinstance(m, Message) for m in self.messages):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError("the messages of a state are not all Message; make them with Message.user() and the like")
        object.__setattr__(self, "messages", tuple(self.messages))
        for message in self.messages:
            check_length(message.text, "a message of a state", MAX_TEXT, "leave out what no model reads")
        count = self.turn_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"turn_count={count!r}; give the number of finished turns, from 0")
        object.__setattr__(self, "total_usage", _usage(self.total_usage))
        for name in ("created_at", "updated_at"):
            if (at := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_utc(at, name))

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return cast("Usage", self.total_usage)

    @classmethod
    def of(cls, given: SessionState | Checkpoint | Mapping[str, Any]) -> SessionState:
        """A state from itself, from a mapping with its names, or from a checkpoint that has its messages.

        In a mapping, messages may be as a provider writes them, and times texts in ISO 8601: a file has no others.
        """
        if isinstance(given, SessionState):
            return given
        if isinstance(given, Checkpoint):
            return cls(
                session_id=given.session_id,
                messages=given.messages,
                turn_count=given.turn,
                total_usage=given.usage,
                created_at=given.at,
                updated_at=given.at,
            )
        known = [f.name for f in fields(cls)]
        unknown, missing = sorted(set(given) - set(known)), {"session_id", "messages"} - set(given)
        if unknown or missing:
            wrong = f"no field {', '.join(unknown)}" if unknown else f"to name {' and '.join(sorted(missing))}"
            raise UsageError(f"the state of a session has {wrong}; its fields are {', '.join(known)}")
        read: dict[str, Any] = dict(given)
        if isinstance(read["messages"], list | tuple):
            messages = cast("Sequence[Any]", read["messages"])
            read["messages"] = [from_mapping(cast("Any", m)) if isinstance(m, Mapping) else m for m in messages]
        times = {name: _moment(read[name], name) for name in ("created_at", "updated_at") if name in read}
        return cls(**{**read, **times})

    def log(self, ids: RecordIds, clock: Clock) -> list[LoggedMessage]:
        """The messages as the beginning of a log."""
        at = self.updated_at or clock.now()
        return [LoggedMessage(ids.next_id(), at, message) for message in self.messages]


def which(
    given: str | Checkpoint | SessionState | Mapping[str, Any] | None, session_id: str
) -> tuple[str | None, SessionState | None]:
    """The checkpoint of the session that is meant, None being the last, or the conversation from elsewhere."""
    if isinstance(given, str | None):
        return given, None
    if isinstance(given, Checkpoint) and given.session_id == session_id:
        return given.id, None
    if not isinstance(given, Checkpoint | SessionState | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"restore() was given {type(given).__name__}; give a checkpoint, its id, or a SessionState")
    return None, SessionState.of(given)


def _moment(given: object, name: str) -> Any:
    """A time of a state; what is not a text is checked by the state."""
    if not isinstance(given, str):
        return given
    try:
        return datetime.fromisoformat(given)
    except ValueError as error:
        raise UsageError(f"{name}={given!r} is not a time in ISO 8601, such as 2026-01-31T08:00:00Z") from error


def _usage(given: Usage | Mapping[str, Any]) -> Usage:
    if isinstance(given, Usage):
        return given
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"total_usage={given!r}; give a Usage, or a mapping with its names")
    known = [f.name for f in fields(Usage)]
    counts = {name: count for name, count in given.items() if name != "model"}
    wrong = [name for name, n in counts.items() if name not in known or not isinstance(n, int) or n < 0]
    if wrong:
        raise UsageError(f"total_usage has {wrong[0]}={counts[wrong[0]]!r}; it counts {', '.join(known)}, from 0")
    return Usage(**counts)
