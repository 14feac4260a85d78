"""Transcripts of Claude Code: the branch that was shown last, subagents apart, each message and each call once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, cast

from loom.traces._blocks import JsonObject, maybe_table, maybe_text
from loom.traces.transcript import (
    API_ERROR,
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

PROGRAM: Final = "claude-code"
_SYNTHETIC: Final = "<synthetic>"
"""The model that Claude Code names for answers of its own."""
_TITLES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""Where a session's title is, the best first."""
_SLASH: Final = re.compile(r"/[A-Za-z][\w:-]*(?:\s|$)")
"""A command such as /clear; a path such as /tmp/x is not one."""
_CONTINUED: Final = "This session is being continued from a previous conversation that ran out of context"
"""How a summary begins; older versions did not mark it."""
_MADE: Final = ("isMeta", "sourceToolUseID", "planContent")
"""Marks of a prompt that the program wrote: its own, that of a skill, the plan that a model made."""
_MESSAGE_KEYS: Final = frozenset({"role", "author", "speaker", "text", "messages", "input", "traceId"})
_BOUNDARIES: Final = ("compact_boundary", "microcompact_boundary")


def is_claude_code(record: JsonObject) -> bool:
    """Whether a line is one of Claude Code."""
    if not isinstance(record.get("type"), str) or "payload" in record:
        return False
    if {"parentUuid", "leafUuid", "isSidechain"} & record.keys() or record["type"] == "file-history-snapshot":
        return True
    # The first line may be of a type that is new; only messages of other programs have their words beside the session.
    return "sessionId" in record and ("uuid" in record or not _MESSAGE_KEYS & record.keys())


@dataclass(slots=True)
class _Line:
    """What is known of one line: its place in the tree, and its text or why it has none."""

    number: int
    id: str
    parent: str | None
    kind: str
    message_id: str = ""
    writer: Writer = "user"
    text: str = ""
    reason: str = ""
    at: float | None = None
    call: RecordedCall | None = None
    compaction: RecordedCompaction | None = None


@dataclass(slots=True)
class _Conversation:
    """The lines of one agent in a file."""

    session_id: str
    agent: str = ""
    lines: list[_Line] = field(default_factory=list[_Line])
    repeated: list[RecordedCall] = field(default_factory=list[RecordedCall])
    """Calls that were copied from an earlier file."""


