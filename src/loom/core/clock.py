"""Clocks: the source of time, injected so that tests control it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

TICK = timedelta(microseconds=1)
"""The least that two times differ by."""


@runtime_checkable
class Clock(Protocol):
    """Tells the time. Loom never asks the system directly, so that tests own the time.

    Laws:
    - now() is aware and in UTC; it may jump, back as well as forward, when the machine's clock is set;
    - monotonic() never goes back; only differences of it mean anything.
    """

    def now(self) -> datetime:
        """The wall-clock time, for what is stored."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, for what is measured."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now(self) -> datetime:
        """The wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class RisingClock:
    """A clock whose wall time never goes back: where the other one is set back, time goes on from where it was.

    Equal times stay equal while the other clock stands still; behind a step back each one is later than the last.
    """

    __slots__ = ("_clock", "_last", "_measured")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = datetime.min.replace(tzinfo=UTC)
        self._measured = 0.0

    def now(self) -> datetime:
        """The wall-clock time in UTC, never earlier than the last one."""
        now, measured = self._clock.now(), self._clock.monotonic()
        if now < self._last:
            now = self._last + max(TICK, timedelta(seconds=measured - self._measured))
        self._last, self._measured = now, measured
        return now

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._clock.monotonic()
