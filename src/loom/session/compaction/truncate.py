"""Keeping the end of a history, and nothing else."""

from __future__ import annotations

from loom.core.message import Usage
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import Cut
from loom.session.compaction.cutting import Cutting, carried
from loom.session.compaction.record import Record, fit, originals_in, records_in


class Truncate(Cutting):
    """Drops what does not stay. Asks no model and succeeds whenever anything can.

    What an earlier record told is all that is left of older messages, so it is carried on as far as it fits. Where
    not even a line has room, nothing is said.
    """

    name = "truncate"
    reserve = 1000

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        dropped = choice.dropped
        lines = carried(records_in(dropped), without=frozenset({"overlap"}))
        record = Record(self.name, originals_in(dropped), {"earlier": lines} if lines else {})
        return fit(record, choice.room, counter), Usage()
