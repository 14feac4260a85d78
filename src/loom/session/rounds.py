"""Where a history may be cut: rounds, and inside them the units that stay or go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from loom.core.checkpoint import Shown
from loom.core.message import Message, ToolCallPart, ToolResultPart
from loom.session.compaction.record import is_record


@dataclass(frozen=True, slots=True)
class Unit:
    """Messages that stay together or go together: one message, or calls with all their results.

    A system message inside a history belongs to the message before it, which is the turn it speaks about.
    """

    items: tuple[Shown, ...]
    open: bool = False
    """It holds a call that has no result."""
    stray: bool = False
    """It holds a result that has no call."""

    @property
    def request(self) -> Shown | None:
        """The user's own message in it, if there is one."""
        return next((item for item in self.items if is_request(item.message)), None)


@dataclass(frozen=True, slots=True)
class Round:
    """A real user message and everything up to the next one. Only the first round may lack the message."""

    units: tuple[Unit, ...]

    @property
    def request(self) -> Shown | None:
        """The message that opened it."""
        return self.units[0].request

    @property
    def items(self) -> tuple[Shown, ...]:
        """Its messages."""
        return tuple(item for unit in self.units for item in unit.items)


def is_request(message: Message) -> bool:
    """Whether the user wrote this: some part is not a tool result, and it is not a record of earlier messages."""
    return (
        message.role == "user"
        and any(not isinstance(part, ToolResultPart) for part in message.parts)
        and not is_record(message)
    )


def current_request(shown: Sequence[Shown]) -> Shown | None:
    """The last message of the user."""
    return next((item for item in reversed(shown) if is_request(item.message)), None)


def leading_system(shown: Sequence[Shown]) -> int:
    """How many system messages a history begins with."""
    return len(list(takewhile(lambda item: item.message.role == "system", shown)))


def units_of(shown: Sequence[Shown]) -> tuple[Unit, ...]:
    """The units of a history, in order.

    A result belongs to the last open call of its id, and so does everything between the two. Call ids may come back
    later in a history: some providers count from 0.
    """
    reach = list(range(len(shown)))  # the last place that belongs together with this one
    waiting: dict[str, int] = {}
    stray: set[int] = set()
    opening = leading_system(shown)
    for place, item in enumerate(shown):
        if item.message.role == "system" and place > opening:
            reach[place - 1] = max(reach[place - 1], place)
        for part in item.message.parts:
            if isinstance(part, ToolCallPart):
                waiting[part.id] = place
            elif isinstance(part, ToolResultPart):
                if part.call_id in waiting:
                    reach[waiting.pop(part.call_id)] = place
                else:
                    stray.add(place)
    dangling = set(waiting.values())
    return tuple(
        Unit(
            tuple(shown[start:end]),
            open=not dangling.isdisjoint(range(start, end)),
            stray=not stray.isdisjoint(range(start, end)),
        )
        for start, end in _spans(reach)
    )


def rounds_of(units: Iterable[Unit]) -> tuple[Round, ...]:
    """The rounds of a history."""
    rounds: list[list[Unit]] = []
    for unit in units:
        if unit.request is not None or not rounds:
            rounds.append([])
        rounds[-1].append(unit)
    return tuple(Round(tuple(found)) for found in rounds)


def _spans(reach: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The smallest spans that nothing reaches out of."""
    start, furthest = 0, 0
    for place, last in enumerate(reach):
        furthest = max(furthest, last)
        if furthest == place:
            yield start, place + 1
            start = furthest = place + 1
