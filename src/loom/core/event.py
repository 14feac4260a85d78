"""The events of a session: typed, numbered, distinguished by `type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from loom.core.checks import as_utc
from loom.core.message import JSON, Usage
from loom.errors import UsageError


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
    """A tool is about to run."""

    type: ClassVar[Literal["tool.start"]] = "tool.start"
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRefused(_Base):
    """The approval hook refused a call; it is not made, and the model gets the reason."""

    type: ClassVar[Literal["tool.refused"]] = "tool.refused"
    call_id: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd(_Base):
    """A tool has answered, or failed."""

    type: ClassVar[Literal["tool.end"]] = "tool.end"
    call_id: str
    name: str
    is_error: bool
    milliseconds: int


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
    return asdict(value) if isinstance(value, Usage) else value


def _decode(hint: Any, value: JSON) -> Any:
    options = get_args(hint)
    if NoneType in options:
        return None if value is None else _decode(options[0], value)
    if get_origin(hint) is tuple:
        return tuple(_decode(options[0], item) for item in list(value))
    if hint is datetime:
        return datetime.fromisoformat(value)
    if hint is Usage:
        return Usage(**{name: _decode(int, count) for name, count in dict(value).items()})
    if type(value) is not hint:  # exact, because a bool is an int
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value
