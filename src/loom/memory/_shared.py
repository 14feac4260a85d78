"""Helpers of all memory parts: reading page by page, guarded writes, times, the bound embedder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Final, NamedTuple, TypeAlias, TypeGuard, TypeVar

from loom.core.clock import TICK, Clock, last_id_at
from loom.core.filter import And, Eq, Filter, In, Not, Range
from loom.core.record import Episode, Fact, Record, latest_of
from loom.core.scope import Scope
from loom.errors import EmbedderMismatch, LoomError, StaleWrite
from loom.protocols.embedder import Embedder
from loom.protocols.memory_store import (
    AdminStore,
    HasParts,
    KeepsJobs,
    KeepsVectors,
    MemoryStore,
    Newest,
    ReadsTogether,
    SeesOthers,
    Store,
    Together,
)

PAGE = 500
FILE = "file:"
"""Name prefix of blocks that are files of the memory tool; they are not shown in prompts."""
OLD: Final = "~version:"
"""Name prefix of blocks that hold an old text of another block; see loom.memory._history."""
ARE_CURRENT: Final = Not(Range("id", low=f"block:{OLD}", high=f"block:{OLD[:-1]};"))
"""The filter that leaves them out; `;` is the character after `:`."""
POSITION = "turn"
"""The attribute that numbers the turns of a session."""
UNCONFIRMED = "unconfirmed"
"""The predicate of candidates: instructions and preferences that wait for the user."""


def is_candidate(record: object) -> TypeGuard[Fact]:
    """Whether a record is an unconfirmed instruction or preference."""
    return isinstance(record, Fact) and record.predicate == UNCONFIRMED


async def every(store: MemoryStore, scope: Scope, where: Filter | None = None) -> AsyncGenerator[Record]:
    """All records that match, ordered by id."""
    after: str | None = None
    while True:
        page = await store.list(scope, where=where, after=after, limit=PAGE)
        for record in page:
            yield record
        if len(page) < PAGE:
            return
        after = page[-1].id


async def get_all(store: MemoryStore, scope: Scope, ids: Sequence[str]) -> dict[str, Record]:
    """The records of these ids that exist."""
    found: dict[str, Record] = {}
    for start in range(0, len(ids), PAGE):
        named = In("id", tuple(ids[start : start + PAGE]))
        found |= {record.id: record for record in await store.list(scope, where=named, limit=PAGE)}
    return found


async def every_fact(store: MemoryStore, scope: Scope, *filters: Filter) -> list[Fact]:
    """All facts that match, including retired ones."""
    found = every(store, scope.for_user(), And(Eq("kind", "fact"), *filters))
    return [record async for record in found if isinstance(record, Fact)]


async def read_together(store: Store, scope: Scope, *wheres: Filter | Newest) -> Together:
    """The epoch of a user and the records that fit each filter, as of one moment where the store can tell.

    Otherwise the epoch is read first: what was forgotten since then changes it.
    """
    if _reads_together(store):
        return await store.read_together(scope, *wheres)
    return Together(await store.epoch(scope), await list_together(store, scope, *wheres))


async def list_together(store: MemoryStore, scope: Scope, *wheres: Filter | Newest) -> Sequence[Sequence[Record]]:
    """The records that fit each filter, with one call where the store can do that."""
    if _reads_together(store):
        return (await store.read_together(scope, *wheres)).lists
    return [await _listed(store, scope, where) for where in wheres]


async def _listed(store: MemoryStore, scope: Scope, where: Filter | Newest) -> list[Record]:
    if isinstance(where, Newest):
        return where.of([record async for record in every(store, scope, where.where)])
    return [record async for record in every(store, scope, where)]


def _reads_together(store: object) -> TypeGuard[ReadsTogether]:
    """Whether a store is one; isinstance() of a protocol takes as long as a short read, and every turn asks."""
    return hasattr(store, "read_together")


async def counts(store: MemoryStore, scope: Scope) -> dict[str, int]:
    """Number of records: episodes by layer, archived ones, facts, unconfirmed instructions, blocks (no old texts)."""
    found = {"L1": 0, "L2": 0, "L3": 0, "L4": 0, "archived": 0, "facts": 0, "unconfirmed": 0, "blocks": 0}
    async for record in every(store, scope):
        if isinstance(record, Episode):
            found["archived" if record.archived_at else record.layer.label] += 1
        elif isinstance(record, Fact):
            found["unconfirmed" if is_candidate(record) else "facts"] += 1
        elif not record.name.startswith(OLD):
            found["blocks"] += 1
    return found


# Read, decide and write as one step: retried if a record was forgotten in between.

_T = TypeVar("_T")

TRIES = 100
"""Tries before StaleWrite is raised. Each retry means that another caller forgot something meanwhile, so a user who is
not being deleted in a loop never comes near this."""


async def retry_stale(store: KeepsJobs, scope: Scope, attempt: Callable[[str], Awaitable[_T]]) -> _T:
    """The result of `attempt(epoch)`, which reads, decides, and writes with `since=epoch`; retried on StaleWrite.

    The epoch is read before anything that the write is based on. So a write that the store accepts contains nothing
    that was forgotten by then.
    """
    for _ in range(TRIES - 1):
        try:
            return await attempt(await store.epoch(scope))
        except StaleWrite:
            continue
    return await attempt(await store.epoch(scope))


# Timestamps for new records: now, but after everything that is stored for the user.
#
# The clock of this process may have been set back, or be behind that of another process that wrote for the same user.
# Neither may make an older statement win.

_USERS = 10_000
_LOOK_AGAIN = 1.0
"""Seconds between looks at the store. Writes closer together than this count as simultaneous."""
_BEHIND_TIMED_IDS = "8"
"""Ids of RecordIds begin with a digit up to 7, and sort before all others."""
_LAST = datetime.max.replace(tzinfo=UTC) - TICK


_NOT_TOLD = -1
"""In place of a number of changes: the look has told nothing."""


class _Look(NamedTuple):
    """When a user's records were last looked at, and how many changes by others the store had found by then."""

    at: float
    changes: int


