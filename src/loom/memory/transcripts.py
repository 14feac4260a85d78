"""Reads conversations of other programs: ChatGPT exports, Claude Code transcripts, messages as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from loom.errors import UsageError
from loom.memory.ingest import Turn, name_speaker
from loom.memory.json_stream import JsonStream
from loom.memory.values import Skip

FORMS = (
    "an export of Loom, an export of ChatGPT (conversations.json), transcripts of Claude Code, or messages with `role` "
    'and `content`: one on a line, a JSON array of them, or {"messages": [...]} for each conversation'
)
"""The formats that can be read, for error messages."""

_SYSTEM = "system: instructions are not part of the conversation"
_TOOL = "tool: tool results are not imported"
_SKIPPED_ROLES = {"system": _SYSTEM, "developer": _SYSTEM, "tool": _TOOL, "function": _TOOL}
_PEOPLE = ("user", "human")
_NO_ROLE = "no role: the message does not say who wrote it"
_EMPTY = "empty: it has no text"
_TIMES = ("timestamp", "create_time", "created_at", "at")
_NAMES = ("sessionId", "session_id", "session", "conversation_id")
_MOST = 1000
"""Entries of one conversation that are buffered and written together."""
_MOST_CHARS = 8_000_000
"""Characters of all conversations that are buffered; usually far more than _MOST entries have."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation, or a part of a long one: its turns in order, and the entries that were skipped.

    The session id is the same when it is read again. `start` is the number of turns before this part.
    """

    session_id: str
    turns: tuple[Turn, ...]
    skipped: tuple[Skip, ...] = ()
    start: int = 0


@dataclass(slots=True)
class _OpenPart:
    """The entries of a conversation since its last part."""

    start: int
    turns: list[Turn] = field(default_factory=list[Turn])
    skipped: list[Skip] = field(default_factory=list[Skip])
    chars: int = 0


class _Parts:
    """Buffers parts of conversations until they are long enough, or complete."""

    def __init__(self) -> None:
        self.has_turns = False
        self._open: dict[str, _OpenPart] = {}
        self._starts: dict[str, int] = {}
        self._chars = 0

    def add(self, session: str, message: Mapping[str, Any], around: Mapping[str, Any]) -> Iterator[Transcript]:
        """Add a message; `around` is the object it is in, which may have its time. Yields parts that are full."""
        part = self._open.setdefault(session, _OpenPart(self._starts.get(session, 0)))
        found = _turn(message, around)
        if isinstance(found, Turn):
            part.turns.append(found)
            self.has_turns = True
        else:
            part.skipped.append(found)
        part.chars += len(found.text)
        self._chars += len(found.text)
        # Cut by number of entries, not by length, so that parts are the same when the file is read again.
        if len(part.turns) + len(part.skipped) >= _MOST:
            yield from self.take(session)
        if self._chars > _MOST_CHARS:
            yield from self.take(*self._open)

    def take(self, *sessions: str) -> Iterator[Transcript]:
        """Yield what is buffered of these conversations."""
        for session in sessions:
            if part := self._open.pop(session, None):
                self._starts[session] = part.start + len(part.turns)
                self._chars -= part.chars
                yield Transcript(session, tuple(part.turns), tuple(part.skipped), part.start)

    def take_all(self) -> Iterator[Transcript]:
        """Yield everything that is buffered."""
        return self.take(*self._open)


def read_transcripts(stream: JsonStream, name: str) -> Iterator[Transcript]:
    """The conversations in a stream of any known format, in order; `name` is for those without an id.

    Only conversations whose messages arrive one by one are buffered.

    Raises:
        UsageError: something cannot be read, and the message names its line; or nothing is a conversation.
    """
    parts = _Parts()
    for number, record in enumerate(_objects(stream)):
        session, messages, is_complete = _conversation(record, name, number)
        for message in messages:
            yield from parts.add(session, message, record)
        if is_complete:
            yield from parts.take(session)
    if not parts.has_turns:
        raise UsageError(f"it holds no conversation that Loom can read; give {FORMS}")
    yield from parts.take_all()


def _objects(stream: JsonStream) -> Iterator[dict[str, Any]]:
    for line, value in stream:
        if not isinstance(value, dict) and not stream.is_array:
            raise UsageError(f"line {line}: this is not a JSON object; give {FORMS}")
        yield _object(value)


def _conversation(record: dict[str, Any], stem: str, number: int) -> tuple[str, list[dict[str, Any]], bool]:
    """The session id of an object, its messages, and whether these are all of the conversation."""
    name = next((str(record[key]) for key in _NAMES if record.get(key)), None)
    if "mapping" in record:  # ChatGPT
        nodes = {id: _object(node) for id, node in _object(record["mapping"]).items()}
        return str(record.get("id") or name or f"{stem}-{number}"), _branch(nodes, record.get("current_node")), True
    if isinstance(record.get("messages"), list):
        return name or str(record.get("id") or f"{stem}-{number}"), [_object(one) for one in record["messages"]], True
    message = record.get("message")
    return name or stem, [cast("dict[str, Any]", message) if isinstance(message, dict) else record], False


def _branch(nodes: Mapping[str, Any], last: object) -> list[dict[str, Any]]:
    """The messages on the path to the last one shown; branches that were edited away are left out."""
    found: list[dict[str, Any]] = []
    at = last if isinstance(last, str) and last in nodes else next(reversed(list(nodes)), None)
    while isinstance(at, str) and at in nodes and len(found) <= len(nodes):
        message = nodes[at].get("message")
        if isinstance(message, dict):
            found.append(cast("dict[str, Any]", message))
        at = nodes[at].get("parent")
    return found[::-1]


def _turn(message: Mapping[str, Any], around: Mapping[str, Any]) -> Turn | Skip:
    """The turn of a message, or why it is skipped."""
    author = _object(message.get("author"))
    role = author.get("role") or message.get("role") or message.get("speaker")
    text = _text(message.get("content", message.get("text")))
    if not isinstance(role, str):
        return Skip(text[:80], _NO_ROLE)
    if role in _SKIPPED_ROLES or not text.strip():
        return Skip(text[:80], _SKIPPED_ROLES.get(role, _EMPTY))
    when = next((place[key] for place in (message, around) for key in _TIMES if place.get(key)), None)
    name = author.get("name") or message.get("name")
    speaker = name_speaker(name) if role.casefold() in _PEOPLE and isinstance(name, str) and name.strip() else role
    return Turn(text=text, speaker=speaker, origin="assistant" if role == "assistant" else "import", at=_time(when))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = cast("dict[str, Any]", content).get("parts")
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _time(value: Any) -> datetime | None:
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return None
    return found.replace(tzinfo=UTC) if found and not found.tzinfo else found


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
