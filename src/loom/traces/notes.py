"""What other memories saved: mem0, stores of LangGraph, agent files of Letta, and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import groupby
from pathlib import PurePath
from typing import Any, Final, cast

from loom.errors import UsageError
from loom.traces._blocks import JsonObject, maybe_table, maybe_text
from loom.traces.transcript import (
    EMPTY,
    EVENT,
    HARNESS,
    SUMMARY,
    TOOL,
    SkippedLine,
    SpokenText,
    Transcript,
    Writer,
    texts_in,
    time_of,
    without_harness,
)

MEM0: Final = "mem0"
LANGGRAPH: Final = "langgraph"
LETTA: Final = "letta"
MARKDOWN: Final = "markdown"
_TEXT_KEYS: Final = ("memory", "content", "text", "data", "value", "kind")
"""Where an item of a LangGraph store usually has its text."""
_DEEP: Final = 20
_TIMES: Final = ("updated_at", "created_at")


def is_mem0(record: JsonObject) -> bool:
    """Whether an object is one memory of mem0."""
    return isinstance(record.get("memory"), str) and "messages" not in record


def is_langgraph(record: JsonObject) -> bool:
    """Whether an object is one item of a LangGraph store."""
    place = record.get("namespace", record.get("prefix"))  # a row of its table in Postgres has a prefix
    return {"key", "value"} <= record.keys() and isinstance(place, list | str)


def is_letta(record: JsonObject) -> bool:
    """Whether an object is an agent file of Letta."""
    return ("agents" in record and "blocks" in record) or ("core_memory" in record and "messages" in record)


def read_mem0(values: Iterable[tuple[int, Any]], path: str) -> Iterator[Transcript]:
    """The memories of mem0, those of each user together."""
    rows = [(line, maybe_table(value)) for line, value in values]
    rows.sort(key=lambda row: maybe_text(row[1].get("user_id")))
    for owner, of_user in groupby(rows, key=lambda row: maybe_text(row[1].get("user_id"))):
        found = [_note(line, maybe_text(row.get("memory")), row) for line, row in of_user]
        yield _notes(MEM0, path, found, owner=owner)


def read_langgraph(values: Iterable[tuple[int, Any]], path: str) -> Iterator[Transcript]:
    """The items of a LangGraph store."""
    found: list[SpokenText | SkippedLine] = []
    for line, value in values:
        row = maybe_table(value)
        text = _item_text(row.get("value"))
        namespace = row.get("namespace", row.get("prefix"))
        place = "/".join(map(str, cast("list[Any]", namespace))) if isinstance(namespace, list) else str(namespace)
        found.append(_note(line, text, {**row, "id": f"{place}/{row.get('key')}"}))
    yield _notes(LANGGRAPH, path, found)


def _item_text(value: Any, depth: int = 0) -> str:
    """The text of a value: the field that is usually the text, or all fields with their names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        item = cast("JsonObject", value)
        for key in _TEXT_KEYS:
            if isinstance(item.get(key), str) and (len(item) == 1 or key != "kind"):
                return item[key]
        if depth < _DEEP:
            parts = [(key, _item_text(inner, depth + 1)) for key, inner in item.items()]
            return "\n".join(f"{key}: {text}" for key, text in parts if text)
    if isinstance(value, bool | int | float | list) and value not in (None, []):
        return json.dumps(value, ensure_ascii=False)
    return ""


def _note(line: int, text: str, row: JsonObject) -> SpokenText | SkippedLine:
    if not text.strip():
        return SkippedLine(line, EMPTY)
    at = next((time for key in _TIMES if (time := time_of(row.get(key))) is not None), None)
    return SpokenText(id=_id(maybe_text(row.get("id")), text), writer="note", text=text.strip(), at=at, line=line)


def _id(name: str, text: str) -> str:
    """The id of a note: another one once its text has changed."""
    return f"{name}:{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


def _notes(program: str, path: str, found: Iterable[SpokenText | SkippedLine], owner: str = "") -> Transcript:
    entries = list(found)
    return Transcript(
        program=program,
        session_id=PurePath(path).stem,
        path=path,
        owner=owner,
        texts=tuple(entry for entry in entries if isinstance(entry, SpokenText)),
        skipped=tuple(entry for entry in entries if isinstance(entry, SkippedLine)),
    )


# Letta: blocks are notes, messages are a conversation. Both versions of the file.


