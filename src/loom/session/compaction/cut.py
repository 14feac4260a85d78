"""Choosing what stays of a history, and shorter forms of what is too long."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from typing import ClassVar, Final, TypedDict, Unpack

from loom.core.log import Replacement, Shown
from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage, plain
from loom.errors import CannotCompact, UsageError
from loom.protocols.compactor import Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.summary_message import SummaryMessage, glimpse_of, is_glimpse, is_record
from loom.session.config import Retain
from loom.session.history import Unit, current_request, leading_system, rounds_of, units_of
from loom.text.fence import one_line as whole_line

# Shorter forms of what is too large to be shown whole: texts, calls, tool results.

MIN_RESULT: Final = 48
"""Tokens below which a shortened result would say nothing."""


def one_line(text: str, limit: int) -> str:
    """The beginning of a text on one line."""
    line = whole_line(text[: 4 * limit])
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 1].rstrip()}…"


def describe(call: ToolCallPart) -> str:
    """A call on one line, as it might be written in code."""
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in call.arguments.items()}
    arguments = ", ".join(f"{name}={one_line(value, 60)}" for name, value in values.items())
    return one_line(f"{call.name}({arguments})", 160)


def head_and_tail(text: str, limit: int, counter: TokenCounter) -> str:
    """The beginning and the end of a text within `limit` tokens, and a notice of what is missing between them.

    The empty text where not even the notice fits.
    """
    if counter.count(text) <= limit:
        return text
    keep = len(text)
    while keep:
        keep = min(keep // 2, keep - 1)
        head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
        cut = f"{head}\n[... {len(text) - keep:,} of {len(text):,} characters are not shown ...]\n{tail}"
        if counter.count(cut) <= limit:
            return cut
    return ""


def clamped(items: Sequence[Shown], room: int, counter: TokenCounter) -> tuple[Message, ...] | None:
    """The messages with their tool results shortened so that all fit into `room` tokens; None if they cannot.

    Each result may take the same share; what is smaller stays as it is. Calls, ids and error marks are untouched.
    """
    parts = [part for item in items for part in item.message.parts]
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    if not results:
        return None
    rest = sum(counter.count_part(part) for part in parts if not isinstance(part, ToolResultPart))
    share = (room - rest) // len(results)
    if share < MIN_RESULT:
        return None
    messages: list[Message] = []
    for item in items:
        new = tuple(_clamp(p, share, counter) if isinstance(p, ToolResultPart) else p for p in item.message.parts)
        messages.append(item.message if new == item.message.parts else replace(item.message, parts=new))
    size = sum(counter.count_part(part) for message in messages for part in message.parts)
    return tuple(messages) if size <= room else None


def _clamp(result: ToolResultPart, share: int, counter: TokenCounter) -> ToolResultPart:
    if counter.count_part(result) <= share:
        return result
    frame = counter.count_part(replace(result, content=()))
    # Pictures and documents cannot be cut: they are named, the text is shortened.
    text = "\n".join(plain(part) for part in result.content)
    return replace(result, content=(TextPart(head_and_tail(text, share - frame, counter) or "[not shown]"),))


OVERLAP: Final = "overlap"
"""The part of a record that shows the beginning of the last dropped messages."""
_BRIDGE: Final = 200
"""Tokens of an answer up to which it stays complete before a request that stays: about a paragraph. A longer one gets a
glimpse."""


def message_tokens(message: Message, counter: TokenCounter) -> int:
    """What a message takes, as the target of a compaction counts it: its parts."""
    return sum(counter.count_part(part) for part in message.parts)


def shown_tokens(shown: Sequence[Shown], counter: TokenCounter) -> int:
    """What a history takes, as the target of a compaction counts it."""
    return sum(message_tokens(item.message, counter) for item in shown)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which units of a history stay. `edited` are messages that stay in a shorter form, by id."""

    shown: tuple[Shown, ...]
    units: tuple[Unit, ...]
    stays: tuple[bool, ...]
    edited: Mapping[str, Message]
    room: int
    """Tokens that are left for a record of what goes."""
    bridges: frozenset[str] = frozenset()
    """Answers that stay only because the request behind them does."""
    glimpses: Mapping[str, Message] = field(default_factory=dict[str, Message])
    """What is shown of answers that go while the request behind them stays, by id."""

    @property
    def dropped(self) -> tuple[Shown, ...]:
        """The messages that go."""
        return tuple(i for unit, stays in zip(self.units, self.stays, strict=True) if not stays for i in unit.items)

    @property
    def prefix(self) -> tuple[Unit, ...]:
        """Everything up to the last unit that goes: a history that was sent before, byte for byte."""
        last = max((n for n, stays in enumerate(self.stays) if not stays), default=-1)
        return self.units[: last + 1]


