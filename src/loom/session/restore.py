"""Restoring a session from a checkpoint or from plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, cast

from loom.core.checkpoint import Checkpoint, LoggedMessage
from loom.core.checks import MAX_TEXT, as_utc, check_id, check_length
from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.message import Message, Usage
from loom.errors import UsageError


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
        """A state from itself, from a mapping with its names, or from a checkpoint that has its messages."""
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
        return cls(**given)

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