def read_letta(values: Iterable[tuple[int, Any]], path: str) -> Iterator[Transcript]:
    """The blocks of an agent file as notes, and the messages of each agent in it."""
    for line, value in values:
        file = maybe_table(value)
        blocks = _objects(file.get("blocks")) or _objects(file.get("core_memory"))
        found = [_block(line, block) for block in blocks]
        yield _notes(LETTA, path, found)
        for agent in _objects(file.get("agents")) or [file]:
            session = maybe_text(agent.get("name")) or maybe_text(agent.get("id")) or PurePath(path).stem
            said = [_letta_message(line, n, session, one) for n, one in enumerate(_objects(agent.get("messages")))]
            yield Transcript(
                program=LETTA,
                session_id=session,
                path=path,
                texts=tuple(one for one in said if isinstance(one, SpokenText)),
                skipped=tuple(one for one in said if isinstance(one, SkippedLine)),
            )


def _block(line: int, block: JsonObject) -> SpokenText | SkippedLine:
    label = maybe_text(block.get("label"))
    if label == "persona":
        return SkippedLine(line, HARNESS)
    text = maybe_text(block.get("value")).strip()
    return _note(line, f"{label}: {text}" if label and text else text, {**block, "id": f"block/{label}"})


def _letta_message(line: int, number: int, session: str, message: JsonObject) -> SpokenText | SkippedLine:
    role = message.get("role")
    text = "\n\n".join(texts_in(message.get("content"), "text")) or maybe_text(message.get("text"))
    writer: Writer = "assistant"
    if role == "user":
        writer = "user"
        text, reason = _letta_words(text)
        if reason:
            return SkippedLine(line, reason)
    elif role == "assistant":
        text = text or _sent(message)
        if not text.strip():
            return SkippedLine(line, TOOL if message.get("tool_calls") else EMPTY)
    else:
        return SkippedLine(line, TOOL if role == "tool" else HARNESS)
    at = time_of(message.get("created_at"))
    id = maybe_text(message.get("id")) or f"{session}:{number}"
    return SpokenText(id=id, writer=writer, text=text, at=at, line=line)


def _letta_words(text: str) -> tuple[str, str]:
    """A person's words, which Letta wraps with their time, or why it is something else: a heartbeat, a summary."""
    try:
        given: Any = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        given = None
    wrapped = maybe_table(given)
    if isinstance(wrapped.get("type"), str) and wrapped["type"] != "user_message":
        is_summary = wrapped["type"] == "system_alert" and "summary" in maybe_text(wrapped.get("message"))
        return "", SUMMARY if is_summary else HARNESS
    words = without_harness(maybe_text(wrapped.get("message")) if wrapped.get("type") else text)
    return words, "" if words else HARNESS if text.strip() else EMPTY


def _sent(message: JsonObject) -> str:
    """What an agent said with the tool that older ones speak with."""
    for call in _objects(message.get("tool_calls")):
        function = maybe_table(call.get("function"))
        if function.get("name") == "send_message":
            try:
                return maybe_text(maybe_table(json.loads(maybe_text(function.get("arguments")))).get("message"))
            except (ValueError, RecursionError):
                return ""
    return ""


def _objects(value: Any) -> list[JsonObject]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", row) for row in rows if isinstance(row, dict)]


# Markdown: each section of a file is a note.

MARKDOWN_SUFFIXES: Final = (".md", ".markdown")
_HEADING: Final = re.compile(r"(?m)^(?=#{1,6} )")
_FRONT: Final = re.compile(r"\A---\n.*?\n---\s*\n", re.DOTALL)
_LONGEST: Final = 4000
"""Characters of a note; a longer section is cut between paragraphs."""


def is_markdown(path: PurePath) -> bool:
    """Whether a file is Markdown, by its name."""
    return path.suffix.lower() in MARKDOWN_SUFFIXES


def read_markdown(pieces: Iterable[bytes], path: str) -> Iterator[Transcript]:
    """The sections of a Markdown file, as notes.

    Raises:
        UsageError: it is not UTF-8 text.
    """
    try:
        text = b"".join(pieces).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"it is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    found: list[SpokenText | SkippedLine] = []
    front = _FRONT.match(text)
    line = 1
    if front:
        found.append(SkippedLine(1, EVENT))
        line += front.group().count("\n")
    for section in _HEADING.split(text[front.end() :] if front else text):
        for part in _cut(section):
            if part.strip():
                start = line + part[: len(part) - len(part.lstrip())].count("\n")
                name = PurePath(path).name
                found.append(SpokenText(id=_id(name, part.strip()), writer="note", text=part.strip(), line=start))
            line += part.count("\n")
    yield _notes(MARKDOWN, path, found)


def _cut(section: str) -> Iterator[str]:
    """A section in parts that are not too long, between paragraphs where there are any."""
    while len(section) > _LONGEST:
        end = section.rfind("\n\n", 0, _LONGEST)
        end = end + 2 if end > 0 else _LONGEST
        yield section[:end]
        section = section[end:]
    yield section
