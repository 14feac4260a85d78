"""Dates and time words in a text ("last week", "in May 2023") as times and intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_DAY = timedelta(days=1)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_UP_TO_TWELVE = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {word: number for number, word in enumerate(_UP_TO_TWELVE, 1)}
_COUNTS = {**_NUMBERS, "a": 1, "an": 1, "a couple of": 2, "couple of": 2, "a few": 3, "few": 3, "several": 4}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}

_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?"
_DAY_NUMBER = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\b"
_COUNT = rf"(?P<count>\d{{1,3}}|{'|'.join(sorted(_COUNTS, key=len, reverse=True))})"
_UNIT = r"(?P<unit>day|week|month|year)s?"
# A bare month or year counts only behind one of these: `may` is also a verb, 1999 also a number.
_LEAD = r"(?:in|during|of|last|this|since|before|prior to|after|following|until|till|up to|by)"
_LIMIT = re.compile(
    rf"(?:\b(?P<unit>day|week|weekend|month|year|{'|'.join(_WEEKDAYS)}) )?"
    r"\b(?P<limit>before|until|till|prior to|up to|by|after|since|following)(?: the)? $"
)


@dataclass(frozen=True, slots=True)
class TimeHint:
    """The time that a question names: from `start` up to `end`; None is open.

    A strict hint is a limit (`before June`), fit to filter by. Any other hint names a time at which something happened,
    and people speak of it around then: fit to rank by.
    """

    start: datetime | None
    end: datetime | None
    strict: bool
    words: str

    def distance(self, at: datetime) -> timedelta:
        """How far outside the interval a time is; zero inside."""
        if self.start is not None and at < self.start:
            return self.start - at
        if self.end is not None and at >= self.end:
            return at - self.end
        return timedelta(0)

    @property
    def span(self) -> timedelta | None:
        """How long the interval is; None where an end is open."""
        return None if self.start is None or self.end is None else self.end - self.start


def time_hint(question: str, now: datetime) -> TimeHint | None:
    """The time that a question names, or None. Days and weeks are those of `now`'s time zone."""
    text = " ".join(question.lower().replace(",", " ").split())
    if between := _between(text, now):
        return between
    for pattern, read in _FORMS:
        for match in pattern.finditer(text):
            found = read(match, now)
            if found is not None:
                return _limited(text, match, *found)
    return None


def _between(text: str, now: datetime) -> TimeHint | None:
    match = re.search(r"\b(?:between|from) (?P<first>.{3,24}?) (?:and|to|until|till) (?P<second>.{3,24})", text)
    if match is None:
        return None
    first, second = _point(match["first"], now), _point(match["second"], now)
    if first is None or second is None:
        return None
    start, end = first[0], second[1]
    if first[0] > second[0] and not re.search(_YEAR, match["first"]):
        start = _moved_year(start, second[0].year)
    return TimeHint(start, end, True, match[0]) if start < end else None


