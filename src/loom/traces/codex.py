"""Rollouts of Codex: each text once, counts differenced, what a fork repeats of its parent left out."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from typing import Final

from loom.traces._blocks import JsonObject, maybe_table, maybe_text
from loom.traces.claude_code import count_of
from loom.traces.transcript import (
    EMPTY,
    EVENT,
    HARNESS,
    REPEATED_LINE,
    REWOUND,
    SUMMARY,
    THINKING,
    TOOL,
    RecordedCall,
    RecordedCompaction,
    SkippedLine,
    SpokenText,
    Transcript,
    Writer,
    texts_in,
    time_of,
    without_harness,
)

PROGRAM: Final = "codex"
_TYPES: Final = ("session_meta", "turn_context", "response_item", "event_msg", "compacted", "token_usage_record")
_SAID: Final[dict[str, Writer]] = {"user_message": "user", "agent_message": "assistant"}
_THINKING: Final = ("reasoning", "agent_reasoning", "agent_reasoning_raw_content", "agent_reasoning_section_break")
_COMPACTED: Final = ("compaction", "compaction_summary", "context_compaction")
"""Items that stand for what was shortened; their text is encrypted."""
_COUNTS: Final = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")


def is_codex(record: JsonObject) -> bool:
    """Whether a line is one of Codex."""
    if {"timestamp", "type", "payload"} <= record.keys():
        return True
    if record.get("type") in _TYPES and ("payload" in record or "usage" in record):
        return True
    # The first line of old files is the meta data itself.
    return {"id", "timestamp", "instructions"} <= record.keys() and "type" not in record and "messages" not in record


@dataclass(slots=True)
class _Session:
    """What is read of one file, line by line."""

    id: str
    path: str
    parent: str | None = None
    is_subagent: bool = False
    has_meta: bool = False
    version: str = ""
    model: str = ""
    effort: str = ""
    texts: list[SpokenText] = field(default_factory=list[SpokenText])
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    repeated: list[RecordedCall] = field(default_factory=list[RecordedCall])
    compactions: list[RecordedCompaction] = field(default_factory=list[RecordedCompaction])
    skipped: list[SkippedLine] = field(default_factory=list[SkippedLine])
    once: defaultdict[str, Counter[object]] = field(default_factory=lambda: defaultdict(Counter[object]))
    """Texts and counts that were written in one way, and will be in the other, by that way."""
    total: Counter[str] = field(default_factory=Counter[str])
    """The counts of all calls up to now."""

    def skip(self, line: int, reason: str) -> None:
        self.skipped.append(SkippedLine(line, reason))

    def is_second(self, way: str, other: str, what: object) -> bool:
        """Whether this was written in the other way before; if not, it is expected in that one."""
        if self.once[other][what] > 0:
            self.once[other][what] -= 1
            return True
        self.once[way][what] += 1
        return False


class _Repeats:
    """Finds the lines that a fork repeats from its parent, in their order, until its own begin."""

    def __init__(self, parent: list[bytes]) -> None:
        self._places: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, digest in enumerate(parent):
            self._places[digest].append(place)
        self._at = 0
        self._is_over = not parent

    def has(self, digest: bytes | None, *, ends: bool) -> bool:
        """Whether the line is the parent's; `ends` says whether one that is not begins the fork's own part."""
        if self._is_over or digest is None:
            return False
        places = self._places.get(digest, [])
        found = bisect_left(places, self._at)
        if found < len(places):
            self._at = places[found] + 1
            return True
        self._is_over = ends
        return False


class CodexReader:
    """Reads rollouts one after another: what a fork repeats of its parent, counts included, counts once."""

    def __init__(self) -> None:
        self._digests: dict[str, list[bytes]] = {}
        self._responses: set[str] = set()

    def read(self, lines: Iterable[tuple[int, JsonObject | str]], path: str) -> Iterator[Transcript]:
        """The conversation in one file."""
        one = _Session(PurePath(path).stem, path)
        digests: list[bytes] = []
        repeats = _Repeats([])
        for number, record in lines:
            if isinstance(record, str):
                one.skip(number, record)
                continue
            kind, payload = _opened(record)
            if kind == "session_meta":
                if not one.has_meta:
                    _begin(one, payload)
                    # A file that is there twice repeats itself.
                    repeats = _Repeats(self._digests.get(one.id) or self._digests.get(one.parent or "", []))
                one.skip(number, EVENT)
                continue
            digest = _digest(kind, payload)
            if digest:
                digests.append(digest)
            if repeats.has(digest, ends=payload.get("type") in ("user_message", "token_count")):
                _repeat_count(one, number, payload, time_of(record.get("timestamp")))
                one.skip(number, REPEATED_LINE)
                continue
            self._take(one, number, kind, payload, time_of(record.get("timestamp")))
        self._digests[one.id] = digests
        if one.parent:  # forks of a parent that is not among the files repeat the same beginning
            self._digests.setdefault(one.parent, digests)
        yield Transcript(
            program=PROGRAM,
            session_id=one.id,
            path=path,
            parent=one.parent,
            is_subagent=one.is_subagent,
            texts=tuple(one.texts),
            calls=tuple(one.calls),
            compactions=tuple(one.compactions),
            repeated=tuple(one.repeated),
            skipped=tuple(sorted(one.skipped, key=lambda skip: skip.line)),
        )

    def _take(self, one: _Session, number: int, kind: str, payload: JsonObject, at: float | None) -> None:
        type = maybe_text(payload.get("type"))
        if kind == "turn_context":
            one.model = maybe_text(payload.get("model")) or one.model
            one.effort = maybe_text(payload.get("effort")) or maybe_text(payload.get("reasoning_effort")) or one.effort
            one.skip(number, EVENT)
        elif kind == "token_usage_record":
            self._record_usage(one, number, payload, at)
        elif kind == "compacted":
            _compact(one, number, payload, at)
        elif kind == "event_msg" and type == "token_count":
            _count(one, number, payload, at)
        elif kind == "event_msg" and type == "thread_rolled_back":
            _rewind(one, number, payload)
        elif kind == "event_msg" and type in _SAID:
            _say(one, number, _SAID[type], maybe_text(payload.get("message")), at, way="event")
        elif kind == "response_item" and type == "message":
            _message(one, number, payload, at)
        elif type in _THINKING:
            one.skip(number, THINKING)
        elif type in _COMPACTED:
            one.skip(number, SUMMARY)
        else:
            one.skip(number, TOOL if kind == "response_item" else EVENT)

    def _record_usage(self, one: _Session, number: int, payload: JsonObject, at: float | None) -> None:
        """The usage of one response, which newer versions write beside the counts."""
        usage = maybe_table(payload.get("usage"))
        response = maybe_text(payload.get("response_id"))
        one.skip(number, EVENT if response not in self._responses else REPEATED_LINE)
        if not usage or (response and response in self._responses):
            return
        self._responses.add(response)
        counts = _counts(usage)
        if not one.is_second("record", "count", _key(counts)):
            one.calls.append(_call(one, counts, usage, id=response or f"{one.id}:{number}", line=number, at=at))


def _opened(record: JsonObject) -> tuple[str, JsonObject]:
    """The kind of a line, and what it is about; old files have no envelope."""
    kind = maybe_text(record.get("type"))
    if "payload" in record:
        return kind, maybe_table(record["payload"])
    if kind == "token_usage_record":
        return kind, record
    return ("response_item" if kind else "session_meta"), record


def _begin(one: _Session, meta: JsonObject) -> None:
    one.has_meta = True
    one.id = maybe_text(meta.get("id")) or maybe_text(meta.get("session_id")) or one.id
    one.version = maybe_text(meta.get("cli_version"))
    source = maybe_table(meta.get("source"))
    spawn = maybe_table(maybe_table(source.get("subagent")).get("thread_spawn"))
    one.is_subagent = "subagent" in source or meta.get("thread_source") == "subagent"
    named = (spawn.get("parent_thread_id"), meta.get("forked_from_id"), meta.get("parent_thread_id"))
    one.parent = next((maybe_text(name) for name in named if name and name != one.id), None)


def _digest(kind: str, payload: JsonObject) -> bytes | None:
    """What a line says, whenever and by whom it was written: equal lines of a parent and its fork are one."""
    type = maybe_text(payload.get("type"))
    said: object
    if type == "token_count":
        info = maybe_table(payload.get("info"))
        said = [info.get("total_token_usage"), info.get("last_token_usage")]
    elif type in _SAID or kind == "compacted":
        said = payload.get("message")
    elif type == "message":
        said = [payload.get("role"), *texts_in(payload.get("content"), "input_text", "output_text", "text")]
    else:
        said = payload.get("call_id")
    if not said:
        return None
    return blake2b(json.dumps([kind, type, said]).encode(), digest_size=12).digest()


def _say(one: _Session, number: int, writer: Writer, text: str, at: float | None, *, way: str) -> None:
    """Add a text, unless the same was written in the other way."""
    words = without_harness(text) if writer == "user" else text.strip()
    if not words:
        one.skip(number, HARNESS if text.strip() else EMPTY)
    elif one.is_second(way, "item" if way == "event" else "event", (writer, words)):
        one.skip(number, REPEATED_LINE)
    else:
        by: Writer = "program" if one.is_subagent and writer == "user" else writer
        one.texts.append(SpokenText(id=f"{one.id}:{number}", writer=by, text=words, at=at, line=number))


def _message(one: _Session, number: int, payload: JsonObject, at: float | None) -> None:
    role = payload.get("role")
    texts = texts_in(payload.get("content"), "input_text", "output_text", "text")
    if role == "assistant":
        _say(one, number, "assistant", "\n\n".join(texts), at, way="item")
    elif role == "user":
        # Images stand between tags of their own, and what the program adds is a part of its own.
        words = [text for text in texts if not text.strip().startswith(("<image", "</image>"))]
        words = [text for text in words if without_harness(text)] or words
        _say(one, number, "user", "\n".join(words), at, way="item")
    else:
        one.skip(number, HARNESS)


def _compact(one: _Session, number: int, payload: JsonObject, at: float | None) -> None:
    one.compactions.append(RecordedCompaction(at=at, number=len(one.texts), line=number))
    if text := maybe_text(payload.get("message")).strip():
        one.texts.append(SpokenText(id=f"{one.id}:{number}", writer="summary", text=text, at=at, line=number))


def _rewind(one: _Session, number: int, payload: JsonObject) -> None:
    """The last turns were taken back: what was said in them is not a part of the conversation."""
    turns = count_of(payload.get("num_turns")) or 0
    begins = [place for place, text in enumerate(one.texts) if text.writer in {"user", "program"}]
    if turns and begins:
        cut = begins[-min(turns, len(begins))]
        for text in one.texts[cut:]:
            one.skip(text.line, REWOUND)
        del one.texts[cut:]
    one.skip(number, EVENT)


def _count(one: _Session, number: int, payload: JsonObject, at: float | None) -> None:
    counts, usage = _last_counts(one, payload)
    if any(counts.values()) and not one.is_second("count", "record", _key(counts)):
        one.calls.append(_call(one, counts, usage, id=f"{one.id}:{number}", line=number, at=at))
    one.skip(number, EVENT)


def _repeat_count(one: _Session, number: int, payload: JsonObject, at: float | None) -> None:
    """A fork goes on counting from the sums of its parent, and reads what the last call of its parent left.

    A subagent may have other instructions and so another prompt.
    """
    if payload.get("type") == "token_count":
        counts, usage = _last_counts(one, payload)
        if any(counts.values()) and not one.is_subagent:
            one.repeated.append(_call(one, counts, usage, id=f"{one.id}:{number}", line=number, at=at))


def _last_counts(one: _Session, payload: JsonObject) -> tuple[Counter[str], JsonObject]:
    """The usage of the last call: as it is written, or as the difference of the sums before and after it."""
    info = maybe_table(payload.get("info"))
    total, last = maybe_table(info.get("total_token_usage")), maybe_table(info.get("last_token_usage"))
    sums = _counts(total)
    if not (total or last) or (total and sums == one.total):  # it is written once more
        return Counter(), {}
    counts = _counts(last)
    if not last:
        has_grown = all(sums[name] >= one.total[name] for name in _COUNTS)
        counts = Counter({name: sums[name] - one.total[name] for name in _COUNTS}) if has_grown else sums
    if total:
        one.total = sums
    return counts, last or total


def _counts(usage: JsonObject) -> Counter[str]:
    return Counter({name: count_of(usage.get(name)) or 0 for name in _COUNTS})


def _key(counts: Counter[str]) -> tuple[int, ...]:
    return tuple(counts[name] for name in _COUNTS)


def _call(
    one: _Session, counts: Counter[str], usage: JsonObject, *, id: str, line: int, at: float | None
) -> RecordedCall:
    read = counts["cached_input_tokens"] if "cached_input_tokens" in usage else None
    written = counts["cache_write_input_tokens"] if "cache_write_input_tokens" in usage else None
    # What was read lies inside the input, and so does what was written.
    return RecordedCall(
        id=id,
        at=at,
        model=one.model,
        fresh=max(0, counts["input_tokens"] - (read or 0) - (written or 0)),
        output=counts["output_tokens"],
        read=read,
        written_short=written,
        written_long=None,
        number=len(one.texts),
        line=line,
        program_version=one.version,
        effort=one.effort,
    )