class ClaudeCodeReader:
    """Reads files of Claude Code one after another: what a resumed session copied from an earlier file counts once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._calls: set[str] = set()

    def read(self, lines: Iterable[tuple[int, JsonObject | str]], path: str) -> Iterator[Transcript]:
        """The conversations in one file: the main one first, then those of the subagents in it."""
        titles: dict[str, str] = {}
        skipped: list[SkippedLine] = []
        main = _Conversation(PurePath(path).stem)
        sessions: dict[str, None] = {}
        agents: dict[str, _Conversation] = {}
        roots: dict[str, str] = {}
        for number, record in lines:
            if isinstance(record, str):
                skipped.append(SkippedLine(number, record))
                continue
            kind = maybe_text(record.get("type"))
            if name := _TITLES.get(kind):
                titles[kind] = maybe_text(record.get(name))
            id = maybe_text(record.get("uuid"))
            if (
                not id and "message" in record
            ):  # somebody took the ids out: then the order of the file is the conversation
                id = f"{main.session_id}:{number}"
                record = {**record, "parentUuid": main.lines[-1].id if main.lines else None}  # noqa: PLW2901
            if not id or kind not in {"user", "assistant", "system", "attachment", "progress"}:
                skipped.append(SkippedLine(number, EVENT))
                continue
            session = maybe_text(record.get("sessionId"))
            sessions[session] = None
            if id in self._seen or maybe_text(maybe_table(record.get("forkedFrom")).get("messageUuid")) in self._seen:
                skipped.append(SkippedLine(number, REPEATED_LINE))
                call = None if record.get("isSidechain") else self._line(number, id, kind, record).call
                main.repeated += [call] if call else []
                continue
            self._seen.add(id)
            line = self._line(number, id, kind, record)
            if record.get("isSidechain"):
                agent = maybe_text(record.get("agentId")) or roots.get(line.parent or "", id)
                roots[id] = agent
                owner = agents.setdefault(agent, _Conversation(session or main.session_id, agent))
            else:
                owner = main
            owner.lines.append(line)
        if main.session_id not in sessions:  # a file is named after its session, and may copy lines of another one
            main.session_id = next(filter(None, sessions), main.session_id)
        yield from self._conversations(main, agents, skipped, path, titles)

    def _conversations(
        self,
        main: _Conversation,
        agents: dict[str, _Conversation],
        skipped: list[SkippedLine],
        path: str,
        titles: dict[str, str],
    ) -> Iterator[Transcript]:
        # A file of a subagent has no main conversation: what was skipped in it is told with the first one.
        if main.lines or not agents:
            title = next((titles[kind] for kind in _TITLES if titles.get(kind)), "")
            yield self._transcript(main, skipped, path, title)
            skipped = []
        for one in agents.values():
            yield self._transcript(one, skipped, path, "")
            skipped = []

    def _line(self, number: int, id: str, kind: str, record: JsonObject) -> _Line:
        parent = record.get("parentUuid")
        at = time_of(record.get("timestamp"))
        line = _Line(number, id, parent if isinstance(parent, str) else None, kind, at=at)
        message = maybe_table(record.get("message"))
        if kind == "assistant":
            line.message_id = maybe_text(message.get("id"))
            line.writer = "assistant"
            line.text, line.reason = _answer(record, message)
            line.call = self._call(line, record, message)
        elif kind == "user":
            line.writer, line.text, line.reason = _prompt(record, message)
        elif kind == "attachment":
            line.text, line.reason = _queued(record)
        elif kind == "system" and record.get("subtype") in _BOUNDARIES:
            line.compaction = _compaction(line, record)
        else:
            line.reason = HARNESS if kind == "system" else EVENT
        if line.parent is None and (line.compaction or line.writer == "summary"):
            # A compaction begins a new chain, and names the old one here.
            line.parent = maybe_text(record.get("logicalParentUuid")) or "?"
        return line

    def _call(self, line: _Line, record: JsonObject, message: JsonObject) -> RecordedCall | None:
        usage = maybe_table(message.get("usage"))
        model = maybe_text(message.get("model"))
        if not usage or model == _SYNTHETIC or record.get("isApiErrorMessage"):
            return None
        return call_of(
            usage,
            id=line.message_id or line.id,
            at=line.at,
            model=model,
            line=line.number,
            program_version=maybe_text(record.get("version")),
            effort=maybe_text(record.get("effort")) or maybe_text(message.get("effort")),
        )

    def _transcript(self, one: _Conversation, skipped: list[SkippedLine], path: str, title: str) -> Transcript:
        shown = _shown(one.lines, self._seen)
        texts: dict[str, SpokenText] = {}
        calls: dict[str, RecordedCall] = {}
        compactions: list[RecordedCompaction] = []
        left = list(skipped)
        repeated = {call.id: call for call in one.repeated}
        for line in one.lines:
            if line.call and line.call.id in self._calls:
                repeated[line.call.id] = line.call
            elif line.call:
                known = calls.get(line.call.id)
                new = _later(known, line.call) if known else replace(line.call, number=len(texts))
                calls[new.id] = new
            if line.compaction:
                compactions.append(replace(line.compaction, number=len(texts)))
            elif line.reason:
                left.append(SkippedLine(line.number, line.reason))
            elif line.id not in shown:
                left.append(SkippedLine(line.number, SUMMARY if line.writer == "summary" else REWOUND))
            else:
                _add(texts, line, is_subagent=bool(one.agent))
        self._calls.update(calls)
        return Transcript(
            program=PROGRAM,
            session_id=f"{one.session_id}/{one.agent}" if one.agent else one.session_id,
            path=path,
            parent=one.session_id if one.agent else None,
            is_subagent=bool(one.agent),
            title=title,
            texts=tuple(texts.values()),
            calls=tuple(calls.values()),
            compactions=tuple(compactions),
            repeated=tuple(repeated.values()),
            skipped=tuple(sorted(left, key=lambda skip: skip.line)),
        )


def call_of(usage: JsonObject, **what: Any) -> RecordedCall:
    """A call with the usage that Anthropic reports, where the fresh input is apart from what was read and written."""
    split = maybe_table(usage.get("cache_creation"))
    long = count_of(split.get("ephemeral_1h_input_tokens"))
    written = count_of(usage.get("cache_creation_input_tokens"))
    if written is None and split:
        written = (count_of(split.get("ephemeral_5m_input_tokens")) or 0) + (long or 0)
    return RecordedCall(
        fresh=count_of(usage.get("input_tokens")) or 0,
        output=count_of(usage.get("output_tokens")) or 0,
        read=count_of(usage.get("cache_read_input_tokens")),
        written_short=None if written is None else max(0, written - (long or 0)),
        written_long=long if split else None if written is None else 0,
        **what,
    )


def count_of(value: object) -> int | None:
    """A count of tokens; None where it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value)


def _later(known: RecordedCall, again: RecordedCall) -> RecordedCall:
    """One call over several lines: while it streams, the first lines do not count the whole output yet."""
    if again.output <= known.output:
        return known
    return replace(again, at=known.at, line=known.line, number=known.number)


