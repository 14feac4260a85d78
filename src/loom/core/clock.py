"""Where the time comes from."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable


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
