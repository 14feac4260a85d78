"""Export and import: JSON lines, streamed JSON, and other programs' transcripts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeAlias, cast

from anyio import to_thread

from loom.core.codec import FORMAT, record_from_dict, record_to_dict
from loom.core.record import Episode, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound, StaleWrite, UsageError
from loom.memory._history import is_old, replaced_text
from loom.memory._shared import get_all, retry_stale
from loom.memory._write.ingest import ContextKeys, Utterance, check_record, name_speaker
from loom.memory._write.write import ProgressCallback
from loom.memory.results import Remembered, Skip
from loom.protocols.memory_store import Store

Write: TypeAlias = Callable[[Sequence[Record], ProgressCallback | None], Awaitable[Remembered]]
"""Writes records, and reports its progress."""

_PAGE = 500
_CHARS = 4_000_000
"""Maximum characters of a batch; the records of a page usually have far fewer."""
_MOST_VERSIONS = 1000
"""An imported block begins with this version at the most: a store counts up to it one by one."""
_THERE = "there before under this id, and written again"


async def lines_of(records: AsyncIterable[Record]) -> AsyncIterator[str]:
    """Records as JSON lines; the first line names the format."""
    yield json.dumps({"loom": "memory", "format": FORMAT})
    async for record in records:
        yield json.dumps(record_to_dict(record), ensure_ascii=False)


def batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in batches that are read and written together."""
    batch, chars = list[str](), 0
    for line in lines:
        batch.append(line)
        chars += len(line)
        if len(batch) >= _PAGE or chars >= _CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


async def import_lines(
    lines: Iterable[str], write: Write, *, start: int = 0, progress: ProgressCallback | None = None
) -> Remembered:
    """Read records batch by batch and pass each batch to `write`; `start` lines were imported before.

    Raises:
        UsageError: a line is not a record; the message names it, and the lines that were imported.
    """
    kept, skipped, notes = list[Record](), list[Skip](), dict[str, None]()
    for batch in batches(lines):
        try:
            records = await to_thread.run_sync(records_of, batch, start)
        except UsageError as error:
            done = f"lines 1 to {start:,} are imported; correct it and import all of it again, nothing is added twice"
            raise UsageError(f"{error}; {done if start else 'nothing was imported'}") from error.__cause__
        written = await write(records, _offset(progress, len(kept)))
        kept += written.kept
        skipped += written.skipped
        notes |= dict.fromkeys(written.notes)
        start += len(batch)
    return Remembered(kept=tuple(kept), skipped=tuple(skipped), notes=tuple(notes))


def _offset(progress: ProgressCallback | None, done: int) -> ProgressCallback | None:
    """Progress of the whole import; the total grows batch by batch."""
    return None if progress is None else lambda now, total: progress(done + now, done + total)


def records_of(lines: Iterable[str], start: int = 0) -> list[Record]:
    """The records of JSON lines, all checked before any is used; raises UsageError naming a line that is not one."""
    found = [_record_of(number, line) for number, line in enumerate(lines, start + 1) if line.strip()]
    return [record for record in found if record is not None]


def _record_of(number: int, line: str) -> Record | None:
    try:
        data: Any = json.loads(line.removeprefix("\ufeff") if number == 1 else line)
        if isinstance(data, dict) and "loom" not in data:
            return check_record(record_from_dict(data))  # pyright: ignore[reportUnknownArgumentType]
    except RecursionError:
        raise UsageError(f"line {number} is nested too deeply to be read") from None
    except UsageError as error:
        raise UsageError(f"line {number}: {error}") from error
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise UsageError(f"line {number} is not a JSON object")
    version: Any = data.get("format", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(version, int) or version > FORMAT:
        raise UsageError(f"this export has format {version!r}; this Loom reads up to {FORMAT}")
    return None


async def put_records(
    store: Store, user: Scope, records: Iterable[Record], *, neighbours: ContextKeys, keep: int
) -> tuple[list[Episode], tuple[Skip, ...]]:
    """Write records in one transaction, then the search keys of the turns among them.

    A block whose text is replaced leaves its old text behind, with at most `keep` of them.
    Returns the episodes, and a skip for each record that existed already.
    """
    newest = {record.id: record for record in records}
    before = await get_all(store, user, list(newest))

    async def put(epoch: str) -> list[Episode]:
        known = await get_all(store, user, list(newest))
        # A record that existed at first and does not now was forgotten meanwhile, and must stay forgotten.
        wanted = {id: given for id, given in newest.items() if id in known or id not in before}
        written, too_many = list[Record](), list[str]()
        for id, given in wanted.items():
            old = known.get(id)
            following = _following(old, given)
            written += following
            if following and isinstance(old, WorkingBlock) and not is_old(old):
                saved, ids = await replaced_text(store, user, old, keep=keep, taken=wanted)
                written += saved
                too_many += (gone for gone in ids if gone not in wanted)
        await store.write(user, put=written, delete=too_many, since=epoch)
        return [record for record in written if isinstance(record, Episode)]

    async def put_keys(epoch: str) -> None:
        keys = await neighbours.keys_among(episodes, user=user)
        try:
            await store.write(user, keys=keys, since=epoch)
        except NotFound as error:  # a turn was forgotten since it was read; a store may look at it before the epoch
            raise StaleWrite(user.user_id) from error

    episodes = await retry_stale(store, user, put)
    neighbours.forget(user)
    await retry_stale(store, user, put_keys)
    return episodes, tuple(Skip(given.text[:80], _THERE) for id, given in newest.items() if id in before)


def _following(old: Record | None, record: Record) -> list[Record]:
    """What to write for a record: of a block all versions up to its own, because a store takes only the next one.

    An existing block gets the version after the stored one, or nothing if that has the same text.
    """
    if not isinstance(record, WorkingBlock):
        return [record]
    if not isinstance(old, WorkingBlock):
        return [replace(record, version=version) for version in range(1, min(record.version, _MOST_VERSIONS) + 1)]
    is_same = (old.text, old.provenance) == (record.text, record.provenance)
    return [] if is_same else [replace(record, version=old.version + 1)]


# Streaming JSON: values one per line, one after another, or in one array; one value is in memory at a time.

MAX_VALUE = 64 * 1024 * 1024
"""Maximum bytes of one value: all of it is in memory while it is read."""

_BOM = b"\xef\xbb\xbf"
# Where strings, containers and the elements of an array begin and end; escaped characters are skipped.
_MARKS = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)


