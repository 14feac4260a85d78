"""How long a store keeps episodes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from loom.core.clock import Clock
from loom.core.record import Episode, Layer, Record
from loom.errors import UsageError
from loom.stores.redis.codec import micros
from loom.stores.redis.options import Ttl


class Retention:
    """When records are over: an episode of a layer in `ttl` that long after it was recorded, while it is not archived.

    A period for None, or one alone, is for all other episodes, those in the archive too.

    Laws: from that moment no call of the store sees it. What it held goes with the next change of its user, and the
    server drops everything of a user by itself when the last of it is over. Nothing else ever ends: no fact, block or
    job, no episode that no period is for; and while a user has any of these, the server drops nothing.
    """

    def __init__(self, ttl: Ttl | None, clock: Clock) -> None:
        given = {None: ttl} if isinstance(ttl, timedelta) else ttl or {}
        self._ttl = {None if layer is None else Layer(layer): period for layer, period in given.items()}
        self._clock = clock
        for layer, period in self._ttl.items():
            if period <= timedelta(0):
                raise UsageError(f"{_named(layer)} with ttl={period} are over at once; give more, or none")

    def __str__(self) -> str:
        layers = sorted(layer for layer in self._ttl if layer is not None)
        period = [f"{layer.label} for {self._ttl[layer]} while live" for layer in layers]
        if None in self._ttl:
            period.append(f"{'other' if period else 'all'} episodes for {self._ttl[None]}, the archive too")
        return f"kept: {', '.join(period)}; all else for ever" if period else "everything is kept for ever"

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing ever ends."""
        return not self._ttl

    def now(self) -> int:
        """The time in microseconds."""
        return micros(self._clock.now())

    def end_of(self, record: Record) -> int | None:
        """When a record is over, in microseconds; None: never."""
        if not isinstance(record, Episode):
            return None
        period = self._ttl.get(None)
        if record.archived_at is None:
            period = self._ttl.get(record.layer, period)
        return None if period is None else micros(_added(record.recorded_at, period))

    def is_over(self, record: Record) -> bool:
        """Whether a record is over now."""
        end = self.end_of(record)
        return end is not None and end <= self.now()

    def over(self, records: Iterable[Record]) -> list[str]:
        """The ids of those that are over now."""
        return [] if self.is_unlimited else [record.id for record in records if self.is_over(record)]


def _named(layer: Layer | None) -> str:
    return "episodes" if layer is None else f"episodes of {layer.label}"


def _added(at: datetime, period: timedelta) -> datetime:
    """The end of the calendar is as late as it gets."""
    try:
        return at + period
    except OverflowError:
        return datetime.max.replace(tzinfo=at.tzinfo)
