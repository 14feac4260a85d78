"""Keeping the end of a history, and a structured extract of the rest made without a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Unpack

from loom.core.checkpoint import Shown
from loom.core.message import ToolCallPart, ToolResultPart, Usage, plain
from loom.core.threads import off_loop
from loom.errors import CannotCompact, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.coverage import chars_of, decisions_in, leaves, paths_in
from loom.session.compaction.cut import Cut, CutOptions, Cutter, describe, earlier_lines, one_line
from loom.session.compaction.summary_message import SummaryMessage, fit, originals_in, read_record, records_in
from loom.session.history import is_request

_TIMES: Final = re.compile(r"^(.+) x(\d{1,9})")


class Snapshot(Cutter):
    """Shows what was asked, decided, touched, called and what failed, of the part that goes. Asks no model.

    There is one snapshot: an earlier one is folded into the new one.

    Args:
        max_tokens: the most a snapshot takes.
        options: see CutOptions.
    """

    name = "snapshot"

    def __init__(self, *, max_tokens: int = 1000, **options: Unpack[CutOptions]) -> None:
        if max_tokens < 1:
            raise UsageError(f"max_tokens={max_tokens}; a snapshot needs at least 1")
        super().__init__(**options)
        self._max_tokens = max_tokens

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        limit = min(choice.room, self._max_tokens)
        dropped = choice.dropped
        record = await off_loop(chars_of(dropped), lambda: fit(_snapshot(dropped), limit, counter))
        if record is None:
            raise CannotCompact(f"{limit} tokens are left for a snapshot, which is less than its frame takes")
        return record, Usage()


def _snapshot(dropped: Sequence[Shown]) -> SummaryMessage:
    """The extract, most important part first: what does not fit is left off at the end."""
    messages = [item for item in dropped if read_record(item.message) is None]
    records = records_in(dropped)
    earlier = [record.parts for record in records if record.strategy == Snapshot.name]
    parts = {
        name: _newest((*(line for old in earlier for line in old.get(name, ())), *find(messages)), most)
        for name, (most, find) in _PARTS.items()
    }
    parts["counts"] = _added((*(line for old in earlier for line in old.get("counts", ())), *_counts(messages)))
    others = (record for record in records if record.strategy != Snapshot.name)
    parts["earlier"] = (
        *(line for old in earlier for line in old.get("earlier", ())),
        *earlier_lines(others),
    )
    return SummaryMessage(Snapshot.name, originals_in(dropped), parts)


def _requests(messages: Sequence[Shown]) -> Iterable[str]:
    for item in messages:
        if is_request(item.message):
            others = (plain(part) for part in item.message.parts if not isinstance(part, ToolResultPart))
            yield one_line(item.message.text or " ".join(others), 400)


def _decisions(messages: Sequence[Shown]) -> Iterable[str]:
    # Only the messages' own text: a page that a tool fetched decides nothing.
    return (one_line(found, 240) for item in messages for found in decisions_in(item.message.text))


def _errors(messages: Sequence[Shown]) -> Iterable[str]:
    for item in messages:
        for part in item.message.parts:
            if isinstance(part, ToolResultPart) and part.is_error:
                yield one_line(" ".join(map(plain, part.content)), 300)


def _files(messages: Sequence[Shown]) -> Iterable[str]:
    """Every path in the input of any tool, newest mention last."""
    found: dict[str, None] = {}
    for call in _calls_in(messages):
        for path in paths_in("\n".join(leaves(call.input))):
            found.pop(path, None)
            found[path] = None
    return found


def _calls(messages: Sequence[Shown]) -> Iterable[str]:
    return (describe(call) for call in _calls_in(messages))


def _answer(messages: Sequence[Shown]) -> Iterable[str]:
    return (one_line(i.message.text, 240) for i in messages if i.message.role == "assistant" and i.message.text.strip())


def _counts(messages: Sequence[Shown]) -> Iterable[str]:
    counts = Counter(f"calls of {call.name}" for call in _calls_in(messages))
    counts["requests"] = sum(is_request(item.message) for item in messages)
    counts["errors"] = sum(
        isinstance(p, ToolResultPart) and p.is_error for item in messages for p in item.message.parts
    )
    return (f"{one_line(name, 80)} x{count}" for name, count in sorted(counts.items()) if count)


_PARTS: Final[dict[str, tuple[int, Callable[[Sequence[Shown]], Iterable[str]]]]] = {
    "requests": (3, _requests),
    "decisions": (6, _decisions),
    "errors": (2, _errors),
    "files": (20, _files),
    "calls": (5, _calls),
    "answer": (1, _answer),
}
"""How many lines of each kind stay, and where they come from."""


def _calls_in(messages: Sequence[Shown]) -> Iterable[ToolCallPart]:
    return (part for item in messages for part in item.message.parts if isinstance(part, ToolCallPart))


def _newest(lines: Iterable[str], most: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for line in lines:
        if line:
            found.pop(line, None)
            found[line] = None
    return tuple(found)[-most:]


def _added(lines: Iterable[str]) -> tuple[str, ...]:
    """Counts of the same thing as one."""
    counts: Counter[str] = Counter()
    for line in lines:
        if found := _TIMES.fullmatch(line):
            counts[found[1]] += int(found[2])
    return tuple(f"{name} x{count}" for name, count in counts.items())
