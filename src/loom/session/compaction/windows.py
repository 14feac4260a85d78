"""Truncation and the sliding window: keep the end of a history."""

from __future__ import annotations

from typing import Unpack

from loom.core.checkpoint import Shown
from loom.core.message import ThinkingPart, Usage, plain
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import OVERLAP, Cut, CutOptions, Cutter, earlier_lines, one_line
from loom.session.compaction.summary_message import SummaryMessage, fit, originals_in, read_record, records_in


class SlidingWindow(Cutter):
    """Drops what does not stay and shows the beginning of the last few dropped messages. Asks no model.

    Args:
        overlap: how many messages are shown in part.
        preview: how many characters of each.
        options: see CutOptions.
    """

    name = "sliding_window"

    def __init__(self, *, overlap: int = 2, preview: int = 200, **options: Unpack[CutOptions]) -> None:
        if overlap < 0 or preview < 1:
            raise UsageError(f"overlap={overlap}, preview={preview}; give 0 or more messages, 1 or more characters")
        super().__init__(**options)
        self._overlap, self._preview = overlap, preview

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        dropped = choice.dropped
        messages = [item for item in dropped if read_record(item.message) is None]
        overlap = tuple(self._line(item) for item in messages[max(0, len(messages) - self._overlap) :])
        parts = {OVERLAP: overlap, "earlier": earlier_lines(records_in(dropped))}
        return fit(SummaryMessage(self.name, originals_in(dropped), parts), choice.room, counter), Usage()

    def _line(self, item: Shown) -> str:
        parts = (part for part in item.message.parts if not isinstance(part, ThinkingPart))
        return f"{item.message.role}: " + one_line(" ".join(map(plain, parts)), self._preview)


# Keeping the end of a history, and nothing else.


class Truncate(Cutter):
    """Drops what does not stay. Asks no model and succeeds whenever anything can.

    An earlier record is all that is left of older messages, so its lines are carried on as far as they fit. Where not
    even one line fits, nothing is written.
    """

    name = "truncate"

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[SummaryMessage | None, Usage]:
        lines = earlier_lines(records_in(choice.dropped))
        record = SummaryMessage(self.name, originals_in(choice.dropped), {"earlier": lines} if lines else {})
        return fit(record, choice.room, counter), Usage()
