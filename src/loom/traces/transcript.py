"""What a program that talks to a model wrote down of its sessions: what was said, and what each call used.

One Transcript is one conversation of one agent: a subagent has its own, and so has each thread of an export. Readers of
every format give this form, so importing, auditing the cache and showing a session read the same thing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, cast

Writer: TypeAlias = Literal["user", "assistant", "tool", "program", "summary", "note"]
"""Who wrote a text: the person, the model, a tool, the program around them, or a model that shortened the talk. A note
was saved in another memory or in a file, and nothing says whose words it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenText:
    """One text of a conversation, in the order in which it was shown. `line` counts from 1 in the file.

    `speaker` is the name of the person who wrote it, where the record has one.
    """

    id: str
    writer: Writer
    text: str
    at: float | None = None
    line: int = 0
    speaker: str = ""


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
    """One conversation of one agent, as a program recorded it, or the next part of a long one.

    Each line of the file with a text in it has that text in `texts`, is a part of it, or is in `skipped`; a text may
    have only a part of a line. `parent` is the session that this one was begun in or forked from; what a subagent was
    asked was not written by a person. `owner` is the user whose data it is, where the record names one. `start` is the
    number of texts in the parts before. A file that was not read at
    all gives a transcript with no program, and with the reason in `skipped`.
    """

    program: str
    session_id: str
    path: str
    parent: str | None = None
    is_subagent: bool = False
    title: str = ""
    owner: str = ""
    start: int = 0
    texts: tuple[SpokenText, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    compactions: tuple[RecordedCompaction, ...] = ()
    repeated: tuple[RecordedCall, ...] = ()
    """Calls that were copied from another file, and count there: they tell what was cached before the first own one."""
    skipped: tuple[SkippedLine, ...] = field(default=(), repr=False)


# What readers of several formats share: times, and what programs add to a person's words.

HARNESS: Final = "harness: the program wrote it, not a person"
SUMMARY: Final = "summary: a model wrote it when the conversation was shortened"
SUBAGENT: Final = "subagent: the words of another agent, not of a person"
REWOUND: Final = "rewound: the conversation went back and went on without it"
REPEATED_LINE: Final = "repeated: it was read before"
TOOL: Final = "tool: tool calls and results are not part of what was said"
THINKING: Final = "thinking: what the model thought is not part of what was said"
EVENT: Final = "event: it has no text of the conversation"
EMPTY: Final = "empty: it has no text"
API_ERROR: Final = "error: the call failed, and the program said so"

_MILLISECONDS: Final = 1e11
"""A larger number of seconds lies thousands of years ahead, so it counts milliseconds, or less."""
_NANOSECONDS: Final = 1e19
"""Nanoseconds of today are a fifth of it; what is larger is not a time."""


def time_of(value: object) -> float | None:
    """Seconds since 1970, from a number or a moment written as text; None where it is neither."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return _number(value)
        try:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _NANOSECONDS:
        return None
    seconds = float(value)
    while seconds > _MILLISECONDS:
        seconds /= 1000
    return seconds


def _number(text: str) -> float | None:
    """A number that stands in a text, as nanoseconds do in JSON of OpenTelemetry."""
    return time_of(int(text)) if text.isascii() and text.isdecimal() and len(text) <= 19 else None


# Wherever these are in a message, the words around them are the person's. The innermost is matched first, because a
# reminder may quote a file with another one in it.
_TAGS: Final = (
    "(system-reminder|ide_opened_file|ide_selection|user-prompt-submit-hook|post-tool-use-hook|new-diagnostics)"
)
_INSIDE: Final = re.compile(rf"<{_TAGS}\b[^>]*>(?:(?!<\1\b).)*?</\1>", re.DOTALL)
_DEEPEST: Final = 10
# A message that begins with one of these was made by the program as a whole.
_WHOLE: Final = re.compile(
    r"<(?:command-(?:name|message|args|contents)|local-command-(?:stdout|stderr|caveat)|bash-(?:input|stdout|stderr)"
    r"|environment_context|user_instructions|user-memory-input|permissions instructions|collaboration_mode"
    r"|task-notification|agent-notification|subagent_notification|cross-session-message|teammate-message"
    r"|system-reminder|ide_opened_file|ide_selection|user-prompt-submit-hook|post-tool-use-hook|new-diagnostics"
    r"|turn_aborted|skill|user_shell_command|user_action|INSTRUCTIONS|recommended_plugins|fork-boilerplate)\b"
    r"|Caveat: The messages below were generated by the user while running local commands"
    r"|\[Request interrupted by user"
    r"|# AGENTS\.md instructions for "
    r"|Another language model started to solve this problem and produced a summary"
)
_IDE_REQUEST: Final = "## My request for Codex:"


def without_harness(text: str) -> str:
    """A person's message without what the program added to it; empty if nothing of it was the person's."""
    for _ in range(_DEEPEST if "</" in text else 0):
        text, count = _INSIDE.subn("", text)
        if not count:
            break
    text = text.strip()
    if _WHOLE.match(text):
        return ""
    if text.startswith("# Context from my IDE setup:") and _IDE_REQUEST in text:
        return text.partition(_IDE_REQUEST)[2].strip()
    return text


def texts_in(content: Any, *kinds: str) -> list[str]:
    """The texts of a message's content: text itself, or its blocks of these kinds."""
    if isinstance(content, str):
        return [content] if content.strip() else []
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    found: list[str] = []
    for block in blocks:
        if isinstance(block, str):
            found.append(block)
        elif isinstance(block, dict) and cast("dict[str, Any]", block).get("type") in kinds:
            text = cast("dict[str, Any]", block).get("text")
            if isinstance(text, str) and text.strip():
                found.append(text)
    return found