def _add(texts: dict[str, SpokenText], line: _Line, *, is_subagent: bool) -> None:
    """Add a line's text, or append it to the text of its message, which is written over several lines."""
    key = line.message_id or line.id
    if before := texts.get(key):
        texts[key] = replace(before, text=f"{before.text}\n\n{line.text}")
        return
    writer: Writer = "program" if is_subagent and line.writer == "user" else line.writer
    texts[key] = SpokenText(id=line.id, writer=writer, text=line.text, at=line.at, line=line.number)


def _shown(lines: list[_Line], seen: set[str]) -> set[str]:
    """The ids on the branch that was shown last: the path from the last message back to the first.

    `seen` are the ids of all files: a parent that was read in another file begins the path.
    """
    by_id = {line.id: line for line in lines}
    before: dict[str, str | None] = {}
    previous: str | None = None
    for line in lines:
        # A compaction may name a message that it keeps, and that is written again after it: a path in a circle.
        known = before if line.compaction else by_id
        if line.parent is None or line.parent in known:
            before[line.id] = line.parent
        else:  # the line of the parent could not be read: this one goes on where the file went on
            before[line.id] = None if line.parent in seen and line.parent not in by_id else previous
        previous = line.id
    last = next((line.id for line in reversed(lines) if line.kind in {"user", "assistant"}), None)
    shown: set[str] = set()
    while last is not None and last not in shown:
        shown.add(last)
        last = before.get(last)
    # Several lines of one message are one: with tools that run at once, some of them are beside the path. So is a
    # prompt that was typed while the model worked, if nothing follows it.
    messages = {by_id[id].message_id for id in shown} - {""}
    parents = set(before.values())
    for line in lines:
        beside = line.kind == "attachment" and line.id not in parents and before[line.id] in shown
        if line.message_id in messages or beside:
            shown.add(line.id)
    return shown


def _answer(record: JsonObject, message: JsonObject) -> tuple[str, str]:
    """The text of the model's answer, or why it has none."""
    if record.get("isApiErrorMessage") or message.get("model") == _SYNTHETIC:
        return "", API_ERROR
    content = message.get("content")
    texts = texts_in(content, "text")
    if texts:
        return "\n\n".join(texts), ""
    kinds = {maybe_text(block.get("type")) for block in _blocks(content)}
    if kinds & {"thinking", "redacted_thinking"} and len(kinds) == len(kinds & {"thinking", "redacted_thinking"}):
        return "", THINKING
    return "", TOOL if kinds else EMPTY


def _prompt(record: JsonObject, message: JsonObject) -> tuple[Writer, str, str]:
    """Who wrote a line of type user, its text, or why it has none."""
    content = message.get("content")
    texts = texts_in(content, "text")
    if record.get("isCompactSummary") or (texts and texts[0].lstrip().startswith(_CONTINUED)):
        return "summary", "\n\n".join(texts), "" if texts else EMPTY
    origin = maybe_table(record.get("origin")).get("kind", "human")
    if any(record.get(name) for name in _MADE) or origin != "human":
        return "program", "", HARNESS
    words = "\n\n".join(text for text in map(without_harness, texts) if text)
    if words:
        return "user", words, ""
    if any(block.get("type") == "tool_result" for block in _blocks(content)):
        return "tool", "", TOOL
    return "user", "", HARNESS if texts else EMPTY


def _queued(record: JsonObject) -> tuple[str, str]:
    """What a person typed while the model worked, or why an attachment is something else."""
    attachment = maybe_table(record.get("attachment"))
    if attachment.get("type") != "queued_command":
        return "", HARNESS
    origin = maybe_table(attachment.get("origin")).get("kind", "human")
    is_meta = attachment.get("isMeta") or record.get("isMeta")
    if attachment.get("commandMode", "prompt") != "prompt" or origin != "human" or is_meta:
        return "", HARNESS
    words = "\n\n".join(text for text in map(without_harness, texts_in(attachment.get("prompt"), "text")) if text)
    return (words, "") if words and not _SLASH.match(words) else ("", HARNESS)


def _compaction(line: _Line, record: JsonObject) -> RecordedCompaction:
    data = maybe_table(record.get("compactMetadata")) or maybe_table(record.get("microcompactMetadata"))
    before, saved = count_of(data.get("preTokens")), count_of(data.get("tokensSaved"))
    after = count_of(data.get("postTokens"))
    if after is None and before is not None and saved is not None:
        after = max(0, before - saved)
    trigger = maybe_text(data.get("trigger"))
    return RecordedCompaction(at=line.at, number=0, line=line.number, trigger=trigger, before=before, after=after)


def _blocks(content: object) -> list[JsonObject]:
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("JsonObject", block) for block in blocks if isinstance(block, dict)]
