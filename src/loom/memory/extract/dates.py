"""Parses plain dates in a statement, relative to when it was made."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTH: Final = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_WORDS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
_SPAN: Final = {"day": 1, "week": 7, "month": 30, "year": 365}

DATE: Final = (
    r"(?i:\d{4}-\d{2}-\d{2}|(?:\d{1,2}(?:st|nd|rd|th)?(?: of)? )?"
    r"(?:january|february|march|april|may|june|july|august|september|october|november|december)"
    r"(?: \d{1,2}(?:st|nd|rd|th)?(?!\d))?(?:,? \d{4})?|(?:19|20)\d{2})"
)
"""A calendar date, a month or a year, as a pattern."""
SOON: Final = (
    rf"(?i:tomorrow|next (?:week|month|year|{'|'.join(_DAYS)})|(?:on|this) (?:{'|'.join(_DAYS)})|(?:on|in) {DATE})"
)
"""A future time, as a pattern."""
PAST: Final = (
    rf"(?i:(?:since|in|on) {DATE}|(?:last|this) (?:week|month|year)|yesterday|today"
    r"|(?:a|an|one|two|three|four|five|six|ten|\d{1,2}) (?:day|week|month|year)s? ago)"
)
"""A past time, as a pattern."""


def interval_of(text: str, stated_at: datetime) -> tuple[datetime, datetime] | None:
    """The half-open interval that a time in words means; None if it cannot be parsed."""
    words = text.casefold().strip()
    today = stated_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return _calendar(words, today) or _relative(words, today)
    except (ValueError, OverflowError):
        return None


def _calendar(words: str, today: datetime) -> tuple[datetime, datetime] | None:
    if iso := re.search(r"(\d{4})-(\d{2})-(\d{2})", words):
        return _days(datetime(int(iso[1]), int(iso[2]), int(iso[3]), tzinfo=UTC), 1)
    found_year = re.search(r"\b(?:19|20)\d{2}\b", words)
    year = int(found_year[0]) if found_year else today.year
    if month := re.search(rf"\b{_MONTH}(?!\w)", words):
        number = _MONTHS.index(month["month"]) + 1
        rest = words.replace(found_year[0], "") if found_year else words
        if day := re.search(r"\d{1,2}", rest):
            return _days(datetime(year, number, int(day[0]), tzinfo=UTC), 1)
        return _months(year * 12 + number - 1, 1)
    return _months(year * 12, 12) if found_year else None


def _relative(words: str, today: datetime) -> tuple[datetime, datetime] | None:
    if words in {"today", "tomorrow", "yesterday"}:
        return _days(today + timedelta(days={"today": 0, "tomorrow": 1, "yesterday": -1}[words]), 1)
    if ago := re.fullmatch(r"(\w+) (day|week|month|year)s? ago", words):
        count = int(ago[1]) if ago[1].isdigit() else _WORDS[ago[1]]
        return _days(today - timedelta(days=count * _SPAN[ago[2]]), 1)
    which, _, unit = words.rpartition(" ")
    if unit in _DAYS:
        ahead = (_DAYS.index(unit) - today.weekday() - 1) % 7 + 1
        return _days(today + timedelta(days=ahead), 1)
    if unit not in _SPAN or which not in {"last", "this", "next"}:
        return None
    step = {"last": -1, "this": 0, "next": 1}[which]
    if unit == "year":
        return _months((today.year + step) * 12, 12)
    if unit == "month":
        return _months(today.year * 12 + today.month - 1 + step, 1)
    return _days(today + timedelta(days=7 * step - today.weekday()), 7)


def _months(first: int, count: int) -> tuple[datetime, datetime]:
    """An interval of whole months, counted from year 0."""
    start, end = (datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in (first, first + count))
    return start, end


def _days(start: datetime, count: int) -> tuple[datetime, datetime]:
    return start, start + timedelta(days=count)
