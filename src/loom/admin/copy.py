"""Copying everything from one store to another: users, records, jobs, sessions.

Both sides are counted afterwards, kind by kind, with a digest that depends on what is there and not on its order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from loom.core.codec import checkpoint_to_dict, entry_to_dict, record_to_dict
from loom.core.filter import In
from loom.core.log import Checkpoint, LogEntry
from loom.core.record import Record, WorkingBlock
from loom.core.scope import Scope
from loom.engine.open import open_checkpoints
from loom.engine.urls import Opening, check_is_there, sessions_place, store_at
from loom.errors import StaleWrite, UsageError
from loom.memory._shared import TRIES
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import AdminStore, ListsUsers, SearchKeys
from loom.stores.sqlite.schema import has_checkpoints
from loom.wrappers.indexed import NEAR, OUTBOX, is_same

# One user's sessions from one checkpoint store to another, each checkpoint with its own id, time and log.
#
# A store takes a checkpoint only where it holds the parent. Where the source itself no longer does, or the parent is of
# another session, as after a fork, the target is given an empty checkpoint under the parent's id, which goes again as
# soon as its child is saved.


class _Saved:
    """The checkpoints of a user, the first saved first, and the log behind each."""

    def __init__(self, user: Scope, checkpoints: tuple[Checkpoint, ...]) -> None:
        self.user = user
        self.checkpoints = checkpoints[::-1]
        self._by_id = {(one.session_id, one.id): one for one in checkpoints}
        self._logs: dict[tuple[str, str], tuple[LogEntry, ...]] = {}

    def parent(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """The checkpoint of the same session that this one continues; None where that is not here."""
        return self._by_id.get((checkpoint.session_id, checkpoint.parent or ""))

    def stands_in(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of the target is none of these, and stands for a parent that is not here."""
        if (checkpoint.session_id, checkpoint.id) in self._by_id:
            return False
        of_session = (one for one in self.checkpoints if one.session_id == checkpoint.session_id)
        return checkpoint.position == 0 and any(one.parent == checkpoint.id for one in of_session)

    async def read_logs(self, store: CheckpointStore) -> dict[tuple[str, str], tuple[LogEntry, ...]]:
        """Read the logs, each once: that of a parent is the beginning of its child's. Returns those without a child."""
        ends: dict[tuple[str, str], tuple[LogEntry, ...]] = {}
        for one in reversed(self.checkpoints):
            at = (one.session_id, one.id)
            if at not in self._logs:
                ends[at] = await store.history(self.user.for_session(one.session_id), one.id)
                self._logs[at] = ends[at]
            if (parent := self.parent(one)) is not None:
                self._logs.setdefault((parent.session_id, parent.id), self._logs[at])
        return ends

    def entries(self, checkpoint: Checkpoint) -> tuple[LogEntry, ...]:
        """What a checkpoint adds to the log of its parent, or the whole log where that is not here."""
        parent = self.parent(checkpoint)
        start = 0 if parent is None else parent.position
        return self._logs[checkpoint.session_id, checkpoint.id][start : checkpoint.position]


async def copy_sessions(source: CheckpointStore, target: CheckpointStore, user: Scope) -> int:
    """Copy what the target does not have yet; returns how many checkpoints were written.

    A session that is forgotten at the source meanwhile is not left behind in the target.
    """
    saved = _Saved(user, await source.list(user))
    held: set[tuple[str, str]] = set()
    for one in await target.list(user):
        if saved.stands_in(one):  # left by a copy that was broken off
            await target.delete(user.for_session(one.session_id), one.id)
        else:
            held.add((one.session_id, one.id))
    missing = [one for one in saved.checkpoints if (one.session_id, one.id) not in held]
    if missing:
        await saved.read_logs(source)
    for one in missing:
        await _save(target, user.for_session(one.session_id), one, saved)
    left = {one.session_id for one in await source.list(user)} if missing else set[str]()
    for session in {one.session_id for one in missing} - left:
        await target.forget(user.for_session(session))
    return len(missing)


