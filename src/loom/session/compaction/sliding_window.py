"""Keeping the end of a history, with a glimpse of what came right before it."""

from __future__ import annotations

from loom.core.checkpoint import Shown
from loom.core.message import ThinkingPart, Usage, plain
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.config import Retain
from loom.session.compaction.cut import Cut
from loom.session.compaction.cutting import Cutting, carried
from loom.session.compaction.record import Record, fit, originals_in, read_record, records_in
from loom.session.compaction.shorten import one_line

_OVERLAP_PART = "overlap"


class SlidingWindow(Cutting):
    """Drops what does not stay and shows the beginning of the last few dropped messages. Asks no model.

    Args:
        overlap: how many messages are shown in part.
        preview: how many characters of each.
        retain: how much of the end stays, if it fits.
        binds_thinking: whether the model refuses thinking whose past was edited.
        max_messages: the most messages that may be shown afterwards.
    """

    name = "sliding_window"
    reserve = 1000

    def __init__(
        self,
        *,
        overlap: int = 2,
        preview: int = 200,
        retain: Retain | None = None,
        binds_thinking: bool = True,
        max_messages: int | None = None,
    ) -> None:
        if overlap < 0 or preview < 1:
            raise UsageError(f"overlap={overlap}, preview={preview}; give 0 or more messages, 1 or more characters")
        super().__init__(retain=retain, binds_thinking=binds_thinking, max_messages=max_messages)
        self._overlap, self._preview = overlap, preview

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        dropped = choice.dropped
        said = [item for item in dropped if read_record(item.message) is None]
        overlap = tuple(self._line(item) for item in said[len(said) - min(self._overlap, len(said)) :])
        earlier = carried(records_in(dropped), without=frozenset({_OVERLAP_PART}))
        parts = {_OVERLAP_PART: overlap, "earlier": earlier}
        return fit(Record(self.name, originals_in(dropped), parts), choice.room, counter), Usage()

    def _line(self, item: Shown) -> str:
        parts = (part for part in item.message.parts if not isinstance(part, ThinkingPart))
        return f"{item.message.role}: " + one_line(" ".join(map(plain, parts)), self._preview)
