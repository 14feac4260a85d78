"""A fake clock that moves only when told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from loom.core.checks import as_utc
from loom.errors import UsageError

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A Clock that stands still until advance() is called."""

    __slots__ = ("_monotonic", "_now")

    def __init__(self, start: datetime = START) -> None:
        self._now = as_utc(start, "the start of a FakeClock")
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time it was moved to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced since it was made."""
        return self._monotonic

    def advance(self, by: float | timedelta) -> datetime:
        """Let time pass (a number is seconds); returns the new time."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise UsageError(f"advance({by!r}) would turn time back; use set() to move the wall clock alone")
        self._now += step
        self._monotonic += step.total_seconds()
        return self._now

    def set(self, now: datetime) -> None:
        """Set the wall clock, also back, as a machine does; monotonic() does not notice."""
        self._now = as_utc(now, "the time of a FakeClock")
