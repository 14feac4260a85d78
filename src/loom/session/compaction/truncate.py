"""Keeping the end of a history, and nothing else."""

from __future__ import annotations

from loom.core.message import Usage
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import Cut, Cutter, earlier_lines
from loom.session.compaction.record import Record, fit, originals_in, records_in


class Truncate(Cutter):
    """Drops what does not stay. Asks no model and succeeds whenever anything can.

    An earlier record is all that is left of older messages, so its lines are carried on as far as they fit. Where not
    even one line fits, nothing is written.
    """

    name = "truncate"

    async def _write(self, choice: Cut, counter: TokenCounter) -> tuple[Record | None, Usage]:
        lines = earlier_lines(records_in(choice.dropped))
        record = Record(self.name, originals_in(choice.dropped), {"earlier": lines} if lines else {})
        return fit(record, choice.room, counter), Usage()
