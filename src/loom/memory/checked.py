"""Checks the size of what callers pass to memory, before anything reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loom.core.checks import check_id
from loom.core.heavy import off_loop
from loom.core.limits import MAX_BLOCK, MAX_OBJECT, MAX_PREDICATE, MAX_TEXT, check_attributes, check_length, check_name
from loom.core.record import Episode, Fact, Record, Scalar
from loom.memory.ingest import Turn, clean
from loom.memory.values import Skip


def check_turns(
    turns: Sequence[Turn], *, speaker: str | None, attributes: Mapping[str, Scalar] | None, key: str | None
) -> None:
    """Raise UsageError if a speaker, an attribute or the key is too long. Texts are checked by clean_turns()."""
    if key is not None:
        check_id(key, "the key of what is remembered")
    check_attributes(attributes or {}, "what is remembered")
    for name in (speaker, *(turn.speaker for turn in turns)):
        if isinstance(name, str):
            check_name(name, "the speaker")
    for turn in turns:
        if turn.attributes:
            check_attributes(turn.attributes, "a turn")


async def clean_turns(turns: Sequence[Turn]) -> list[tuple[str, Skip | None]]:
    """The text of each turn without control characters, or the reason why it is skipped."""
    size = sum(len(turn.text) for turn in turns if isinstance(turn.text, str))  # pyright: ignore[reportUnnecessaryIsInstance]
    return await off_loop(size, lambda: [clean(turn.text) for turn in turns])


def check_fact(subject: str | None = None, predicate: str | None = None, object: str | None = None) -> None:
    """Raise UsageError if a subject, a predicate or an object is too long. Values that are not text fail elsewhere."""
    if isinstance(subject, str):
        check_name(subject, "the subject of a fact")
    if isinstance(predicate, str):
        check_length(predicate, "the predicate of a fact", MAX_PREDICATE, "say in a few words how the two are related")
    if isinstance(object, str):
        check_length(object, "the object of a fact", MAX_OBJECT, "remember() a longer text, or pin it with set_block()")


def check_block(name: str, text: str) -> None:
    """Raise UsageError if a block is too long to be pinned."""
    if isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_name(name, "the name of a block")
    if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_length(text, f"the text of block {name!r}", MAX_BLOCK, "remember() it, or add it to a knowledge base")


def check_record(record: Record) -> Record:
    """An imported record, if it is within the limits of what can be remembered."""
    if isinstance(record, Episode):
        check_length(record.text, f"the text of episode {record.id}", MAX_TEXT, "split it")
        check_name(record.speaker or "", f"the speaker of episode {record.id}")
        check_attributes(record.attributes, f"episode {record.id}")
    elif isinstance(record, Fact):
        check_fact(record.subject, record.predicate, record.object)
    else:
        check_length(record.text, f"the text of block {record.name!r}", MAX_BLOCK, "split it")
    return record