class JsonStream:
    """The JSON values in a stream of bytes with their line numbers, whatever the form of the stream.

    It can be read once. `is_array` says whether the values are the elements of one array.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        rest = iter(pieces)
        head = _begin(rest)
        self.is_array = head.lstrip()[:1] == b"["
        self._first = None if self.is_array else _first_value(head)
        self._pieces = chain([head], rest)

    def begins_with(self, name: str) -> bool:
        """Whether the first line is an object with this key."""
        return isinstance(self._first, dict) and name in self._first  # pyright: ignore[reportUnknownMemberType]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Each value, with the number of the line where it begins; raises UsageError naming a line it cannot read."""
        on_lines = self._first is not None
        for line, text in _lines(self._pieces) if on_lines else _Values(is_array=self.is_array).of(self._pieces):
            if text.strip():
                yield line, _parse(line, text)

    def lines(self) -> Iterator[str]:
        """Each line as text, including blank ones; raises UsageError naming a line it cannot read."""
        for line, text in _lines(self._pieces):
            yield _decode(line, text)


def _begin(pieces: Iterator[bytes]) -> bytes:
    """The head of a stream without its byte order mark: enough to see an array, or the first line that is not blank."""
    head, has_begun = bytearray(), False
    for piece in pieces:
        head += piece
        if has_begun and (b"\n" in piece or len(head) > MAX_VALUE):
            break
        if not has_begun and len(head) >= len(_BOM):
            if head.startswith(_BOM):
                del head[: len(_BOM)]
            text = head.lstrip()
            has_begun = bool(text)
            if text.startswith(b"[") or b"\n" in text:
                break
    return bytes(head)


def _first_value(head: bytes) -> Any:
    """The first line as JSON; None if that line is not a complete value."""
    try:
        return json.loads(head.lstrip().partition(b"\n")[0].decode())
    except (ValueError, RecursionError):
        return None


