"""Accesses that are counted, but not yet written: a search should not wait for a disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from threading import Lock
from typing import TypeAlias, TypeVar

from loom.core.filter import Filter
from loom.core.hit import Hit, scored
from loom.core.record import Episode, changed
from loom.core.scope import Scope
from loom.stores.sqlite import records
from loom.stores.sqlite.connection import Database
from loom.stores.sqlite.users import find_user

_T = TypeVar("_T")
_Waiting: TypeAlias = defaultdict[Scope, dict[str, list[tuple[Scope, datetime]]]]
_MOST = 1000
"""So many accesses wait at the most."""


class Touches:
    """Accesses that wait for the next write: for each user, by record, who saw it and when. Safe between threads."""

    __slots__ = ("_lock", "_number", "_waiting")

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting = _Waiting(_of_user)
        self._number = 0

    def __bool__(self) -> bool:
        return self._number > 0

    @property
    def are_many(self) -> bool:
        """Whether it is time to write them."""
        return self._number >= _MOST

    def add(self, scope: Scope, ids: Iterable[str], at: datetime) -> None:
        """Count an access of each episode."""
        with self._lock:
            waiting = self._waiting[scope.for_user()]
            for id in ids:
                waiting[id].append((scope, at))
                self._number += 1

    def write(self, db: Database) -> None:
        """Write what waits."""
        self.before(lambda _: None)(db)

    def before(self, action: Callable[[Database], _T]) -> Callable[[Database], _T]:
        """The change with all that waits written first; where it fails, they wait on."""

        def both(db: Database) -> _T:
            with self._lock:
                taken, self._waiting, self._number = self._waiting, _Waiting(_of_user), 0
            try:
                _write(db, taken)
                return action(db)
            except BaseException:
                for touches in taken.values():
                    for id, times in touches.items():
                        for scope, at in times:
                            self.add(scope, [id], at)
                raise

        return both

    def asked_for_by(self, where: Filter | None) -> bool:
        """Whether a filter may ask for what waits."""
        return bool(self) and "access" in repr(where)

    def shown_in(self, scope: Scope, hits: Iterable[Hit]) -> tuple[Hit, ...]:
        """The hits of a user with the accesses that wait."""
        with self._lock:
            waiting = self._waiting.get(scope.for_user())
            if not waiting:
                return tuple(hits)
            return tuple([_touched(hit, waiting[hit.item.id]) if hit.item.id in waiting else hit for hit in hits])


def _of_user() -> dict[str, list[tuple[Scope, datetime]]]:
    return defaultdict(list)


def _write(db: Database, waiting: _Waiting) -> None:
    for scope, touches in waiting.items():
        user = find_user(db, scope)
        if user is not None:
            for id, times in touches.items():
                for seen_by, at in times:
                    records.touch(db, user, seen_by, [id], at)


def _touched(hit: Hit, touches: Iterable[tuple[Scope, datetime]]) -> Hit:
    episode = hit.item
    if not isinstance(episode, Episode):
        return hit
    times = [at for scope, at in touches if scope.session_id in (None, episode.session_id)]
    if not times:
        return hit
    last = max(times) if episode.accessed_at is None else max(*times, episode.accessed_at)
    return scored(changed(episode, accesses=episode.accesses + len(times), accessed_at=last), dict(hit.why))
