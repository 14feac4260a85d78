"""Neighbours: a turn is also found by the turns around it, and by the question it answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loom.core.filter import And, Eq
from loom.core.record import Episode
from loom.core.scope import Scope
from loom.memory.rank import REACH, questions_in
from loom.protocols.memory_store import MemoryStore

AROUND, ASKED = "around", "asked"
POSITION = "turn"
"""The attribute that counts the turns of a session."""

_SESSIONS = 1000
_PAGE = 500


@dataclass(frozen=True, slots=True)
class _End:
    """How a conversation ends: how many turns it has, and the last of them."""

    count: int
    turns: tuple[Episode, ...]


class Neighbours:
    """Remembers how each conversation ends, so that new turns and those before them become each other's keys."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._ends: OrderedDict[str, _End] = OrderedDict()

    async def placed(self, scope: Scope, new: Sequence[Episode]) -> list[Episode]:
        """New turns with their places in the session."""
        if scope.session_id is None:
            return list(new)
        count = (await self._end(scope)).count
        return [replace(e, attributes={**e.attributes, POSITION: count + n}) for n, e in enumerate(new)]

    async def keys(self, scope: Scope, new: Sequence[Episode]) -> dict[str, dict[str, str]]:
        """The keys that new turns of a session bring: for themselves, and for the turns before them."""
        if scope.session_id is None:
            return {}
        turns = [*(await self._end(scope)).turns, *new]
        keys: dict[str, dict[str, str]] = {}
        for at in range(max(0, len(turns) - len(new) - REACH), len(turns)):
            window = turns[max(0, at - REACH) : at + REACH + 1]
            before = turns[at - 1].text if at else ""
            keys[turns[at].id] = {AROUND: "\n".join(e.text for e in window), ASKED: questions_in(before)}
        return keys

    def said(self, scope: Scope, new: Sequence[Episode]) -> None:
        """New turns were written."""
        known = self._ends.get(scope.key())
        if scope.session_id is None or known is None:
            return
        self._ends[scope.key()] = _End(known.count + len(new), (*known.turns, *new)[-2 * REACH :])
        self._ends.move_to_end(scope.key())
        while len(self._ends) > _SESSIONS:
            self._ends.popitem(last=False)

    def forget(self, scope: Scope) -> None:
        """Something of a user was removed; what is remembered of his conversations may be wrong."""
        start = scope.for_user().key().removesuffix("-")
        for key in [key for key in self._ends if key.startswith(start)]:
            del self._ends[key]

    async def _end(self, scope: Scope) -> _End:
        known = self._ends.get(scope.key())
        if known is None:
            where = And(Eq("kind", "episode"), Eq("session_id", scope.session_id))
            found: list[Episode] = []
            after: str | None = None
            while page := await self._store.list(scope, where=where, after=after, limit=_PAGE):
                found += [r for r in page if isinstance(r, Episode) and not r.sources]
                after = page[-1].id
            found.sort(key=lambda e: (e.at, e.id))
            known = self._ends[scope.key()] = _End(len(found), tuple(found[-2 * REACH :]))
        return known
