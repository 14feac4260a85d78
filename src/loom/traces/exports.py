"""Conversations that people export: of ChatGPT, of claude.ai, and messages as JSON, in parts that can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from loom.errors import UsageError
from loom.traces._blocks import JsonObject, maybe_table, maybe_text
from loom.traces.transcript import (
    EMPTY,
    HARNESS,
    REWOUND,
    THINKING,
    TOOL,
    SkippedLine,
    SpokenText,
    Transcript,
    Writer,
    time_of,
    without_harness,
)

CHATGPT: Final = "chatgpt"
CLAUDE_AI: Final = "claude.ai"
MESSAGES: Final = "messages"

_SYSTEM: Final = "system: instructions are not part of the conversation"
_NO_ROLE: Final = "no role: the message does not say who wrote it"
_SKIPPED_ROLES: Final = {"system": _SYSTEM, "developer": _SYSTEM, "tool": TOOL, "function": TOOL}
_PEOPLE: Final = ("user", "human")
_TIMES: Final = ("timestamp", "create_time", "created_at", "at")
_NAMES: Final = ("sessionId", "session_id", "session", "conversation_id")
_MOST = 1000
"""Entries of one conversation that are buffered and given together."""
_MOST_CHARS = 8_000_000
"""Characters of all conversations that are buffered; usually far more than _MOST entries have."""


class _ExportedTalk(NamedTuple):
    """What an object holds: a conversation, or a message of one."""

    program: str
    session_id: str
    messages: list[JsonObject]
    is_complete: bool = False
    rewound: int = 0
    title: str = ""


@dataclass(slots=True)
class _Part:
    """A part of a conversation that is being read."""

    found: _ExportedTalk
    start: int
    texts: list[SpokenText] = field(default_factory=list[SpokenText])
    skipped: list[SkippedLine] = field(default_factory=list[SkippedLine])
    chars: int = 0


class _Parts:
    """Buffers parts of conversations until they are long enough, or complete."""

    def __init__(self, path: str) -> None:
        self.has_texts = False
        self._path = path
        self._open: dict[str, _Part] = {}
        self._starts: dict[str, int] = {}
        self._chars = 0

    def add(self, found: _ExportedTalk, message: JsonObject, around: JsonObject, line: int) -> Iterator[Transcript]:
        """Add a message; `around` is the object it is in, which may have its time. Yields parts that are full."""
        session = found.session_id
        part = self._open.setdefault(session, _Part(found, self._starts.get(session, 0)))
        entry = _entry(message, around, line, f"{session}:{part.start + len(part.texts)}")
        if isinstance(entry, SpokenText):
            part.texts.append(entry)
            part.chars += len(entry.text)
            self._chars += len(entry.text)
            self.has_texts = True
        else:
            part.skipped.append(entry)
        # Cut by number of entries, not by length, so that parts are the same when the file is read again.
        if len(part.texts) + len(part.skipped) >= _MOST:
            yield from self.take(session)
        if self._chars > _MOST_CHARS:
            yield from self.take()

    def take(self, *sessions: str, rewound: Iterable[SkippedLine] = ()) -> Iterator[Transcript]:
        """Yield what is buffered of these conversations, or of all."""
        for session in sessions or [*self._open]:
            if part := self._open.pop(session, None):
                self._starts[session] = part.start + len(part.texts)
                self._chars -= part.chars
                yield Transcript(
                    program=part.found.program,
                    session_id=session,
                    path=self._path,
                    title=part.found.title,
                    start=part.start,
                    texts=tuple(part.texts),
                    skipped=(*part.skipped, *rewound),
                )


def read_exports(
    values: Iterable[tuple[int, Any]], *, name: str, path: str, is_array: bool, refusal: str
) -> Iterator[Transcript]:
    """The conversations among these values, in order; `name` is for those without an id.

    Only conversations whose messages arrive one by one are buffered.

    Raises:
        UsageError: something is not an object, or nothing is a conversation.
    """
    parts = _Parts(path)
    for number, (line, value) in enumerate(values):
        if not isinstance(value, dict) and not is_array:
            raise UsageError(f"line {line}: this is not a JSON object; {refusal}")
        record = maybe_table(cast("object", value))
        found = _conversation(record, name, number)
        for message in found.messages:
            yield from parts.add(found, message, record, line)
        if found.is_complete:
            yield from parts.take(found.session_id, rewound=[SkippedLine(line, REWOUND)] * found.rewound)
    if not parts.has_texts:
        raise UsageError(f"it holds no conversation that Loom can read; {refusal}")
    yield from parts.take()


def is_export(record: JsonObject) -> bool:
    """Whether an object is a conversation, or a message of one."""
    if "mapping" in record or "chat_messages" in record or isinstance(record.get("messages"), list):
        return True
    return bool({"role", "author", "speaker"} & maybe_table(record.get("message") or record).keys())


def _conversation(record: JsonObject, stem: str, number: int) -> _ExportedTalk:
    name = next((str(record[key]) for key in _NAMES if record.get(key)), None)
    title = maybe_text(record.get("title")) or maybe_text(record.get("name"))
    if "mapping" in record:
        session = str(record.get("id") or name or f"{stem}-{number}")
        nodes = {id: maybe_table(node) for id, node in maybe_table(record["mapping"]).items()}
        shown, rewound = _branch(nodes, record.get("current_node"), "parent")
        messages = [maybe_table(node["message"]) for node in shown if isinstance(node.get("message"), dict)]
        lost = [node for node in rewound if _text(maybe_table(node.get("message")).get("content")).strip()]
        return _ExportedTalk(CHATGPT, session, messages, is_complete=True, rewound=len(lost), title=title)
    if isinstance(record.get("chat_messages"), list):
        session = str(record.get("uuid") or name or f"{stem}-{number}")
        given = [maybe_table(one) for one in record["chat_messages"]]
        messages, rewound = given, list[JsonObject]()
        if all("uuid" in one and "parent_message_uuid" in one for one in given):  # older exports have one branch
            nodes = {str(one["uuid"]): one for one in given}
            messages, rewound = _branch(nodes, record.get("current_leaf_message_uuid"), "parent_message_uuid")
        return _ExportedTalk(CLAUDE_AI, session, messages, is_complete=True, rewound=len(rewound), title=title)
    if isinstance(record.get("messages"), list):
        session = name or str(record.get("id") or f"{stem}-{number}")
        return _ExportedTalk(MESSAGES, session, [maybe_table(one) for one in record["messages"]], is_complete=True)
    inner = record.get("message")
    message = cast("JsonObject", inner) if isinstance(inner, dict) else record
    return _ExportedTalk(MESSAGES, name or stem, [message])


def _branch(nodes: Mapping[str, JsonObject], last: object, parent: str) -> tuple[list[JsonObject], list[JsonObject]]:
    """The nodes on the path to the last one shown, and those on branches that were edited away."""
    at = last if isinstance(last, str) and last in nodes else next(reversed(list(nodes)), None)
    path: dict[str, JsonObject] = {}
    while isinstance(at, str) and at in nodes and at not in path:
        path[at] = nodes[at]
        at = nodes[at].get(parent)
    return [*path.values()][::-1], [node for id, node in nodes.items() if id not in path]


def _entry(message: JsonObject, around: JsonObject, line: int, id: str) -> SpokenText | SkippedLine:
    """The text of a message, or why it is skipped."""
    author = maybe_table(message.get("author"))
    role = author.get("role") or message.get("role") or message.get("speaker") or message.get("sender")
    if not isinstance(role, str):
        return SkippedLine(line, _NO_ROLE)
    if role in _SKIPPED_ROLES:
        return SkippedLine(line, _SKIPPED_ROLES[role])
    metadata = maybe_table(message.get("metadata"))
    content = message.get("content", message.get("text"))
    text = _text(content) or (_text(message.get("text")) if "sender" in message else "")
    if metadata.get("is_visually_hidden_from_conversation"):
        return SkippedLine(line, HARNESS)
    if not text.strip():
        return SkippedLine(line, _why_empty(content))
    is_person = role != "assistant"
    words = without_harness(text) if is_person else text
    if not words:
        return SkippedLine(line, HARNESS)
    if not is_person and message.get("recipient", "all") != "all":
        return SkippedLine(line, TOOL)
    when = next((place[key] for place in (message, around) for key in _TIMES if place.get(key)), None)
    name = maybe_text(author.get("name") or message.get("name")).strip() if role.casefold() in _PEOPLE else role
    writer: Writer = "user" if is_person else "assistant"
    given = maybe_text(message.get("uuid")) or maybe_text(message.get("id")) or id
    return SpokenText(
        id=given, writer=writer, text=words, at=time_of(when), line=line, speaker=name if is_person else ""
    )


def _why_empty(content: Any) -> str:
    kind = maybe_text(maybe_table(content).get("content_type"))
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    kinds = {kind} | {maybe_text(maybe_table(block).get("type")) for block in blocks}
    if kinds & {"thoughts", "reasoning_recap", "thinking"}:
        return THINKING
    return TOOL if kinds & {"tool_use", "tool_result", "code", "execution_output"} else EMPTY


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = cast("JsonObject", content).get("parts")
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [cast("JsonObject", part).get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str) and text)
