"""Timestamps for new records: now, but after everything that is stored for the user.

The clock of this process may have been set back, or be behind that of another process that wrote for the same user.
Neither may make an older statement win.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from loom.core.clock import TICK, Clock
from loom.core.ids import last_id_at
from loom.core.record import Episode, Fact, Record
from loom.core.scope import Scope
from loom.errors import LoomError
from loom.memory.listing import PAGE
from loom.protocols.memory_store import MemoryStore

_USERS = 10_000
_LOOK_AGAIN = 1.0
"""Seconds between looks at the store. Writes closer together than this count as simultaneous."""
_BEHIND_TIMED_IDS = "8"
"""Ids of RecordIds begin with a digit up to 7, and sort before all others."""
_LAST = datetime.max.replace(tzinfo=UTC) - TICK


class UserTimes:
    """Gives the time for records of a user."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._looked: OrderedDict[str, float] = OrderedDict()
        self._ahead: dict[str, datetime] = {}

    async def now(self, scope: Scope) -> datetime:
        """Now; or just after the last record of the user, if a process with a clock ahead of this one wrote it.

        Never the same twice, unless the clock stands still.
        """
        user = scope.for_user()
        await self._look(user)
        key, now = user.key(), self._clock.now()
        latest = self._ahead.get(key)
        if latest is None or latest <= now:
            self._ahead.pop(key, None)
            return now
        self._ahead[key] = later_than(latest, now)
        return self._ahead[key]

    def observe(self, scope: Scope, records: Iterable[Record]) -> None:
        """Note how far ahead the clocks were that wrote these records."""
        latest = latest_of(records)
        if latest is not None and latest > self._clock.now():
            key = scope.for_user().key()
            if len(self._ahead) >= _USERS:
                self._ahead.clear()  # _look() finds them again
            self._ahead[key] = max(latest, self._ahead.get(key, latest))

    async def _look(self, user: Scope) -> None:
        """Look for records with ids later than now, made by another clock; at most once per _LOOK_AGAIN."""
        key, measured = user.key(), self._clock.monotonic()
        if measured - self._looked.get(key, measured - _LOOK_AGAIN) < _LOOK_AGAIN:
            return
        self._looked[key] = measured
        self._looked.move_to_end(key)
        if len(self._looked) > _USERS:
            self._looked.popitem(last=False)
        id = last_id_at(max(self._clock.now(), self._ahead.get(key, self._clock.now())))
        try:
            while id < _BEHIND_TIMED_IDS and (page := await self._store.list(user, after=id, limit=PAGE)):
                self.observe(user, page)
                id = page[-1].id
        except LoomError:
            return  # a failed look must not prevent the write


def latest_of(records: Iterable[Record]) -> datetime | None:
    """The latest time at which one of these episodes and facts was recorded or retired."""
    return max((_written(r) for r in records if isinstance(r, Episode | Fact)), default=None)


def _written(record: Episode | Fact) -> datetime:
    retired = record.superseded_at if isinstance(record, Fact) else None
    return max(record.recorded_at, retired or record.recorded_at)


def later_than(latest: datetime | None, now: datetime) -> datetime:
    """Now; or one tick after `latest`, if the clock is behind it."""
    return now if latest is None or now >= latest else min(latest, _LAST) + TICK


def recorded_after(turns: Sequence[Episode], new: Sequence[Episode]) -> list[Episode]:
    """New turns of a session with times after those of the existing turns; a time given by the caller stays."""
    latest = latest_of(turns)
    return [_recorded(e, later_than(latest, e.recorded_at)) for e in new]


def _recorded(episode: Episode, now: datetime) -> Episode:
    if now == episode.recorded_at:
        return episode
    at = now if episode.at == episode.recorded_at else episode.at
    return replace(episode, at=at, recorded_at=now)