def _point(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    for pattern, read in _FORMS:
        match = pattern.match(text) or pattern.match(f"in {text}")
        if match and (found := read(match, now)):
            return found
    return None


def _limited(text: str, match: re.Match[str], start: datetime, end: datetime) -> TimeHint:
    """The interval itself, or the time before or after it, if the words in front say so."""
    begin = match.start("lead_end") if "lead_end" in match.groupdict() else match.start()
    before = _LIMIT.search(text[:begin])
    if before is None:
        return TimeHint(start, end, False, match[0])
    words = text[before.start() : match.end()]
    if before["unit"]:
        return TimeHint(*_beside(before, start, end), False, words)
    if before["limit"] in ("before", "prior to", "by"):
        return TimeHint(None, start, True, words)
    if before["limit"] in ("until", "till", "up to"):
        return TimeHint(None, end, True, words)
    return TimeHint(start if before["limit"] == "since" else end, None, True, words)


def _beside(before: re.Match[str], start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """`the week before` a time, `the Sunday after` it."""
    unit, ahead = before["unit"], before["limit"] in ("after", "following")
    if unit not in _WEEKDAYS:
        size = _length("week" if unit == "weekend" else unit)
        return (end, end + size) if ahead else (start - size, start)
    step = _DAY if ahead else -_DAY
    day = end if ahead else start - _DAY
    while day.weekday() != _WEEKDAYS.index(unit):
        day += step
    return day, day + _DAY


def _iso(match: re.Match[str], now: datetime) -> tuple[datetime, datetime] | None:
    return _date(now, int(match["year"]), int(match["month"]), int(match["day"]))


def _calendar(match: re.Match[str], now: datetime) -> tuple[datetime, datetime] | None:
    """A month, with or without a day and a year; without a year, the last one that has begun."""
    parts = match.groupdict()
    number = next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(parts["month"][:3]))
    day = int(parts["day"]) if parts.get("day") else None
    year = int(parts["year"]) if parts.get("year") else now.year
    found = _month(now, year, number) if day is None else _date(now, year, number, day)
    if found and not parts.get("year") and found[0] > now:
        found = _month(now, year - 1, number) if day is None else _date(now, year - 1, number, day)
    return found


def _season(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    """Three months of the northern hemisphere; a winter has the year in which it begins."""
    first = _SEASONS[match["season"]]
    year = int(match["year"]) if match["year"] else now.year
    if not match["year"] and (match["which"] == "last" or _month(now, year, first)[0] > now):
        year -= _month(now, year, first)[0] > now or _added(now, year, first, 3) > now
    return _month(now, year, first)[0], _added(now, year, first, 3)


def _year(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    year = int(match["year"])
    return _month(now, year, 1)[0], _month(now, year + 1, 1)[0]


def _named_day(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    back = {"today": 0, "tonight": 0, "this morning": 0, "yesterday": 1, "last night": 1}
    ago = 2 if match[0].startswith("the day before") else back[match[0]]
    return _days(now, ago, 1)


def _ago(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    """`two weeks ago` is about then: half a unit to either side, a day for days."""
    count, unit = _count(match["count"]), match["unit"]
    size = _length(unit)
    middle = _midnight(now) - count * size
    return (middle, middle + _DAY) if unit == "day" else (middle - size / 2, middle + size / 2 + _DAY)


def _past(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    """`in the last three weeks`: from then until now."""
    count = _count(match["count"]) if match["count"] else 1
    return _midnight(now) - count * _length(match["unit"]), _midnight(now) + _DAY


def _last(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    """`last week` and `this month`: the calendar's."""
    back = match["which"] == "last"
    unit = match["unit"]
    if unit == "year":
        return _month(now, now.year - back, 1)[0], _month(now, now.year - back + 1, 1)[0]
    if unit == "month":
        return _month(now, now.year, now.month) if not back else _month(now, now.year, now.month - 1)
    monday = now.weekday() + 7 * back
    return _days(now, monday, 7) if unit == "week" else _days(now, monday - 4, 3)


def _weekday(match: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    """The last such day before today; `today` has a word of its own."""
    ago = (now.weekday() - _WEEKDAYS.index(match["weekday"])) % 7 or 7
    return _days(now, ago, 1)


def _recently(_: re.Match[str], now: datetime) -> tuple[datetime, datetime]:
    return _days(now, 30, 31)


def _count(word: str) -> int:
    return int(word) if word.isdigit() else _COUNTS[word]


_SPAN: Final = {"day": 1, "week": 7, "month": 30, "year": 365}


def _length(unit: str) -> timedelta:
    return _DAY * _SPAN[unit]


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _days(now: datetime, ago: int, count: int) -> tuple[datetime, datetime]:
    start = _midnight(now) - ago * _DAY
    return start, start + count * _DAY


def _date(now: datetime, year: int, month: int, day: int) -> tuple[datetime, datetime] | None:
    try:
        start = datetime(year, month, day, tzinfo=now.tzinfo or UTC)
    except ValueError:
        return None
    return start, start + _DAY


def _month(now: datetime, year: int, month: int) -> tuple[datetime, datetime]:
    return _added(now, year, month, 0), _added(now, year, month, 1)


def _added(now: datetime, year: int, month: int, more: int) -> datetime:
    years, index = divmod(year * 12 + month - 1 + more, 12)
    return datetime(years, index + 1, 1, tzinfo=now.tzinfo or UTC)


def _moved_year(at: datetime, year: int) -> datetime:
    return at.replace(year=year, day=min(at.day, 28) if at.month == 2 else at.day)


_Read = Callable[[re.Match[str], datetime], tuple[datetime, datetime] | None]
_FORMS: tuple[tuple[re.Pattern[str], _Read], ...] = tuple(
    (re.compile(rf"\b(?:{pattern})\b"), read)
    for pattern, read in (
        (r"(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)-(?P<day>\d\d)", _iso),
        (rf"{_DAY_NUMBER} (?:of )?{_MONTH}(?: (?:of )?{_YEAR})?", _calendar),
        (rf"{_MONTH} {_DAY_NUMBER}(?: {_YEAR})?", _calendar),
        (rf"{_MONTH} (?:of )?{_YEAR}", _calendar),
        (r"the day before yesterday|yesterday|today|tonight|this morning|last night", _named_day),
        (rf"{_COUNT} {_UNIT} ago", _ago),
        (rf"(?:in|over|during|within) the (?:last|past) (?:{_COUNT} )?{_UNIT}", _past),
        (rf"(?:last|past) {_COUNT} {_UNIT}", _past),
        (r"(?P<which>last|this) (?P<unit>weekend|week|month|year)", _last),
        (rf"(?:last|on|this) (?P<weekday>{'|'.join(_WEEKDAYS)})", _weekday),
        (rf"(?:in |last )?(?P<which>last|this|the|in) (?P<season>{'|'.join(_SEASONS)})(?: (?:of )?{_YEAR})?", _season),
        (rf"{_LEAD} (?P<lead_end>){_MONTH}", _calendar),
        (rf"{_LEAD} (?P<lead_end>){_YEAR}", _year),
        # "Lately" tells of a habit, and "most recently" asks for the last of several: neither names a time.
        (r"(?<!most )recently|the other day", _recently),
    )
)


# Parses plain dates in a statement, relative to when it was made.

_DATE_MONTHS: Final = [name[:3] for name in _MONTHS]

DATE: Final = (
    r"(?i:\d{4}-\d{2}-\d{2}|(?:\d{1,2}(?:st|nd|rd|th)?(?: of)? )?"
    rf"(?:{'|'.join(_MONTHS)})"
    r"(?: \d{1,2}(?:st|nd|rd|th)?(?!\d))?(?:,? \d{4})?|(?:19|20)\d{2})"
)
"""A calendar date, a month or a year, as a pattern."""
_WEEKDAY: Final = "|".join(_WEEKDAYS)
SOON: Final = rf"(?i:tomorrow|next (?:week|month|year|{_WEEKDAY})|(?:on|this) (?:{_WEEKDAY})|(?:on|in) {DATE})"
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
        return _calendar_date(words, today) or _relative(words, today)
    except (ValueError, OverflowError):
        return None


def _calendar_date(words: str, today: datetime) -> tuple[datetime, datetime] | None:
    if iso := re.search(r"(\d{4})-(\d{2})-(\d{2})", words):
        return _days(datetime(int(iso[1]), int(iso[2]), int(iso[3]), tzinfo=UTC), 0, 1)
    found_year = re.search(r"\b(?:19|20)\d{2}\b", words)
    year = int(found_year[0]) if found_year else today.year
    if month := re.search(rf"\b(?P<month>{'|'.join(_DATE_MONTHS)})[a-z]*\.?(?!\w)", words):
        number = _DATE_MONTHS.index(month["month"]) + 1
        rest = words.replace(found_year[0], "") if found_year else words
        if day := re.search(r"\d{1,2}", rest):
            return _days(datetime(year, number, int(day[0]), tzinfo=UTC), 0, 1)
        return _months(year * 12 + number - 1, 1)
    return _months(year * 12, 12) if found_year else None


def _relative(words: str, today: datetime) -> tuple[datetime, datetime] | None:
    if words in {"today", "tomorrow", "yesterday"}:
        return _days(today, {"today": 0, "tomorrow": -1, "yesterday": 1}[words], 1)
    if ago := re.fullmatch(r"(\w+) (day|week|month|year)s? ago", words):
        return _days(today - _count(ago[1]) * _length(ago[2]), 0, 1)
    which, _, unit = words.rpartition(" ")
    if unit in _WEEKDAYS:
        ahead = (_WEEKDAYS.index(unit) - today.weekday() - 1) % 7 + 1
        return _days(today, -ahead, 1)
    if unit not in _SPAN or which not in {"last", "this", "next"}:
        return None
    step = {"last": -1, "this": 0, "next": 1}[which]
    if unit == "year":
        return _months((today.year + step) * 12, 12)
    if unit == "month":
        return _months(today.year * 12 + today.month - 1 + step, 1)
    return _days(today, today.weekday() - 7 * step, 7)


def _months(first: int, count: int) -> tuple[datetime, datetime]:
    """An interval of whole months, counted from year 0."""
    start, end = (datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in (first, first + count))
    return start, end
