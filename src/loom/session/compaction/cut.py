"""Choosing what stays of a history, and turning the choice into a rewrite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf

from loom.core.checkpoint import Replacement, Shown
from loom.core.message import Message, ThinkingPart, ToolResultPart, Usage
from loom.errors import CannotCompact
from loom.protocols.compactor import Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.config import Retain
from loom.session.compaction.record import is_record
from loom.session.compaction.shorten import clamped
from loom.session.rounds import Unit, current_request, leading_system, rounds_of, units_of


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

    What must stay is the opening system messages, the current request, everything in `keep`, and calls that
    still wait for their results. `reserve` tokens are left for a record if they can be spared.

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
    tail = _Tail(units, sizes, must, room=room - min(reserve, room // 2), max_messages=max_messages)
    edited: dict[str, Message] = {}
    if not retain.nothing:
        edited = tail.take_fresh(counter)
        tail.take_rounds(*retain.limits(sum(sizes)))
    tail.release_records()
    taken = sum(size for n, size in enumerate(tail.sizes) if tail.stays[n])
    return Cut(tuple(shown), units, tuple(tail.stays), edited, target - taken)


def rewrite(
    choice: Cut, record: Message | None, *, keep: AbstractSet[str], binds_thinking: bool, usage: Usage | None = None
) -> Rewrite:
    """The rewrite that shows `record` in place of what goes.

    It stands where the last run of dropped messages stood: all that it tells came before what follows it.
    """
    gone = {item.id for item in choice.dropped}
    runs = _runs(choice.shown, gone)
    last = runs[-1][-1] if runs else None
    at = {run[0]: Replacement(run, record if run[-1] == last else None) for run in runs}
    at |= {id: Replacement((id,), message) for id, message in choice.edited.items()}
    return rewritten(choice.shown, at, keep=keep, binds_thinking=binds_thinking, usage=usage)


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
    """The end of a history, taken from the newest unit on."""

    def __init__(
        self, units: Sequence[Unit], sizes: list[int], must: Sequence[bool], *, room: int, max_messages: int | None
    ) -> None:
        self.units, self.sizes, self._must = units, list(sizes), must
        self.stays = list(must)
        self._whole = self._room = room
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

    def take_rounds(self, messages: float, tokens: float) -> None:
        """Keep the newest rounds within these limits; of a round that alone exceeds them, its newest units."""
        most_messages, most_tokens = messages, min(tokens, self._whole)
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
        records = [len(unit.items) == 1 and is_record(unit.items[0].message) for unit in self.units]
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
    runs: list[list[str]] = []
    previous = False
    for item in shown:
        going = item.id in gone
        if going and not previous:
            runs.append([])
        if going:
            runs[-1].append(item.id)
        previous = going
    return [tuple(run) for run in runs]


def _ends_with_result(unit: Unit) -> bool:
    return not unit.open and any(isinstance(part, ToolResultPart) for part in unit.items[-1].message.parts)


def _without_thinking(message: Message) -> Message | None:
    parts = tuple(part for part in message.parts if not isinstance(part, ThinkingPart))
    return replace(message, parts=parts) if parts else None