def _lines(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line, with its number."""
    line, buffer, size = 1, list[bytes](), 0
    for piece in pieces:
        first, *more = piece.split(b"\n")
        buffer.append(first)
        size += len(first)
        for part in more:
            yield line, b"".join(buffer)
            line, buffer, size = line + 1, [part], len(part)
        _check_size(line, size)
    yield line, b"".join(buffer)


class _Values:
    """Cuts JSON text into its values, or into those of one array, by where strings and containers end."""

    def __init__(self, *, is_array: bool) -> None:
        self._is_array = is_array
        self._depth = 0
        self._in_string = False
        self._line, self._buffer, self._size = 1, list[bytes](), 0

    def of(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Each value as text with its line number; the rest of the stream comes last."""
        escape = b""
        for piece in pieces:
            text = escape + piece
            # A backslash at the end of a piece is kept with the character it escapes, in the next piece.
            escape = b"\\" if (len(text) - len(text.rstrip(b"\\"))) % 2 else b""
            yield from self._cut(text[: len(text) - len(escape)])
            _check_size(self._line, self._size)
        line, left = self._flush(escape)
        if self._is_array:
            raise UsageError(f"line {line}: the array that begins here or before does not end")
        yield line, left

    def _cut(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        start = 0
        for mark in _MARKS.finditer(text):
            sign = mark.group()
            if sign == b'"':
                self._in_string = not self._in_string
            elif self._in_string or len(sign) > 1:
                continue
            elif sign in b"{[":
                self._depth += 1
                if self._is_array and self._depth == 1:
                    self._flush(text[start : mark.end()])
                    start = mark.end()
            elif sign == b",":
                if self._is_array and self._depth == 1:
                    line, value = self._flush(text[start : mark.start()])
                    yield line, value or sign  # an empty element is not JSON: parsing the comma reports it
                    start = mark.end()
            else:
                self._depth -= 1
                if self._depth <= 0:
                    yield self._flush(text[start : mark.start() if self._is_array else mark.end()])
                    self._depth, self._is_array, start = 0, False, mark.end()
        self._buffer.append(text[start:])
        self._size += len(text) - start

    def _flush(self, more: bytes) -> tuple[int, bytes]:
        """The buffered value with its end, and the number of its first line."""
        text = b"".join([*self._buffer, more])
        value = text.lstrip()
        line = self._line + text.count(b"\n", 0, len(text) - len(value))
        self._line, self._buffer, self._size = self._line + text.count(b"\n"), [], 0
        return line, value.rstrip()


def _check_size(line: int, size: int) -> None:
    if size > MAX_VALUE:
        raise UsageError(f"line {line}: one value has more than {MAX_VALUE // 1024 // 1024} MiB; split it")


def _parse(line: int, text: bytes) -> Any:
    decoded = _decode(line, text)
    try:
        return json.loads(decoded)
    except RecursionError:
        raise UsageError(f"line {line}: this is nested too deeply to be read") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"line {line + error.lineno - 1}: this is not JSON ({error.msg})") from error
    except ValueError as error:  # a number of very many digits
        raise UsageError(f"line {line}: this cannot be read ({error})") from error


def _decode(line: int, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"line {line}: this is not UTF-8 text ({error.reason}); save it as UTF-8") from error


# Reads conversations of other programs: ChatGPT exports, Claude Code transcripts, messages as JSON.

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


@dataclass(slots=True)
class Transcript:
    """A conversation, or a part of a long one: its turns in order, and the entries that were skipped.

    The session id is the same when it is read again. `start` is the number of turns before this part.
    """

    session_id: str
    start: int
    turns: list[Utterance] = field(default_factory=list[Utterance])
    skipped: list[Skip] = field(default_factory=list[Skip])


class _Parts:
    """Buffers parts of conversations until they are long enough, or complete."""

    def __init__(self) -> None:
        self.has_turns = False
        self._open: dict[str, Transcript] = {}
        self._starts: dict[str, int] = {}
        self._chars = 0

    def add(self, session: str, message: Mapping[str, Any], around: Mapping[str, Any]) -> Iterator[Transcript]:
        """Add a message; `around` is the object it is in, which may have its time. Yields parts that are full."""
        part = self._open.setdefault(session, Transcript(session, self._starts.get(session, 0)))
        found = _turn(message, around)
        if isinstance(found, Utterance):
            part.turns.append(found)
            self.has_turns = True
        else:
            part.skipped.append(found)
        self._chars += len(found.text)
        # Cut by number of entries, not by length, so that parts are the same when the file is read again.
        if len(part.turns) + len(part.skipped) >= _MOST:
            yield from self.take(session)
        if self._chars > _MOST_CHARS:
            yield from self.take()

    def take(self, *sessions: str) -> Iterator[Transcript]:
        """Yield what is buffered of these conversations, or of all."""
        for session in sessions or [*self._open]:
            if part := self._open.pop(session, None):
                self._starts[session] = part.start + len(part.turns)
                self._chars -= sum(len(entry.text) for entry in (*part.turns, *part.skipped))
                yield part


def read_transcripts(stream: JsonStream, name: str) -> Iterator[Transcript]:
    """The conversations in a stream of any known format, in order; `name` is for those without an id.

    Only conversations whose messages arrive one by one are buffered.

    Raises:
        UsageError: something cannot be read, and the message names its line; or nothing is a conversation.
    """
    parts = _Parts()
    for number, (line, value) in enumerate(stream):
        if not isinstance(value, dict) and not stream.is_array:
            raise UsageError(f"line {line}: this is not a JSON object; give {FORMS}")
        record = _object(value)
        session, messages, is_complete = _conversation(record, name, number)
        for message in messages:
            yield from parts.add(session, message, record)
        if is_complete:
            yield from parts.take(session)
    if not parts.has_turns:
        raise UsageError(f"it holds no conversation that Loom can read; give {FORMS}")
    yield from parts.take()


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


def _turn(message: Mapping[str, Any], around: Mapping[str, Any]) -> Utterance | Skip:
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
    return Utterance(
        text=text, speaker=speaker, origin="assistant" if role == "assistant" else "import", at=_time(when)
    )


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
