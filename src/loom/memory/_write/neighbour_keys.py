"""Context keys: an utterance is also found by its neighbours and the question it answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from loom.core import checks
from loom.core.filter import Eq
from loom.core.record import Episode, with_attributes
from loom.core.scope import Scope
from loom.core.threads import Locks
from loom.memory._recall.rank import REACH, questions_in
from loom.memory._shared import every, recorded_after
from loom.protocols.memory_store import KeepsKeys, MemoryStore, Store

AROUND, ASKED = "around", "asked"
POSITION = "turn"
"""The attribute that numbers the turns of a session."""

_SESSIONS = 1000
Keys = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class ConversationEnd:
    """The end of a conversation: the position of its next turn, and its last turns.

    It is valid while the user's epoch is `epoch`: after that, one of the turns may have been forgotten.
    """

    epoch: str
    place: int
    turns: tuple[Episode, ...]


class ContextKeys:
    """Caches the end of each conversation, so that a new turn and the turns before it become keys of each other.

    Without the cache every new turn would read its whole session again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends: OrderedDict[str, ConversationEnd] = OrderedDict()
        self._locks = Locks()

    @asynccontextmanager
    async def appending(self, scope: Scope) -> AsyncGenerator[None]:
        """Lock a conversation while turns are added to it: from end() until extend()."""
        if scope.session_id is None:
            yield
            return
        async with self._locks.of(scope):
            try:
                yield
            except BaseException:  # unknown whether the write happened
                self._ends.pop(scope.key(), None)
                raise

    async def end(self, scope: Scope, *, epoch: str | None = None) -> ConversationEnd:
        """The end of a session, read again if `epoch` is not that of the cached one.

        A write that is based on it has to name its epoch, which may be later than the one given.
        """
        known = self._ends.get(scope.key())
        if known is None or epoch not in {None, known.epoch}:
            epoch = await self._store.epoch(scope)
            turns = await session_turns(self._store, scope)
            # The next position is not the number of turns: some may have been forgotten. Twice REACH turns are cached,
            # because the keys of the last REACH turns change with a new one, and each reaches back REACH further.
            used = [place for turn in turns if isinstance(place := turn.attributes.get(POSITION), int)]
            known = ConversationEnd(epoch, max([len(turns) - 1, *used]) + 1, tuple(turns[-2 * REACH :]))
            self._ends[scope.key()] = known
        return known

    def drop(self, scope: Scope) -> None:
        """Drop the cached end of this conversation."""
        self._ends.pop(scope.key(), None)

    def keys(self, end: ConversationEnd, new: Sequence[Episode]) -> Keys:
        """The keys that change with new turns of a session: their own, and those of the turns before them."""
        if not isinstance(self._store, KeepsKeys):
            return {}
        turns = [*end.turns, *new]
        return _keys(turns, range(max(0, len(turns) - len(new) - REACH), len(turns)))

    async def keys_among(
        self, episodes: Iterable[Episode], *, user: Scope, without: Collection[str] = (), instead: Episode | None = None
    ) -> Keys:
        """The keys of these episodes and of the turns around them, as if the turns in `without` did not exist.

        `instead` replaces the turn with its id.
        """
        keys: Keys = {}
        named = {e.id: e.session_id for e in episodes if e.session_id is not None}
        if isinstance(self._store, KeepsKeys):
            for session in dict.fromkeys(named.values()):
                turns = await session_turns(self._store, user.for_session(session))
                left = [instead if instead and t.id == instead.id else t for t in turns if t.id not in without]
                keys |= _keys(left, _around(turns, named, without))
        return keys

    def extend(self, scope: Scope, new: Sequence[Episode]) -> None:
        """Add turns that were written to the cached end."""
        known = self._ends.get(scope.key())
        if scope.session_id is None or known is None:
            return
        self._ends[scope.key()] = ConversationEnd(
            known.epoch, known.place + len(new), (*known.turns, *new)[-2 * REACH :]
        )
        self._ends.move_to_end(scope.key())
        while len(self._ends) > _SESSIONS:
            self._ends.popitem(last=False)

    def forget(self, scope: Scope) -> None:
        """Drop all cached turns of a user."""
        start = scope.for_user().key().removesuffix("-")
        for key in [key for key in self._ends if key.startswith(start)]:
            del self._ends[key]


def with_positions(end: ConversationEnd, new: Sequence[Episode]) -> list[Episode]:
    """New turns with their positions in the session."""
    return [with_attributes(e, {POSITION: end.place + n}) for n, e in enumerate(recorded_after(end.turns, new))]


async def session_turns(store: MemoryStore, session: Scope) -> list[Episode]:
    """The original turns of a session, in order."""
    found = every(store, session, Eq("kind", "episode"))
    turns = [r async for r in found if isinstance(r, Episode) and not r.sources and r.session_id == session.session_id]
    return sorted(turns, key=_order)


def _around(turns: Sequence[Episode], named: Collection[str], without: Collection[str]) -> list[int]:
    """The places, among the turns that are left, of the named ones and of all whose keys contain their words.

    `place` counts the turns that are left, so a forgotten turn marks its former neighbours on both sides.
    """
    places, place = set[int](), 0
    for turn in turns:
        if turn.id in named:
            places.update(range(place - REACH, place + REACH + 1))
        place += turn.id not in without
    return sorted(at for at in places if 0 <= at < place)


def _order(turn: Episode) -> tuple[datetime, int, str]:
    """Sort key. Turns of one exchange have the same time, and hashed ids if they have a key, so position decides."""
    place = turn.attributes.get(POSITION)
    return (turn.at, place if isinstance(place, int) else -1, turn.id)


def _keys(turns: Sequence[Episode], places: Iterable[int]) -> Keys:
    """The keys of the turns at these places."""
    keys: Keys = {}
    for at in places:
        own = turns[at]
        window = turns[max(0, at - REACH) : at + REACH + 1]
        around = "\n".join(e.text[: checks.RANKED if e is own else checks.AROUND] for e in window)
        keys[own.id] = {AROUND: around, ASKED: questions_in(turns[at - 1].text[-checks.AROUND :]) if at else ""}
    return keys