async def _save(target: CheckpointStore, scope: Scope, checkpoint: Checkpoint, saved: _Saved) -> None:
    newest = await target.load(scope)
    head = None if newest is None else newest.id
    entries = saved.entries(checkpoint)
    if checkpoint.parent is None or saved.parent(checkpoint) is not None:
        await target.save(scope, checkpoint, entries=entries, head=head)
        return
    stand_in = Checkpoint(id=checkpoint.parent, session_id=checkpoint.session_id, at=checkpoint.at, position=0, turn=0)
    await target.save(scope, stand_in, entries=(), head=head)
    await target.save(scope, checkpoint, entries=entries, head=stand_in.id)
    await target.delete(scope, stand_in.id)


# One user's records, keys, vectors and jobs from one store to another, page by page.
#
# What the other store has already is compared and left alone, so that a copy that was broken off goes on where it
# stopped, and one that is done changes nothing.

PAGE = 200
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of records that were copied since the last call."""


@dataclass(slots=True)
class _Change:
    """The writes of one page. Records in the way are deleted before, with their keys and vectors."""

    put: list[Record] = field(default_factory=list[Record])
    delete: list[str] = field(default_factory=list[str])
    keys: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    vectors: dict[str, Vector] = field(default_factory=dict[str, Vector])
    records: int = 0


async def pages(store: AdminStore, user: Scope) -> AsyncGenerator[tuple[Record, ...]]:
    """All records of a user, by id."""
    after: str | None = None
    while page := await store.list(user, after=after, limit=PAGE):
        yield page
        after = page[-1].id


async def copy_user(
    source: AdminStore, target: AdminStore, user: Scope, *, with_vectors: bool, progress: Progress
) -> int:
    """Copy everything of a user; returns how many records were written.

    What is forgotten at the source meanwhile is not left behind in the target.
    """
    written, copied = 0, set[str]()
    for _ in range(TRIES):
        epoch = await source.epoch(user)
        written += await _copy_pages(source, target, user, copied, with_vectors=with_vectors, progress=progress)
        if await source.epoch(user) == epoch:
            break
        left = [record.id async for page in pages(source, user) for record in page]
        if gone := copied.difference(left):
            await target.delete(user, *gone)
            copied -= gone
        progress = _silent  # the records were counted
    else:
        raise StaleWrite(user.user_id)
    jobs = await source.open_jobs(user)
    if jobs:
        await target.write(user, jobs=jobs)
    return written


async def _copy_pages(
    source: AdminStore,
    target: AdminStore,
    user: Scope,
    copied: set[str],
    *,
    with_vectors: bool,
    progress: Progress,
) -> int:
    written = 0
    async for page in pages(source, user):
        change = await _planned(source, target, user, page, with_vectors=with_vectors)
        if change.delete:
            await target.delete(user, *change.delete)
        if change.put or change.keys:
            await target.write(user, put=change.put, keys=change.keys)
        if change.vectors:
            await target.put_vectors(user, change.vectors)
        copied |= {record.id for record in page}
        written += change.records
        progress(len(page))
    return written


def _silent(_: int) -> None:
    """No progress is reported."""


async def _planned(
    source: AdminStore, target: AdminStore, user: Scope, page: Sequence[Record], *, with_vectors: bool
) -> _Change:
    ids = tuple(record.id for record in page)
    there = {record.id: record for record in await target.list(user, where=In("id", ids), limit=len(ids))}
    finds, has = await source.search_keys(user, *ids), await target.search_keys(user, *there)
    change = _Change()
    for record in page:
        old, given, held = there.get(record.id), finds.get(record.id, SearchKeys()), has.get(record.id, SearchKeys())
        is_other_block = isinstance(record, WorkingBlock) and old != record
        if old is not None and (is_other_block or (held.vector is not None and given.vector is None)):
            change.delete.append(record.id)  # a block with other versions, or a vector that should not be there
            old, held = None, SearchKeys()
        if old != record:
            # Of a block all versions up to it: a store takes only the next one.
            versions = range(1, record.version + 1) if isinstance(record, WorkingBlock) else ()
            change.put += [replace(record, version=version) for version in versions] or [record]
            change.records += 1
            if old is not None and old.text != record.text:
                held = SearchKeys(held.keys)  # the vector of another text goes with that text
        if given.keys != held.keys:
            change.keys[record.id] = dict.fromkeys(held.keys, "") | dict(given.keys)
        vector = given.vector if with_vectors else None
        if vector is not None and (held.vector is None or not is_same(held.vector, vector, within=NEAR)):
            change.vectors[record.id] = vector
    return change


_USERS = 100
_DIGITS = 16
_WIDTH = 2**256
REEMBED = (
    "vectors were not copied: the target holds those of {there}, the source those of {here}; "
    "run `loom memory reembed` on the target"
)
OF_KNOWN = "sessions are copied of users of whom the memory knows something; this store cannot say who else has any"
DEAD = "{count} jobs that were given up stay behind; only open jobs are copied"


class SessionCopies(NamedTuple):
    """The checkpoint stores of both sides."""

    source: CheckpointStore
    target: CheckpointStore


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of items of a kind, and a digest of all of them in any order."""

    count: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One kind of one user on both sides; `differing` counts vectors that are there and have other numbers."""

    user: Scope
    kind: str
    source: Tally
    target: Tally
    differing: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same."""
        return self.source == self.target and not self.differing


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy: how many records and checkpoints it wrote, and what both sides have now."""

    users: int
    written: int
    kinds: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same of every user that was copied."""
        return all(one.is_equal for one in self.kinds)


