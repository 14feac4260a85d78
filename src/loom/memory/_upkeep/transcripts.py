"""The turns of what other programs recorded: whose words become memory, and under which ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from loom.core.record import Origin
from loom.memory._write.ingest import Utterance, name_speaker
from loom.traces.transcript import SUBAGENT, SUMMARY, TOOL, SpokenText, Transcript

_MOST = 1000
"""Turns of a transcript that are written together."""
_ORIGINS: dict[str, Origin] = {"user": "import", "assistant": "assistant"}
_LEFT_OUT = {"summary": SUMMARY, "program": SUBAGENT, "tool": TOOL}
_BY_PLACE = ("chatgpt", "messages")
"""Programs whose texts are known by their place in the conversation: their messages may have no ids."""
_MARKDOWN = "markdown"
_LONGEST_NAME = 100
"""Characters of a name of another program: with four bytes each it is still shorter than an id may be."""


@dataclass(frozen=True, slots=True)
class ImportPart:
    """Turns that are written together under a key, and why texts were left out; notes belong to no session."""

    session_id: str | None
    key: str
    turns: list[Utterance]
    skipped: list[str]


def parts_of(transcript: Transcript) -> Iterator[ImportPart]:
    """The turns of a transcript, which have the same ids whenever it is read.

    Words of people have the origin `import`, so facts are extracted from them. What a model shortened and what a
    subagent was asked are nobody's words. A note that a program saved is `derived`: nobody knows whose words it has.
    """
    skipped = [skip.reason for skip in transcript.skipped]
    turns: dict[str, Utterance] = {}
    for text in transcript.texts:
        reason = SUBAGENT if transcript.is_subagent else _LEFT_OUT.get(text.writer)
        if reason:
            skipped.append(reason)
        else:
            turns[text.id if transcript.program not in _BY_PLACE else str(len(turns))] = _turn(transcript, text)
    is_note = bool(transcript.texts) and all(text.writer == "note" for text in transcript.texts)
    name = _short(transcript.session_id)
    session = None if is_note else name
    key = f"import:{name}" + (f":{transcript.start}" if transcript.start else "")
    found = [*turns.values()]
    for start in range(0, max(1, len(found)), _MOST):
        yield ImportPart(session, key, found[start : start + _MOST], skipped if not start else [])


def _turn(transcript: Transcript, text: SpokenText) -> Utterance:
    speaker = "assistant" if text.writer == "assistant" else "user"
    note: Origin = "file" if transcript.program == _MARKDOWN else "derived"
    return Utterance(
        text=text.text,
        speaker=None if text.writer == "note" else name_speaker(text.speaker) if text.speaker else speaker,
        origin=_ORIGINS.get(text.writer, note),
        at=_moment(text.at),
        key=None if transcript.program in _BY_PLACE else f"import:{transcript.program}:{_short(text.id)}",
    )


def _short(name: str) -> str:
    """A name as it is, or a digest of one that is too long for a store, or has characters that none keeps."""
    if len(name) <= _LONGEST_NAME and name.isprintable() and name.strip():
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _moment(at: float | None) -> datetime | None:
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return None