def cut(
    shown: Sequence[Shown],
    *,
    target: int,
    counter: TokenCounter,
    keep: AbstractSet[str],
    retain: Retain,
    reserve: int,
    max_messages: int | None = None,
) -> Cut:
    """Choose what stays: what must, then the newest rounds that fit, then the newest units of the first that does not.

    The opening system messages, the current request, everything in `keep`, and calls without results must stay.
    `reserve` tokens are left for a record if they can be spared.

    Where `retain` is firm, it comes before the reserve, the newest answer stays if it fits, and a request that stays
    keeps the answer before it, or a glimpse of it: two requests must never read as one message.

    Raises:
        CannotCompact: what must stay is larger than the target.
    """
    units = units_of(shown)
    sizes = [shown_tokens(unit.items, counter) for unit in units]
    must = _must_stay(shown, units, keep)
    fixed = sum(size for size, needed in zip(sizes, must, strict=True) if needed)
    if fixed > target:
        raise CannotCompact(_why_not(units, sizes, must, target))
    room = target - fixed
    spare = 0 if retain.firm else min(reserve, room // 2)  # half, so that a small target still keeps some messages
    tail = _Tail(units, sizes, must, room=room - spare, max_messages=max_messages)
    # The order decides who gets the room: the newest answer, then results that the model has not seen yet, then rounds
    # from the newest on, then the answers that keep two requests apart.
    if retain.firm:
        tail.take_newest()
    edited: dict[str, Message] = {}
    if not retain.nothing:
        edited = tail.take_fresh(counter)
        tail.take_rounds(*retain.limits(sum(sizes)))
    bridges = tail.take_bridges() if retain.firm else frozenset[str]()
    tail.release_records()  # before the room is counted: the new record folds earlier ones in
    left = target - sum(size for n, size in enumerate(tail.sizes) if tail.stays[n])
    glimpses: dict[str, Message] = {}
    if retain.firm:
        glimpses = tail.glimpses(left // 2, counter)
        if free := tail.release_unanswered(glimpses):  # there may be room now for a glimpse of what is gone
            left += free
            glimpses = tail.glimpses(left // 2, counter)
        left -= sum(message_tokens(message, counter) for message in glimpses.values())
    return Cut(tuple(shown), units, tuple(tail.stays), edited, left, bridges, glimpses)


class CutOptions(TypedDict, total=False):
    """What every strategy that cuts a history takes."""

    retain: Retain
    """How much of the end stays, if it fits."""
    binds_thinking: bool
    """Whether the model refuses thinking whose past was edited; assumed if not given."""
    max_messages: int | None
    """The most messages that may be shown afterwards, where their number is the trigger."""


class Cutter(ABC):
    """A compactor that keeps the end of a history and replaces the rest by one record; see CutOptions."""

    name: ClassVar[str]
    reserve: ClassVar[int] = 1000
    """Tokens to leave for the record, if they can be spared."""

    def __init__(self, **options: Unpack[CutOptions]) -> None:
        self._retain = options.get("retain") or Retain()
        self._binds_thinking = options.get("binds_thinking", True)
        self._max_messages = options.get("max_messages")

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str] = frozenset()
    ) -> Rewrite:
        """A rewrite that brings `shown` down to `target` tokens."""
        if is_within(shown, target, counter):
            return Rewrite(replacements=())
        choice = cut(
            shown,
            target=target,
            counter=counter,
            keep=keep,
            retain=self._retain,
            reserve=self.reserve,
            max_messages=self._max_messages,
        )
        record, usage = await self._write(choice, counter) if choice.dropped else (None, Usage())
        message = record.message if record else None
        if message is not None and message_tokens(message, counter) > choice.room:
            raise CannotCompact(f"the record of {self.name} is larger than the {choice.room:,} tokens left for it")
        return rewrite(choice, message, keep=keep, binds_thinking=self._binds_thinking, usage=usage)

    @abstractmethod
    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        """The record of what goes, within `choice.room` tokens, and what it cost; None shows nothing."""


def is_within(shown: Sequence[Shown], target: int, counter: TokenCounter) -> bool:
    """Whether a history has at most `target` tokens already."""
    if target < 0:
        raise UsageError(f"the target of a compaction is {target}; give 0 or more tokens")
    return shown_tokens(shown, counter) <= target


def earlier_lines(records: Iterable[SummaryMessage]) -> tuple[str, ...]:
    """The lines of earlier records, for a strategy that cannot write them anew; an overlap is out of date by then."""
    return tuple(
        line for record in records for name, lines in record.parts.items() if name != OVERLAP for line in lines
    )


def rewrite(
    choice: Cut, record: Message | None, *, keep: AbstractSet[str], binds_thinking: bool, usage: Usage | None = None
) -> Rewrite:
    """The rewrite that shows `record` in place of what goes.

    It stands where the last run of dropped messages stood: all that it tells came before what follows it.
    """
    gone = {item.id for item in choice.dropped}
    if record is None:  # a conversation does not begin with an answer
        first = next((item.id for item in choice.shown if item.id not in gone and item.message.role != "system"), "")
        gone |= {first} & choice.bridges - keep
    runs = _runs(choice.shown, gone)
    last = runs[-1][-1] if runs else None
    at = {r.covers[0]: r for run in runs for r in _of_run(choice, run, record if run[-1] == last else None)}
    at |= {id: Replacement((id,), message) for id, message in choice.edited.items()}
    return rewritten(choice.shown, at, keep=keep, binds_thinking=binds_thinking, usage=usage)


def _of_run(choice: Cut, run: tuple[str, ...], record: Message | None) -> list[Replacement]:
    """The replacements of a run: the record, and a glimpse of the answer that it ends with."""
    glimpse = choice.glimpses.get(run[-1])
    begins = record is None and choice.shown[leading_system(choice.shown)].id == run[0]
    if glimpse is None or begins:
        return [Replacement(run, record)]
    before = [Replacement(run[:-1], record)] if len(run) > 1 else []
    return [*before, Replacement(run[-1:], glimpse)]


def rewritten(
    shown: Sequence[Shown],
    replacements: Mapping[str, Replacement],
    *,
    keep: AbstractSet[str],
    binds_thinking: bool,
    usage: Usage | None = None,
) -> Rewrite:
    """A rewrite of these replacements, by the id of the first message each covers.

    Where thinking is bound to what stood before it, all of it behind the first edit goes too, but for messages in
    `keep`, which are never touched.
    """
    replacements = dict(replacements)
    covered = {id for replacement in replacements.values() for id in replacement.covers}
    edited = False
    dropped = 0
    for item in shown:
        edited = edited or item.id in covered
        thoughts = sum(isinstance(part, ThinkingPart) for part in item.message.parts)
        if not thoughts or item.id in keep:
            continue
        if item.id in covered:
            dropped += thoughts
        elif edited and binds_thinking:
            dropped += thoughts
            replacements[item.id] = Replacement((item.id,), _without_thinking(item.message))
    ordered = tuple(replacements[item.id] for item in shown if item.id in replacements)
    return Rewrite(replacements=ordered, dropped_thinking=dropped, usage=usage or Usage())


class _Tail:
    """Chooses the units that stay, from the newest on; counts the room and the places that are left."""

    def __init__(
        self, units: Sequence[Unit], sizes: list[int], must: Sequence[bool], *, room: int, max_messages: int | None
    ) -> None:
        self.units, self.sizes, self._must = units, list(sizes), must
        self.stays = list(must)
        self._all_room = self._room = room
        standing = sum(len(unit.items) for unit, needed in zip(units, must, strict=True) if needed)
        self._places = inf if max_messages is None else max_messages - 1 - standing  # one is for the record
        if self._places < 0:
            raise CannotCompact(
                f"{standing} messages cannot be given up (the current request, pins, open calls, opening system "
                f"messages), and {max_messages} may be shown; raise the trigger or unpin some"
            )

    def take_fresh(self, counter: TokenCounter) -> dict[str, Message]:
        """Keep the results the model has not seen yet, shortened if need be; returns the shortened messages."""
        last = len(self.units) - 1
        if last < 0 or self.stays[last] or self.units[last].stray or not _ends_with_result(self.units[last]):
            return {}
        items = self.units[last].items
        if self.sizes[last] <= self._room:
            self._take([last])
            return {}
        shorter = clamped(items, self._room, counter)
        if shorter is None:
            return {}
        self.sizes[last] = sum(message_tokens(message, counter) for message in shorter)
        self._take([last])
        return {item.id: message for item, message in zip(items, shorter, strict=True) if message is not item.message}

    def take_newest(self) -> None:
        """Keep the answer that a history ends with."""
        last = len(self.units) - 1
        if last >= 0 and _is_answer(self.units[last]) and self._fits([last], inf, inf):
            self._take([last])

    def take_bridges(self) -> frozenset[str]:
        """Keep short answers right before requests that stay; returns their ids."""
        found = [n for n in self._before_requests() if self.sizes[n] <= _BRIDGE and self._fits([n], inf, inf)]
        self._take(found)
        return frozenset(item.id for n in found for item in self.units[n].items)

    def glimpses(self, room: int, counter: TokenCounter) -> dict[str, Message]:
        """What to show of longer ones, in at most so many tokens."""
        shown: dict[str, Message] = {}
        for n in self._before_requests():
            answer = self.units[n].items[-1]
            glimpse = glimpse_of(answer.message, room, counter)
            if glimpse is None or self._places < len(shown) + 1:
                break
            room -= message_tokens(glimpse, counter)
            shown[answer.id] = glimpse
        return shown

    def release_unanswered(self, shown: Collection[str]) -> int:
        """Give up requests whose answer goes without a trace: the next one would read as part of them.

        Returns the tokens that are free then.
        """
        free = 0
        for n in self._before_requests():
            first = next((at for at in range(n, -1, -1) if self.stays[at]), -1)
            is_request = first >= 0 and self.units[first].request is not None
            if self.units[n].items[-1].id not in shown and is_request and not self._must[first]:
                self.stays[first] = False
                free += self.sizes[first]
        return free

    def _before_requests(self) -> list[int]:
        """Answers that go, right before requests that stay, newest first; not one that would open the history."""
        gone = [n for n, stays in enumerate(self.stays) if not stays]
        last = gone[-1] if gone else -1
        return [
            n
            for n in reversed(gone)
            if n + 1 < len(self.units)
            and self.stays[n + 1]
            and self.units[n + 1].request is not None
            and _is_answer(self.units[n])
            and (n == last or any(self.stays[:n]))
        ]

    def take_rounds(self, messages: float, tokens: float) -> None:
        """Keep the newest rounds within these limits; of a round that alone exceeds them, its newest units."""
        most_messages, most_tokens = messages, min(tokens, self._all_room)
        end = len(self.units)
        for found in reversed(rounds_of(self.units)):
            places = list(range(end - len(found.units), end))
            end = places[0]
            count, size = self._measure(places)
            if self._fits(places, messages, tokens):
                messages, tokens = messages - count, tokens - size
                self._take(places)
                continue
            if count > most_messages or size > most_tokens:
                self._take_units(places, messages, tokens)
            return

    def release_records(self) -> None:
        """Where anything goes, an earlier record goes with it, to be folded into the new one."""
        alone = [unit.items[0].message if len(unit.items) == 1 else None for unit in self.units]
        records = [
            message is not None and (is_record(message) or (behind is not None and is_glimpse(message, behind)))
            for behind, message in zip([None, *alone], alone, strict=False)
        ]
        if any(not stays and not record for stays, record in zip(self.stays, records, strict=True)):
            self.stays = [
                stays and (needed or not record)
                for stays, needed, record in zip(self.stays, self._must, records, strict=True)
            ]

    def _take_units(self, places: list[int], messages: float, tokens: float) -> None:
        """The unit that opened the round, then its newest ones."""
        for place in (places[0], *reversed(places[1:])):
            if not self._fits([place], messages, tokens):
                return
            count, size = self._measure([place])
            messages, tokens = messages - count, tokens - size
            self._take([place])

    def _fits(self, places: Sequence[int], messages: float, tokens: float) -> bool:
        count, size = self._measure(places)
        new_count, new_size = self._measure(self._new(places))
        return count <= messages and size <= tokens and new_count <= self._places and new_size <= self._room

    def _measure(self, places: Sequence[int]) -> tuple[int, int]:
        return sum(len(self.units[n].items) for n in places), sum(self.sizes[n] for n in places)

    def _new(self, places: Sequence[int]) -> list[int]:
        """Those that are not kept yet and may be: half a pair is not worth keeping."""
        return [n for n in places if not self.stays[n] and not (self.units[n].open or self.units[n].stray)]

    def _take(self, places: Sequence[int]) -> None:
        for place in self._new(places):
            self.stays[place] = True
            self._room -= self.sizes[place]
            self._places -= len(self.units[place].items)


def _must_stay(shown: Sequence[Shown], units: Sequence[Unit], keep: AbstractSet[str]) -> list[bool]:
    request = current_request(shown)
    needed = {*keep, *(item.id for item in shown[: leading_system(shown)])}
    if request is not None:
        needed.add(request.id)
    last = len(units) - 1
    return [
        any(item.id in needed for item in unit.items) or (unit.open and place == last)
        for place, unit in enumerate(units)
    ]


def _why_not(units: Sequence[Unit], sizes: Sequence[int], must: Sequence[bool], target: int) -> str:
    kept = [place for place, needed in enumerate(must) if needed]
    largest = max(kept, key=lambda place: sizes[place])
    return (
        f"what must stay has {sum(sizes[place] for place in kept):,} tokens and the target is {target:,}: the current "
        f"request, pins, open calls and opening system messages, of which {units[largest].items[0].id} has "
        f"{sizes[largest]:,}; shorten or unpin it, or use a larger window"
    )


def _runs(shown: Sequence[Shown], gone: AbstractSet[str]) -> list[tuple[str, ...]]:
    groups = groupby((item.id for item in shown), key=lambda id: id in gone)
    return [tuple(ids) for are_gone, ids in groups if are_gone]


def _ends_with_result(unit: Unit) -> bool:
    return not unit.open and any(isinstance(part, ToolResultPart) for part in unit.items[-1].message.parts)


def _is_answer(unit: Unit) -> bool:
    """Whether a unit is one message of the model's with something to read."""
    message = unit.items[0].message
    alone = len(unit.items) == 1 and not unit.open and not unit.stray
    return alone and message.role == "assistant" and bool(message.text.strip())


def _without_thinking(message: Message) -> Message | None:
    parts = tuple(part for part in message.parts if not isinstance(part, ThinkingPart))
    return replace(message, parts=parts) if parts else None