async def copy_store(
    source: AdminStore,
    target: AdminStore,
    *,
    sessions: SessionCopies | None = None,
    namespace: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Copy everything of everybody, or of one namespace; run again, it goes on where it was broken off.

    Neither side should be written to meanwhile. What the target has under an id of the source is replaced where it
    differs; what else it has stays, and shows as a difference. `sessions` are the two stores of checkpoints.
    """
    with_vectors, notes = await _vectors(source, target)
    users = [user async for user in all_users(source, namespace)]
    if sessions is not None and isinstance(sessions.source, ListsUsers):
        known = set(users)
        users += [user async for user in all_users(sessions.source, namespace) if user not in known]
    elif sessions is not None:
        notes.append(OF_KNOWN)
    total = 2 * sum([await source.count(user) for user in users])
    done = 0

    def further(records: int) -> None:
        nonlocal done
        done += records
        if progress is not None:
            progress(done, total)

    written = 0
    for user in users:
        written += await copy_user(source, target, user, with_vectors=with_vectors, progress=further)
        if sessions is not None:
            written += await copy_sessions(*sessions, user)
    kinds: list[Compared] = []
    for user in users:
        kinds += await compare_user(source, target, user, with_vectors=with_vectors, progress=further)
        if sessions is not None:
            kinds += await compare_sessions(*sessions, user)
    dead = sum([len(await source.dead_letters(user)) for user in users])
    notes += [DEAD.format(count=dead)] if dead else []
    return Copied(users=len(users), written=written, kinds=tuple(kinds), notes=tuple(notes))


async def all_users(store: ListsUsers, namespace: str | None) -> AsyncGenerator[Scope]:
    """Every user with records; the outbox of an index is not a user."""
    after: Scope | None = None
    while page := await store.users(after=after, limit=_USERS):
        for user in page:
            if user != OUTBOX and namespace in {None, user.namespace}:
                yield user
        after = page[-1]


async def _vectors(source: AdminStore, target: AdminStore) -> tuple[bool, list[str]]:
    """Whether vectors can be copied, and why not."""
    here, there = await source.bound(), await target.bound()
    if here is None:
        return False, []
    if there is None:
        await target.bind(*here)
    elif here != there:
        return False, [REEMBED.format(here=here[0], there=there[0])]
    return True, []


class _Sums:
    """Counts and sums of digests, by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    def add(self, kind: str, *said: Any) -> None:
        """One more of a kind."""
        self._counts[kind] += 1
        text = json.dumps(said, sort_keys=True, ensure_ascii=False)
        self._sums[kind] += int.from_bytes(sha256(text.encode()).digest())

    def tally(self, kind: str) -> Tally:
        """What was added of a kind."""
        digest = f"{self._sums[kind] % _WIDTH:064x}"[-_DIGITS:]
        return Tally(self._counts[kind], digest)

    def kinds(self) -> set[str]:
        """What was added at all."""
        return set(self._counts)


async def compare_user(
    source: AdminStore,
    target: AdminStore,
    user: Scope,
    *,
    with_vectors: bool = True,
    progress: Progress = lambda _: None,
) -> list[Compared]:
    """What each side has of a user, kind by kind."""
    here = await _sums(source, user, with_vectors=with_vectors, progress=progress)
    there = await _sums(target, user, with_vectors=with_vectors)
    differing = await _differing_vectors(source, target, user) if with_vectors else 0
    return _compared(user, here, there, differing=differing)


async def compare_sessions(source: CheckpointStore, target: CheckpointStore, user: Scope) -> list[Compared]:
    """What each side has of a user's sessions: the checkpoints, and the entries of their logs."""
    sides: list[_Sums] = []
    for store in (source, target):
        sides.append(_Sums())
        saved = _Saved(user, await store.list(user))
        for one in saved.checkpoints:
            sides[-1].add("checkpoint", checkpoint_to_dict(one))
        for end, log in (await saved.read_logs(store)).items():
            for place, entry in enumerate(log):
                sides[-1].add("log entry", *end, place, entry_to_dict(entry))
    return _compared(user, *sides)


def _compared(user: Scope, here: _Sums, there: _Sums, *, differing: int = 0) -> list[Compared]:
    kinds = sorted(here.kinds() | there.kinds())
    found = [(kind, here.tally(kind), there.tally(kind), differing if kind == "vector" else 0) for kind in kinds]
    return [Compared(user=user, kind=kind, source=a, target=b, differing=wrong) for kind, a, b, wrong in found]


async def _sums(store: AdminStore, user: Scope, *, with_vectors: bool, progress: Progress = lambda _: None) -> _Sums:
    sums = _Sums()
    async for page in pages(store, user):
        found = await store.search_keys(user, *(record.id for record in page))
        for record in page:
            sums.add(record.kind, record_to_dict(record))
            for kind, text in found[record.id].keys.items() if record.id in found else ():
                sums.add("key", record.id, kind, text)
            if with_vectors and record.id in found and found[record.id].vector is not None:
                sums.add("vector", record.id)  # its numbers are compared, as engines round them
        progress(len(page))
    for job in await store.open_jobs(user):
        due, payload = job.run_at.isoformat(), dict(job.payload)
        sums.add("job", job.id, job.scope.session_id, job.kind, job.key, due, payload, job.attempts)
    return sums


async def _differing_vectors(source: AdminStore, target: AdminStore, user: Scope) -> int:
    differing = 0
    async for page in pages(source, user):
        ids = [record.id for record in page]
        here, there = await source.search_keys(user, *ids), await target.search_keys(user, *ids)
        for id in here.keys() & there.keys():
            one, other = here[id].vector, there[id].vector
            differing += one is not None and other is not None and not is_same(one, other, within=NEAR)
    return differing


# Copying from one URL to another: the memory there, and the sessions beside it.

NO_PLACE = "sessions were not copied: the target has no place for them that lasts"


async def copy_places(
    source: str,
    target: str,
    *,
    namespace: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copied:
    """Copy everything at one URL to another; see copy_store."""
    if source == target:
        raise UsageError("the source and the target are the same URL; give two")
    check_is_there(source)
    async with AsyncExitStack() as stack:
        stores = [store_at(source, Opening(makes=False)), store_at(target, Opening())]
        for store in stores:
            stack.push_async_callback(store.aclose)
        here, place = _sessions(source), sessions_place(target)
        sessions = None
        if here is not None:
            stack.push_async_callback(here.aclose)
            if place is not None:
                sessions = SessionCopies(here, open_checkpoints(place))
                stack.push_async_callback(sessions.target.aclose)
        done = await copy_store(*stores, sessions=sessions, namespace=namespace, progress=progress)
    return replace(done, notes=(*done.notes, NO_PLACE)) if here is not None and place is None else done


def _sessions(source: str) -> CheckpointStore | None:
    """The checkpoints beside a memory; None where there are none."""
    place = sessions_place(source)
    if place is None:
        return None
    backend, _, path = place.partition(":")
    path = path.removeprefix("//")
    if backend == "sqlite" and (path == ":memory:" or not has_checkpoints(path)):
        return None
    return open_checkpoints(place)
