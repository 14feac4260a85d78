"""A session's append-only log, what is shown of it, and the checkpoints that point into it.

The log is the truth: messages and compactions, each with an id, none ever changed. What is shown is the
messages with some compactions applied in order, so leaving the last one out is an exact undo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from loom.core.checks import as_utc, check_id
from loom.core.message import Message, Usage
from loom.errors import FormatTooNew, UsageError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message in a session's log."""

    id: str
    at: datetime
    message: Message

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a logged message")
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


LogEntry: TypeAlias = LoggedMessage | Compaction


def shown_of(log: Iterable[LogEntry], compactions: Collection[str]) -> tuple[Shown, ...]:
    """What is shown of a log when these compactions apply."""
    messages: list[Shown] = []
    applied: list[Compaction] = []
    for entry in log:
        if isinstance(entry, LoggedMessage):
            messages.append(Shown(entry.id, entry.message))
        elif entry.id in compactions:
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
    messages of a turn which is not over stand at the end of the log. `shown` is what the model was shown at that point,
    where the checkpoint was loaded together with it; it is not part of what is saved or compared.
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
    format_version: int = FORMAT_VERSION
    shown: tuple[Message, ...] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a checkpoint")
        check_id(self.session_id, f"the session_id of checkpoint {self.id}")
        object.__setattr__(self, "at", as_utc(self.at, f"the time of checkpoint {self.id}"))
        if self.position < 0 or self.turn < 0:
            raise UsageError(f"checkpoint {self.id} has position {self.position}, turn {self.turn}; count from 0")
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


def end_of_turn(checkpoints: Iterable[Checkpoint], turn: int) -> Checkpoint | None:
    """The first of these, given last saved first, that stands at the end of a turn and not inside the next one."""
    return next((c for c in checkpoints if c.turn == turn and not c.unfinished), None)
