"""Keeping the end of a history, with a glimpse of what came right before it."""

from __future__ import annotations

from typing import Unpack

from loom.core.checkpoint import Shown
from loom.core.message import ThinkingPart, Usage, plain
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import OVERLAP, Cut, CutOptions, Cutter, earlier_lines
from loom.session.compaction.record import Record, fit, originals_in, read_record, records_in
from loom.session.compaction.shorten import one_line


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

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        dropped = choice.dropped
        messages = [item for item in dropped if read_record(item.message) is None]
        overlap = tuple(self._line(item) for item in messages[max(0, len(messages) - self._overlap) :])
        parts = {OVERLAP: overlap, "earlier": earlier_lines(records_in(dropped))}
        return fit(Record(self.name, originals_in(dropped), parts), choice.room, counter), Usage()

    def _line(self, item: Shown) -> str:
        parts = (part for part in item.message.parts if not isinstance(part, ThinkingPart))
        return f"{item.message.role}: " + one_line(" ".join(map(plain, parts)), self._preview)
