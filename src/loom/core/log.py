"""A session's append-only log, what is shown of it, the checkpoints that point into it, and events that tell of it.

The log is the truth: messages, compactions and what programs record, each with an id, none ever changed. What is shown
is the messages with some compactions applied in order, so leaving the last one out is an exact undo.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

from loom.core.checks import (
    MAX_ATTRIBUTES,
    MAX_NAME,
    MAX_RECORDED,
    MAX_VALUE,
    as_utc,
    check_attributes,
    check_id,
    check_length,
    check_name,
    check_text,
    is_plain,
)
from loom.core.message import JSON, Message, Usage
from loom.errors import FormatTooNew, UsageError

FORMAT_VERSION = 2
"""2: recorded entries, and attributes of checkpoints."""


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message in a session's log."""

    id: str
    at: datetime
    message: Message

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a logged message")
        if self.at.__class__ is not datetime or self.at.tzinfo is not UTC:
            object.__setattr__(self, "at", as_utc(self.at, f"the time of message {self.id}"))


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as the model sees it, under the id of the log entry it comes from."""

    id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Replacement:
    """A run of shown messages, named by id in order, and the one message shown instead; None: nothing."""

    covers: tuple[str, ...]
    message: Message | None

    def __post_init__(self) -> None:
        if not self.covers or len(set(self.covers)) != len(self.covers):
            raise UsageError(f"a replacement covers {self.covers!r}; name at least one message, and each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A rewrite of what is shown, as it stands in the log. Its `id` is the handle that undoes it.

    The message shown for its n-th replacement has the id `ID.n`, so a later compaction can cover it.
    """

    id: str
    at: datetime
    strategy: str
    replacements: tuple[Replacement, ...]
    tokens_before: int
    tokens_after: int

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a compaction")
        object.__setattr__(self, "at", as_utc(self.at, f"the time of compaction {self.id}"))
        covered = self.covered
        if not covered or len(set(covered)) != len(covered):
            raise UsageError(f"compaction {self.id} covers {covered!r}; cover at least one message, and each once")

    def __str__(self) -> str:
        count = len(self.covered)
        covers = f"{count:,} message{'' if count == 1 else 's'} replaced"
        return f"{self.strategy}: {self.tokens_before:,} -> {self.tokens_after:,} tokens, {covers}"

    @property
    def covered(self) -> tuple[str, ...]:
        """The ids of everything it replaces, in order."""
        return tuple(id for replacement in self.replacements for id in replacement.covers)

    def apply(self, shown: Sequence[Shown]) -> tuple[Shown, ...]:
        """What is shown after this compaction; raises UsageError where it does not fit what is shown now."""
        ids = [item.id for item in shown]
        places = {id: place for place, id in enumerate(ids)}
        first: dict[int, tuple[int, Replacement]] = {}
        for n, replacement in enumerate(self.replacements):
            start, size = places.get(replacement.covers[0], len(ids)), len(replacement.covers)
            if tuple(ids[start : start + size]) != replacement.covers:
                raise UsageError(
                    f"compaction {self.id} covers {replacement.covers!r}, which is not a run of what is shown; "
                    f"undo the compactions made after it first"
                )
            first[start] = (n, replacement)
        result: list[Shown] = []
        skip_to = 0
        for place, item in enumerate(shown):
            if place in first:
                n, replacement = first[place]
                skip_to = place + len(replacement.covers)
                if replacement.message is not None:
                    result.append(Shown(f"{self.id}.{n}", replacement.message))
            elif place >= skip_to:
                result.append(item)
        return tuple(result)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry of a log that is neither a message nor a compaction: what a program keeps beside a conversation.

    No model is ever shown it, and no compaction touches it. `kind` says whose it is, such as `langgraph.state`; kinds
    that begin with `loom.` are Loom's own. `body` is any JSON value, or bytes. A value is taken as JSON reads it back:
    a tuple becomes a list, and names are text.
    """

    id: str
    at: datetime
    kind: str
    body: JSON | bytes = field(hash=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a recorded entry")
        object.__setattr__(self, "at", as_utc(self.at, f"the time of recorded entry {self.id}"))
        check_text(self.kind, f"the kind of recorded entry {self.id}")
        check_name(self.kind, f"the kind of recorded entry {self.id}")
        object.__setattr__(self, "body", _body_of(self.body, f"the body of recorded entry {self.id}"))


def recorded_again(id: str, at: datetime, kind: str, body: JSON | bytes) -> Recorded:
    """An entry that was checked when it was recorded, and is not checked again."""
    made = object.__new__(Recorded)
    put = object.__setattr__
    put(made, "id", id)
    put(made, "at", at)
    put(made, "kind", kind)
    put(made, "body", body)
    return made


def _body_of(given: Any, what: str) -> JSON | bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        body = bytes(cast("bytes", given))
        if len(body) > MAX_RECORDED:
            raise UsageError(f"{what} has {len(body):,} bytes; at most {MAX_RECORDED:,} are taken: record it in pieces")
        return body
    try:
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        check_length(text, what, MAX_RECORDED, "record it in pieces")
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{what} is neither JSON nor bytes: {error}") from error


LogEntry: TypeAlias = LoggedMessage | Compaction | Recorded


def shown_of(log: Iterable[LogEntry], compactions: Collection[str]) -> tuple[Shown, ...]:
    """What is shown of a log when these compactions apply."""
    messages: list[Shown] = []
    applied: list[Compaction] = []
    for entry in log:
        if isinstance(entry, LoggedMessage):
            messages.append(Shown(entry.id, entry.message))
        elif isinstance(entry, Compaction) and entry.id in compactions:
            applied.append(entry)
    missing = set(compactions) - {c.id for c in applied}
    if missing:
        raise UsageError(f"the log holds no compaction {', '.join(sorted(missing))}; load the log of this checkpoint")
    shown = tuple(messages)
    for compaction in applied:
        shown = compaction.apply(shown)
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A point of a session: how much of the log it has seen, and the view at that point.

    `position` counts log entries from the very beginning, along its parents and through forks.
    `compactions` are the ids of those that apply. `turn` is the number of finished turns, `usage` their
    sum. `parent` is the checkpoint it continues: not always the one saved before it, and after a fork one
    of another session. `pins` are the ids of messages that no compaction may touch. `unfinished` says that
    messages of a turn which is not over stand at the end of the log. `attributes` are a few short texts to find it by,
    such as the id of a run. `shown` is what the model was shown at that point, where the checkpoint was loaded together
    with it; it is not part of what is saved or compared.
    """

    id: str
    session_id: str
    at: datetime
    position: int
    turn: int
    parent: str | None = None
    compactions: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    unfinished: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    format_version: int = FORMAT_VERSION
    shown: tuple[Message, ...] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a checkpoint")
        check_id(self.session_id, f"the session_id of checkpoint {self.id}")
        object.__setattr__(self, "at", as_utc(self.at, f"the time of checkpoint {self.id}"))
        if self.position < 0 or self.turn < 0:
            raise UsageError(f"checkpoint {self.id} has position {self.position}, turn {self.turn}; count from 0")
        if self.attributes:
            check_texts(self.attributes, f"checkpoint {self.id}")
            object.__setattr__(self, "attributes", dict(self.attributes))
        if self.format_version > FORMAT_VERSION:
            raise FormatTooNew(
                f"checkpoint {self.id} has format {self.format_version}, this Loom reads up to {FORMAT_VERSION}; "
                f"upgrade Loom to load it"
            )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model was shown it at this point."""
        if self.shown is None:
            raise UsageError(
                f"checkpoint {self.id} was loaded without its messages, which can be many; load it by the id of its "
                f"session, as in store.load({self.session_id!r}), or ask the store for its history()"
            )
        return self.shown

    @property
    def turn_index(self) -> int:
        """How many turns are finished: `turn`."""
        return self.turn

    @property
    def timestamp(self) -> datetime:
        """When it was saved: `at`."""
        return self.at


def _is_plain_text(name: Any, value: Any) -> bool:
    is_text = type(name) is type(value) is str and len(name) <= MAX_NAME and len(value) <= MAX_VALUE
    return is_text and name.isidentifier() and is_plain(value)


def check_texts(attributes: Mapping[str, str], what: str) -> None:
    """Refuse attributes that are too many, too long, or not text."""
    if len(attributes) <= MAX_ATTRIBUTES and all(map(_is_plain_text, attributes, attributes.values())):
        return
    check_attributes(attributes, what)
    for name, value in attributes.items():
        check_text(name, f"the name of an attribute of {what}")
        check_text(value, f"the attribute {name!r} of {what}", may_be_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """A session as a store has it: the times of its first and last checkpoint, and how much there is.

    `entries` counts the log of the last checkpoint from the very beginning, as its `position` does.
    """

    session_id: str
    first_at: datetime
    last_at: datetime
    checkpoints: int
    entries: int


def end_of_turn(checkpoints: Iterable[Checkpoint], turn: int) -> Checkpoint | None:
    """The first of these, given last saved first, that stands at the end of a turn and not inside the next one."""
    return next((c for c in checkpoints if c.turn == turn and not c.unfinished), None)


# The events of a session: typed, numbered, distinguished by `type`.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The fields of every event. `seq` rises by one through a session; `at` is aware UTC."""

    seq: int
    at: datetime
    session_id: str

    def __post_init__(self) -> None:
        if self.seq < 0:
            raise UsageError(f"an event has seq={self.seq}; count from 0")
        object.__setattr__(self, "at", as_utc(self.at, f"the time of event {self.seq}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart(_Base):
    """A session began, or continued from a checkpoint."""

    type: ClassVar[Literal["session.start"]] = "session.start"
    checkpoint_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd(_Base):
    """A session was closed; `usage` is the sum of all its calls."""

    type: ClassVar[Literal["session.end"]] = "session.end"
    turns: int
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart(_Base):
    """A user message was accepted."""

    type: ClassVar[Literal["turn.start"]] = "turn.start"
    turn: int
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd(_Base):
    """The final answer of a turn is complete; `usage` is of this turn, compactions included."""

    type: ClassVar[Literal["turn.end"]] = "turn.end"
    turn: int
    stop: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(_Base):
    """A piece of the answer, in order."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart(_Base):
    """A tool is about to run, with these arguments."""

    type: ClassVar[Literal["tool.start"]] = "tool.start"
    call_id: str
    name: str
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRefused(_Base):
    """The approval hook refused a call; it is not made, and the model gets the reason."""

    type: ClassVar[Literal["tool.refused"]] = "tool.refused"
    call_id: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd(_Base):
    """A tool has answered, or failed; `text` is what the model is told, before a long one is shortened."""

    type: ClassVar[Literal["tool.end"]] = "tool.end"
    call_id: str
    name: str
    is_error: bool
    milliseconds: int
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPressure(_Base):
    """The window fills: `tokens` of `window`, and compaction comes at `trigger`."""

    type: ClassVar[Literal["context.pressure"]] = "context.pressure"
    tokens: int
    window: int
    trigger: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStart(_Base):
    """A compaction is about to begin: why, how, and what it must reach."""

    type: ClassVar[Literal["compaction.start"]] = "compaction.start"
    reason: str
    strategy: str
    tokens: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEnd(_Base):
    """A compaction is over. `undo` is its handle; None, with an `error`, where the history is unchanged."""

    type: ClassVar[Literal["compaction.end"]] = "compaction.end"
    strategy: str
    tokens_before: int
    tokens_after: int
    covered: int
    dropped_thinking: int
    usage: Usage
    undo: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(_Base):
    """A checkpoint is durable."""

    type: ClassVar[Literal["checkpoint.saved"]] = "checkpoint.saved"
    checkpoint_id: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecalled(_Base):
    """Memory was recalled for this message: the ids of the records, and of passages of knowledge bases."""

    type: ClassVar[Literal["memory.recalled"]] = "memory.recalled"
    ids: tuple[str, ...]
    count: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRemembered(_Base):
    """This turn is kept in memory: the ids of its records, and how many of its texts were left out."""

    type: ClassVar[Literal["memory.remembered"]] = "memory.remembered"
    ids: tuple[str, ...]
    count: int
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLearned(_Base):
    """Facts were found in remembered turns: by `rules` in this one, or by a `model` in the background since the last.

    It says what was written and what that cost, or why it failed.
    """

    type: ClassVar[Literal["memory.learned"]] = "memory.learned"
    turns: int
    facts: int
    usage: Usage
    error: str | None = None
    by: str = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPromoted(_Base):
    """Records moved up a layer: how many, and how many left the layers for the archive in the same pass."""

    type: ClassVar[Literal["memory.promoted"]] = "memory.promoted"
    count: int
    archived: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus(_Base):
    """Cache use of one call, reported and predicted; `broke_at` says where it was lost."""

    type: ClassVar[Literal["cache.status"]] = "cache.status"
    usage: Usage
    predicted_read: int
    predicted_write: int
    broke_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(_Base):
    """A failure is being handled: by what action (`retry`, `fallback`, `degrade`), and why."""

    type: ClassVar[Literal["recovery"]] = "recovery"
    action: str
    reason: str
    attempt: int
    delay_milliseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(_Base):
    """A failure that was not recovered. `error` is the name of the error class."""

    type: ClassVar[Literal["error"]] = "error"
    error: str
    message: str
    retryable: bool


Event: TypeAlias = (
    SessionStart | SessionEnd | TurnStart | TurnEnd | Text | ToolStart | ToolRefused | ToolEnd | ContextPressure
    | CompactionStart | CompactionEnd | CheckpointSaved | MemoryRecalled | MemoryRemembered | MemoryLearned
    | MemoryPromoted | CacheStatus | Recovery | Error
)  # fmt: skip
EVENT_TYPES: dict[str, type[Event]] = {cls.type: cls for cls in get_args(Event)}


def to_dict(event: Event) -> dict[str, JSON]:
    """The event as plain JSON, `type` first."""
    values = {f.name: _encode(getattr(event, f.name)) for f in fields(event)}
    return {"type": event.type, **values}


def from_dict(data: Mapping[str, JSON]) -> Event:
    """The event that to_dict() wrote; raises UsageError for anything else."""
    values = dict(data)
    type = values.pop("type", None)
    if not isinstance(type, str) or type not in EVENT_TYPES:
        raise UsageError(f"there is no event of type {type!r}; the types are {', '.join(EVENT_TYPES)}")
    cls = EVENT_TYPES[type]
    hints = _hints(cls)
    unknown = values.keys() - hints.keys()
    if unknown:
        raise UsageError(f"an event of type {type} has no field {', '.join(sorted(unknown))}; remove it")
    try:
        return cls(**{name: _decode(hints[name], value) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(f"this is not an event of type {type}: {error}") from error


@cache
def _hints(cls: type[Event]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _encode(value: datetime | Usage | JSON) -> JSON:
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return asdict(value) if isinstance(value, Usage) else value


def _decode(hint: Any, value: JSON) -> Any:
    options = get_args(hint)
    if NoneType in options:
        return None if value is None else _decode(options[0], value)
    if get_origin(hint) is tuple:
        return tuple(_decode(options[0], item) for item in list(value))
    if get_origin(hint) is Mapping:
        return dict(value)
    if hint is datetime:
        return datetime.fromisoformat(value)
    if hint is Usage:
        return Usage(**{name: _decode(int, count) for name, count in dict(value).items()})
    if type(value) is not hint:  # exact, because a bool is an int
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value
