"""How long a store keeps the episodes of its hot layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from loom.core.clock import Clock
from loom.core.record import Episode, Layer, Record
from loom.errors import UsageError
from loom.stores.redis.codec import micros

HOT = (Layer.L1, Layer.L2)


class Retention:
    """When records are over: an episode of a layer in `ttl` that long after it was recorded, while it is not archived.

    Laws: from that moment no call of the store sees it. What it held goes with the next change of its user, and the
    server drops everything of a user by itself when the last of it is over. Nothing else ever ends: no fact, block or
    job, no episode in the archive or of another layer; and while a user has any of these, the server drops nothing.
    """

    def __init__(self, ttl: Mapping[Layer, timedelta] | None, clock: Clock) -> None:
        self._ttl = {Layer(layer): kept for layer, kept in (ttl or {}).items()}
        self._clock = clock
        for layer, kept in self._ttl.items():
            if layer not in HOT:
                raise UsageError(f"{layer.label} is no hot layer, and nothing in it ends; give a ttl for L1 or L2")
            if kept <= timedelta(0):
                raise UsageError(f"episodes of {layer.label} with ttl={kept} are over at once; give more, or none")

    def __str__(self) -> str:
        kept = [f"{layer.label} for {ttl}" for layer, ttl in sorted(self._ttl.items())]
        return f"kept while live: {', '.join(kept)}; all else for ever" if kept else "everything is kept for ever"

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing ever ends."""
        return not self._ttl

    def now(self) -> int:
        """The time in microseconds."""
        return micros(self._clock.now())

    def end_of(self, record: Record) -> int | None:
        """When a record is over, in microseconds; None: never."""
        if not isinstance(record, Episode) or record.archived_at is not None or record.layer not in self._ttl:
            return None
        return micros(_added(record.recorded_at, self._ttl[record.layer]))

    def is_over(self, record: Record) -> bool:
        """Whether a record is over now."""
        end = self.end_of(record)
        return end is not None and end <= self.now()

    def over(self, records: Iterable[Record]) -> list[str]:
        """The ids of those that are over now."""
        return [] if self.is_unlimited else [record.id for record in records if self.is_over(record)]


def _added(at: datetime, kept: timedelta) -> datetime:
    """The end of the calendar is as late as it gets."""
    try:
        return at + kept
    except OverflowError:
        return datetime.max.replace(tzinfo=at.tzinfo)