class UserTimes:
    """Gives the time for records of a user."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._others = _Others(store)
        self._looked: OrderedDict[str, _Look] = OrderedDict()
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
        """Look for records with ids later than now, made by another clock.

        At most once per _LOOK_AGAIN, and not at all while the store says that nobody has written any.
        """
        key, measured = user.key(), self._clock.monotonic()
        is_known, changes = self._others.ask(measured, self._clock.now())
        last = self._looked.get(key, _Look(-inf, _NOT_TOLD))
        if measured - last.at < _LOOK_AGAIN or (is_known and changes == last.changes):
            return
        self._note(key, _Look(measured, _NOT_TOLD))
        id = last_id_at(max(self._clock.now(), self._ahead.get(key, self._clock.now())))
        try:
            # Mostly there is none, and the one behind it has no time in its id: that one record is all that is read.
            while (ahead := await self._store.list(user, after=id, limit=1)) and ahead[0].id < _BEHIND_TIMED_IDS:
                page = await self._store.list(user, after=id, limit=PAGE)
                self.observe(user, page)
                id = page[-1].id if page else _BEHIND_TIMED_IDS
        except LoomError:
            return  # a failed look must not prevent the write; it is repeated, whatever the store says of others
        self._note(key, _Look(measured, changes))

    def _note(self, key: str, look: _Look) -> None:
        self._looked[key] = look
        self._looked.move_to_end(key)
        if len(self._looked) > _USERS:
            self._looked.popitem(last=False)


class _Others:
    """What a store says of those who write to the same place, and how old that is."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store if isinstance(store, SeesOthers) else None
        self._checks = 0
        self._asked = self._checked = -inf

    def ask(self, measured: float, now: datetime) -> tuple[bool, int]:
        """Whether it is known, to _LOOK_AGAIN, that none of us is ahead of now; and how many changes others made."""
        others = self._store.others if self._store else None
        if others is None:
            return False, 0
        if others.checks != self._checks:  # the store has looked since this was asked last
            self._checks, self._checked = others.checks, self._asked
        self._asked = measured
        is_new = measured - self._checked < _LOOK_AGAIN
        return is_new and (others.latest is None or others.latest <= now), others.changes


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


# Notes of a store about its guarantees.


def notes_of(store: object) -> tuple[str, ...]:
    """The notes of a store, or of the stores that it is made of."""
    notes = getattr(store, "notes", None)  # as of HasNotes; isinstance() takes long, and every write asks
    if notes is not None:
        return notes
    if _has_parts(store):
        return tuple(dict.fromkeys(note for part in store.parts.values() for note in notes_of(part)))
    return ()


def _has_parts(store: object) -> TypeGuard[HasParts]:
    """Whether a store is one; isinstance() of a protocol takes as long as a tenth of a write, and every write asks."""
    return hasattr(store, "parts")


# The embedder of a memory: the one that was named, or else the one that its store was made with.

Adopt: TypeAlias = Callable[[str], Embedder | None]
"""Returns the embedder with an identity, if it is installed and runs on this machine."""


def is_instant(embedder: object) -> bool:
    """Whether an embedder says of itself that it takes no time worth waiting for."""
    return getattr(embedder, "is_instant", False) is True


class EmbedderBinding:
    """The embedder of a store. If none was named, the store's own embedder is adopted, if this machine has it."""

    def __init__(
        self, store: MemoryStore, embedder: Embedder | None, *, note: str = "", adopt: Adopt | None = None
    ) -> None:
        self.embedder = embedder
        self.note = note or (f"embedding with {embedder.identity}" if embedder else "no embedder")
        """Which embedder it is, and why."""
        self._store, self._find = store, adopt
        self._vectors = store if isinstance(store, KeepsVectors) else None

    async def bind(self) -> Embedder:
        """Bind the store to the embedder, and return it.

        Raises:
            EmbedderMismatch: the store holds vectors of another embedder.
        """
        assert self.embedder is not None
        assert self._vectors is not None
        try:
            await self._vectors.bind(self.embedder.identity, self.embedder.dimension)
        except EmbedderMismatch as error:
            if not self._adopt(error.stored):
                raise
            await self._vectors.bind(self.embedder.identity, self.embedder.dimension)
        return self.embedder

    async def adopt_stored(self) -> None:
        """Adopt the embedder that the store was made with, without binding a store that has none yet."""
        bound = await self._store.bound() if isinstance(self._store, AdminStore) else None
        if bound is not None and self.embedder is not None and bound[0] != self.embedder.identity:
            self._adopt(bound[0])

    def _adopt(self, identity: str) -> bool:
        other = self._find(identity) if self._find else None
        if other is not None:
            self.embedder = other
            self.note = f"embedding with {other.identity}, because this store was made with it"
        return other is not None
