"""Clocks and new ids: injected, so that tests control both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Protocol, runtime_checkable

from loom.core.threads import renew_lock_after_fork
from loom.errors import UsageError

TICK = timedelta(microseconds=1)
"""The least that two times differ by."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(at: datetime) -> int:
    """A time as whole microseconds, exact in both directions."""
    return (at - _EPOCH) // TICK


@lru_cache(maxsize=1024)  # a turn was mostly recorded when it was said, and a batch at one time
def from_micros(value: int) -> datetime:
    """The time of whole microseconds."""
    return _EPOCH + timedelta(0, 0, value)


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


# New ids: short ones that people type, and time-ordered ones for records.

ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""31 characters that are not mistaken for one another: no 0, 1, i, l, o."""
_BASE = len(ALPHABET)
_VALUE = {char: value for value, char in enumerate(ALPHABET)}
_FIRST_WIDTH = 3

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in CROCKFORD for second in CROCKFORD]
_MILLISECOND = timedelta(milliseconds=1)
_RANDOM_BITS = 80


class ShortIds:
    """Hands out short ids, each of them once: 29,791 of 3 characters, then 923,521 of 4, and so on.

    A counter walks a permutation of all ids of one width, so nothing is stored per id and neighbours
    do not look alike. `start` decides where the walk begins; None draws it once, at the first id.
    Safe to share between threads.
    """

    __slots__ = (
        "__weakref__", "_inverse", "_lock", "_offset", "_powers", "_reserved", "_size", "_start", "_step", "_used",
        "_value", "_width",
    )  # fmt: skip

    def __init__(self, start: int | None = None) -> None:
        self._start = start
        self._lock = Lock()
        self._reserved: set[str] = set()
        self._width = _FIRST_WIDTH - 1  # the first next_id() widens it
        self._size = self._used = self._value = self._offset = 0
        self._step = self._inverse = 1
        self._powers: tuple[int, ...] = ()

    def next_id(self) -> str:
        """An id that was never handed out or reserved here."""
        with self._lock:
            while True:
                if self._used == self._size:
                    self._widen()
                value = self._value
                self._used += 1
                self._value = (value + self._step) % self._size
                # Spelled out because a loop doubles the cost, and every entry that is added pays it.
                id = ALPHABET[value // 961 % 31] + ALPHABET[value // 31 % 31] + ALPHABET[value % 31]
                for power in self._powers:
                    id = ALPHABET[value // power % 31] + id
                if id not in self._reserved:
                    return id
                self._reserved.remove(id)

    def reserve(self, id: str) -> bool:
        """Keep `id`, restored from storage, from being handed out; False if it is already taken here."""
        value = _decode(id)
        with self._lock:
            if self._is_spent(len(id), value) or id in self._reserved:
                return False
            self._reserved.add(id)
            return True

    def _is_spent(self, width: int, value: int) -> bool:
        if width != self._width:
            return width < self._width
        return (value - self._offset) * self._inverse % self._size < self._used

    def _widen(self) -> None:
        if self._start is None:
            self._start = int.from_bytes(os.urandom(16))
        self._width += 1
        size: int = _BASE**self._width
        self._size = size
        self._powers = tuple(_BASE**place for place in range(_FIRST_WIDTH, self._width))
        # A step near the golden section spreads neighbours; coprime to 31 means that every id is visited.
        step = size * 618 // 1000
        self._step = step if step % _BASE else step + 1
        self._inverse = pow(self._step, -1, size)
        self._offset = self._value = self._start % size
        self._used = 0


SHARED = ShortIds()
"""The ids of this process. One source, so that contexts that visit each other never share an id."""
renew_lock_after_fork(SHARED, "_lock")


def _decode(id: str) -> int:
    value = 0
    for char in id:
        if char not in _VALUE:
            raise UsageError(f"{id!r} is not a short id: {char!r} is not one of {ALPHABET}")
        value = value * _BASE + _VALUE[char]
    if len(id) < _FIRST_WIDTH:
        raise UsageError(f"{id!r} is not a short id: it has fewer than {_FIRST_WIDTH} characters")
    return value


def last_id_at(now: datetime) -> str:
    """What every id of RecordIds that is made after this millisecond comes behind."""
    return _spelled(((now - _EPOCH) // _MILLISECOND) << _RANDOM_BITS | (1 << _RANDOM_BITS) - 1)


def _spelled(value: int) -> str:
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


# Random bits for record ids. They are read in blocks: reading lets another thread have the interpreter, and takes
# longer than all else that an id takes.

_BLOCK = 400
_drawn: list[bytes] = []
_forks = 0


def _draw() -> bytes:
    try:
        return _drawn.pop()  # one step, whatever other threads do
    except IndexError:
        size = _RANDOM_BITS // 8
        block = os.urandom(size * _BLOCK)
        _drawn.extend([block[start : start + size] for start in range(size, len(block), size)])
        return block[:size]


def _forked() -> None:
    """What the parent drew is for the parent."""
    global _forks  # noqa: PLW0603 - one process, one number
    _forks += 1
    _drawn.clear()


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_forked)


class RecordIds:
    """Makes ids for records: 26 characters that sort by the time they were made.

    48 bits of milliseconds, then 80 random bits. Ids of one instance always rise: inside a millisecond,
    and while the wall clock runs behind, the next id is the last one plus one. Safe to share between threads, and on
    both sides of a fork: a child goes on from where it was forked, but somewhere else than its parent.
    """

    __slots__ = ("__weakref__", "_clock", "_entropy", "_forks", "_last", "_lock")

    def __init__(self, clock: Clock | None = None, entropy: Callable[[int], bytes] | None = None) -> None:
        """`entropy` gives as many random bytes as it is asked for; by default, the system's."""
        self._clock = clock or SystemClock()
        self._entropy = entropy
        self._last = -1
        self._forks = _forks
        self._lock = Lock()
        renew_lock_after_fork(self, "_lock")

    def next_id(self) -> str:
        """A new id, greater than every id before it."""
        now = self._clock.now()
        millis = (now - _EPOCH) // _MILLISECOND
        if millis < 0:
            raise UsageError(f"the clock says {now.isoformat()}; record ids start in 1970: set the clock")
        with self._lock:
            if millis > self._last >> _RANDOM_BITS:
                self._last = millis << _RANDOM_BITS | self._bits()
            elif self._forks == _forks:
                self._last += 1
            else:  # the parent goes on with the next ones, and other children do
                self._last += 1 + self._bits()
            self._forks = _forks
            value = self._last
        return _spelled(value)

    def _bits(self) -> int:
        return int.from_bytes(_draw() if self._entropy is None else self._entropy(_RANDOM_BITS // 8))
