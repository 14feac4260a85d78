"""What a program that talks to a model wrote down of its sessions: what was said, and what each call used.

One Transcript is one conversation of one agent: a subagent has its own, and so has each thread of an export. Readers of
every format give this form, so importing, auditing the cache and showing a session read the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Writer: TypeAlias = Literal["user", "assistant", "tool", "program", "summary"]
"""Who wrote a text: the person, the model, a tool, the program around them, or a model that shortened the talk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenText:
    """One text of a conversation, in the order in which it was shown. `line` counts from 1 in the file."""

    id: str
    writer: Writer
    text: str
    at: float | None = None
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call of a model, with the tokens that the provider reported. None means that it was not reported.

    `fresh` is input that was neither read from the cache nor written to it. `written_short` and `written_long` are
    kept for five minutes and for an hour; where a record does not tell them apart everything is `written_short`.
    `number` is the number of texts that came before the call. The last fields are what the record says of the program:
    empty where it says nothing.
    """

    id: str
    at: float | None
    model: str
    fresh: int
    output: int
    read: int | None = None
    written_short: int | None = None
    written_long: int | None = None
    number: int = 0
    line: int = 0
    program_version: str = ""
    effort: str = ""
    tools: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCompaction:
    """The conversation was shortened between two calls; `before` and `after` are tokens, where they were recorded."""

    at: float | None
    number: int
    line: int = 0
    trigger: str = ""
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line of which nothing was kept, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One conversation of one agent, as a program recorded it."""

    program: str
    session_id: str
    path: str
    parent: str | None = None
    title: str = ""
    texts: tuple[SpokenText, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    compactions: tuple[RecordedCompaction, ...] = ()
    skipped: tuple[SkippedLine, ...] = field(default=(), repr=False)
