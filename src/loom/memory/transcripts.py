"""Conversations that other programs kept: a ChatGPT export, Claude Code transcripts, plain JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from loom.errors import UsageError
from loom.memory.ingest import Turn

_ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation: a name that stays the same when it is read again, and its turns in order."""

    session_id: str
    turns: tuple[Turn, ...]


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
    found = list(_chatgpt(text, path) if text.lstrip().startswith("[") else _lines(text, path))
    kept = [t for t in found if t.turns]
    if not kept:
        raise UsageError(f"{path} holds no conversation that Loom can read; give a ChatGPT export or JSON lines")
    return kept


def _lines(text: str, path: Path) -> Iterator[Transcript]:
    sessions: dict[str, list[Turn]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data: Any = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: this is not JSON ({error}); nothing was imported") from error
        if not isinstance(data, dict):
            raise UsageError(f"{path}, line {number}: this is no JSON object; nothing was imported")
        record = cast("dict[str, Any]", data)
        turn = _turn(record.get("message") if isinstance(record.get("message"), dict) else record, record)
        if turn:
            name = record.get("sessionId") or record.get("session_id") or record.get("session") or path.stem
            sessions.setdefault(str(name), []).append(turn)
    for name, turns in sessions.items():
        yield Transcript(name, tuple(turns))


def _chatgpt(text: str, path: Path) -> Iterator[Transcript]:
    try:
        conversations: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: this is not JSON ({error}); nothing was imported") from error
    for number, given in enumerate(conversations):
        conversation = _object(given)
        nodes = {id: _object(node) for id, node in _object(conversation.get("mapping")).items()}
        turns = [turn for node in _branch(nodes, conversation.get("current_node")) if (turn := _turn(node, node))]
        yield Transcript(
            str(conversation.get("id") or conversation.get("conversation_id") or f"{path.stem}-{number}"), tuple(turns)
        )


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


def _turn(message: Any, record: Mapping[str, Any]) -> Turn | None:
    author = message.get("author")
    role = author.get("role") if isinstance(author, dict) else message.get("role") or message.get("speaker")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    text = _text(message.get("content", message.get("text")))
    if not text.strip() or not isinstance(role, str) or role in ("system", "tool"):
        return None
    when = record.get("timestamp") or record.get("create_time") or record.get("at")
    return Turn(text=text, speaker=role, origin="assistant" if role == "assistant" else "import", at=_time(when))


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
