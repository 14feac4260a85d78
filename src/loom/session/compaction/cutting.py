"""What the strategies that cut a history have in common: all they add is the record of what goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from loom.core.checkpoint import Shown
from loom.core.message import Usage
from loom.errors import CannotCompact, UsageError
from loom.protocols.compactor import Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.config import Retain
from loom.session.compaction.cut import Cut, cut, message_tokens, rewrite, shown_tokens
from loom.session.compaction.record import Record


class Cutting(ABC):
    """A compactor that keeps the end of a history and replaces the rest by one record.

    Args:
        retain: how much of the end stays, if it fits.
        binds_thinking: whether the model refuses thinking whose past was edited.
        max_messages: the most messages that may be shown afterwards, where their number is the trigger.
    """

    name: ClassVar[str]
    reserve: ClassVar[int]
    """Tokens to leave for the record, if they can be spared."""

    def __init__(
        self, *, retain: Retain | None = None, binds_thinking: bool = True, max_messages: int | None = None
    ) -> None:
        self._retain = retain or Retain()
        self._binds_thinking = binds_thinking
        self._max_messages = max_messages

    async def compact(
        self,
        shown: Sequence[Shown],
        *,
        target: int,
        counter: TokenCounter,
        keep: AbstractSet[str] = frozenset(),
    ) -> Rewrite:
        """A rewrite that brings `shown` down to `target` tokens."""
        if target < 0:
            raise UsageError(f"the target of a compaction is {target}; give 0 or more tokens")
        if shown_tokens(shown, counter) <= target:
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
    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        """The record of what goes, within `choice.room` tokens, and what it cost; None shows nothing."""


def carried(records: Iterable[Record], *, without: AbstractSet[str] = frozenset()) -> tuple[str, ...]:
    """What earlier records told, as lines, for a strategy that cannot tell it anew."""
    return tuple(
        line for record in records for name, lines in record.parts.items() if name not in without for line in lines
    )
