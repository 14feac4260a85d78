"""The wait that a provider asks for in the headers of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite

from loom.core.clock import Clock


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Seconds to wait, from either header, given as a number or as a date; None where nothing was said."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            seconds = _seconds_until(value, clock)
        if seconds is not None and isfinite(seconds):
            return max(0.0, seconds)
    return None


def _seconds_until(date: str, clock: Clock) -> float | None:
    try:
        return (parsedate_to_datetime(date) - clock.now()).total_seconds()
    except (TypeError, ValueError):
        return None
