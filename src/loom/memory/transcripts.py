"""Conversations that other programs kept: a ChatGPT export, Claude Code transcripts, messages as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from loom.errors import UsageError
from loom.memory.ingest import Turn, named
from loom.memory.values import Skip

FORMS = (
    "an export of Loom, an export of ChatGPT (conversations.json), transcripts of Claude Code, or messages with `role` "
    'and `content`: one on a line, a JSON array of them, or {"messages": [...]} for each conversation'
)
"""What can be read, for people."""

_SYSTEM = "system: instructions are no part of what was said"
_TOOL = "tool: the answers of tools are not kept"
_NOT_SAID = {"system": _SYSTEM, "developer": _SYSTEM, "tool": _TOOL, "function": _TOOL}
_PEOPLE = ("user", "human")
_NO_ROLE = "no role: nobody is named who said it"
_EMPTY = "empty: it has no text"
_TIMES = ("timestamp", "create_time", "created_at", "at")
_NAMES = ("sessionId", "session_id", "session", "conversation_id")


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation: a name that stays the same when it is read again, its turns in order, and what is none."""

    session_id: str
    turns: tuple[Turn, ...]
    skipped: tuple[Skip, ...] = ()


@dataclass(slots=True)
class _Reading:
    """What was found of a conversation so far."""

    turns: list[Turn] = field(default_factory=list[Turn])
    skipped: list[Skip] = field(default_factory=list[Skip])

    def add(self, message: Mapping[str, Any], around: Mapping[str, Any]) -> None:
        """Take a message, in an object that may say when it was."""
        found = _turn(message, around)
        if isinstance(found, Turn):
            self.turns.append(found)
        else:
            self.skipped.append(found)


def read_transcripts(path: Path) -> list[Transcript]:
    """The conversations in a file, whatever program wrote it.

    Raises:
        UsageError: the file cannot be read, or holds no conversation.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error
    found: dict[str, _Reading] = {}
    for number, record in enumerate(_records(text, path)):
        name, messages = _said(record, path.stem, number)
        reading = found.setdefault(name, _Reading())
        for message in messages:
            reading.add(message, record)
    if not any(reading.turns for reading in found.values()):
        raise UsageError(f"{path} holds no conversation that Loom can read; give {FORMS}")
    return [Transcript(name, tuple(one.turns), tuple(one.skipped)) for name, one in found.items()]


def _records(text: str, path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file: one JSON value, an array of them, or one on each line."""
    try:
        whole: Any = json.loads(text)
    except ValueError as error:
        if text.lstrip().startswith("["):
            raise UsageError(f"{path}: this is not JSON ({error}); nothing was imported") from error
        yield from _lines(text, path)
    else:
        yield from map(_object, cast("list[Any]", whole) if isinstance(whole, list) else [whole])


def _lines(text: str, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data: Any = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: this is not JSON ({error}); nothing was imported") from error
        if not isinstance(data, dict):
            raise UsageError(f"{path}, line {number}: this is no JSON object; nothing was imported")
        yield cast("dict[str, Any]", data)


def _said(record: dict[str, Any], stem: str, number: int) -> tuple[str, list[dict[str, Any]]]:
    """The conversation that an object belongs to, and the messages in it; `number` names one without a name."""
    name = next((str(record[key]) for key in _NAMES if record.get(key)), None)
    if "mapping" in record:  # ChatGPT
        nodes = {id: _object(node) for id, node in _object(record["mapping"]).items()}
        return str(record.get("id") or name or f"{stem}-{number}"), _branch(nodes, record.get("current_node"))
    if isinstance(record.get("messages"), list):
        return name or str(record.get("id") or f"{stem}-{number}"), [_object(one) for one in record["messages"]]
    message = record.get("message")
    return name or stem, [cast("dict[str, Any]", message) if isinstance(message, dict) else record]


def _branch(nodes: Mapping[str, Any], last: object) -> list[dict[str, Any]]:
    """The messages from the first one to the last that was shown; branches that were edited away are left out."""
    found: list[dict[str, Any]] = []
    at = last if isinstance(last, str) and last in nodes else next(reversed(list(nodes)), None)
    while isinstance(at, str) and at in nodes and len(found) <= len(nodes):
        message = nodes[at].get("message")
        if isinstance(message, dict):
            found.append(cast("dict[str, Any]", message))
        at = nodes[at].get("parent")
    return found[::-1]


def _turn(message: Mapping[str, Any], around: Mapping[str, Any]) -> Turn | Skip:
    """What was said, or why it does not count as that."""
    author = _object(message.get("author"))
    role = author.get("role") or message.get("role") or message.get("speaker")
    text = _text(message.get("content", message.get("text")))
    if not isinstance(role, str):
        return Skip(text[:80], _NO_ROLE)
    if role in _NOT_SAID or not text.strip():
        return Skip(text[:80], _NOT_SAID.get(role, _EMPTY))
    when = next((place[key] for place in (message, around) for key in _TIMES if place.get(key)), None)
    name = author.get("name") or message.get("name")
    speaker = named(name) if role.casefold() in _PEOPLE and isinstance(name, str) and name.strip() else role
    return Turn(text=text, speaker=speaker, origin="assistant" if role == "assistant" else "import", at=_time(when))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = cast("dict[str, Any]", content).get("parts")
    texts = [_text_of_part(part) for part in cast("list[Any]", content)] if isinstance(content, list) else []
    return "\n".join(filter(None, texts))


def _text_of_part(part: Any) -> str:
    if isinstance(part, dict):
        part = cast("dict[str, Any]", part).get("text")
    return part if isinstance(part, str) else ""


def _time(value: Any) -> datetime | None:
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return None
    return found.replace(tzinfo=UTC) if found and not found.tzinfo else found


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
