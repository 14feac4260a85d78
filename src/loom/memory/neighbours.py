"""Neighbours: the turns around a turn are another key under which it is found."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from loom.core.filter import And, Eq
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.protocols.memory_store import MemoryStore

AROUND = "around"
_SESSIONS = 1000
_PAGE = 500


class Neighbours:
    """Remembers how each conversation ends, so that a new turn and the one before it become each other's keys."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._ends: OrderedDict[str, list[Episode]] = OrderedDict()

    async def around(self, scope: Scope, new: Sequence[Episode]) -> dict[str, dict[str, str]]:
        """The keys that new turns of a session bring: for themselves, and for the turn before them."""
        if scope.session_id is None:
            return {}
        turns = [*await self._end(scope), *new]
        changed = {e.id for e in new} | {e.id for e in turns[-len(new) - 1 : -len(new)]}
        keys: dict[str, dict[str, str]] = {}
        for number, turn in enumerate(turns):
            if turn.id in changed:
                beside = [*turns[max(0, number - 1) : number], *turns[number + 1 : number + 2]]
                keys[turn.id] = {AROUND: "\n".join(e.text for e in beside)}
        return keys

    def said(self, scope: Scope, new: Sequence[Episode]) -> None:
        """New turns were written."""
        if scope.session_id is not None:
            end = [*self._ends.get(scope.key(), ()), *new][-2:]
            self._ends[scope.key()] = end
            self._ends.move_to_end(scope.key())
            while len(self._ends) > _SESSIONS:
                self._ends.popitem(last=False)

    def forget(self, scope: Scope) -> None:
        """Something of a user was removed; what is remembered of his conversations may be wrong."""
        start = scope.for_user().key().removesuffix("-")
        for key in [key for key in self._ends if key.startswith(start)]:
            del self._ends[key]

    async def _end(self, scope: Scope) -> list[Episode]:
        """The last two turns of a session."""
        known = self._ends.get(scope.key())
        if known is not None:
            return known
        where = And(Eq("kind", "episode"), Eq("session_id", scope.session_id))
        found: list[Episode] = []
        after: str | None = None
        while page := await self._store.list(scope, where=where, after=after, limit=_PAGE):
            found += [r for r in page if isinstance(r, Episode) and not r.sources]
            after = page[-1].id
        return sorted(found, key=lambda e: (e.at, e.id))[-2:]
