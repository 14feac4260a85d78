"""Copying all users from one store to another, and checking that everything arrived.

Both sides are counted afterwards, kind by kind, with a digest that depends on what is there and not on its order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from loom.core.codec import record_to_dict
from loom.core.message_codec import checkpoint_to_dict, entry_to_dict
from loom.core.scope import Scope
from loom.engine.copy_sessions import copy_sessions, read_sessions
from loom.engine.copy_user import Progress, copy_user, pages
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.jobs import Job
from loom.protocols.whole_store import ListsUsers, WholeStore
from loom.stores.index_check import NEAR, is_same
from loom.stores.index_outbox import OUTBOX

_USERS = 100
_DIGITS = 16
_WIDTH = 2**256
REEMBED = (
    "vectors were not copied: the target holds those of {there}, the source those of {here}; "
    "run `loom memory reembed` on the target"
)
OF_KNOWN = "sessions are copied of users of whom the memory knows something; this store cannot say who else has any"
DEAD = "{count} jobs that were given up stay behind; only open jobs are copied"


class Sessions(NamedTuple):
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
    source: WholeStore,
    target: WholeStore,
    *,
    sessions: Sessions | None = None,
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


async def _vectors(source: WholeStore, target: WholeStore) -> tuple[bool, list[str]]:
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
    source: WholeStore,
    target: WholeStore,
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
        checkpoints, logs = await read_sessions(store, user)
        for one in checkpoints:
            sides[-1].add("checkpoint", checkpoint_to_dict(one))
        for end, log in logs.items():
            for place, entry in enumerate(log):
                sides[-1].add("log entry", *end, place, entry_to_dict(entry))
    return _compared(user, *sides)


def _compared(user: Scope, here: _Sums, there: _Sums, *, differing: int = 0) -> list[Compared]:
    kinds = sorted(here.kinds() | there.kinds())
    found = [(kind, here.tally(kind), there.tally(kind), differing if kind == "vector" else 0) for kind in kinds]
    return [Compared(user=user, kind=kind, source=a, target=b, differing=wrong) for kind, a, b, wrong in found]


async def _sums(store: WholeStore, user: Scope, *, with_vectors: bool, progress: Progress = lambda _: None) -> _Sums:
    sums = _Sums()
    async for page in pages(store, user):
        found = await store.found_by(user, *(record.id for record in page))
        for record in page:
            sums.add(record.kind, record_to_dict(record))
            for kind, text in found[record.id].keys.items() if record.id in found else ():
                sums.add("key", record.id, kind, text)
            if with_vectors and record.id in found and found[record.id].vector is not None:
                sums.add("vector", record.id)  # its numbers are compared, as engines round them
        progress(len(page))
    for job in await store.open_jobs(user):
        sums.add("job", *_said(job))
    return sums


async def _differing_vectors(source: WholeStore, target: WholeStore, user: Scope) -> int:
    differing = 0
    async for page in pages(source, user):
        ids = [record.id for record in page]
        here, there = await source.found_by(user, *ids), await target.found_by(user, *ids)
        for id in here.keys() & there.keys():
            one, other = here[id].vector, there[id].vector
            differing += one is not None and other is not None and not is_same(one, other, within=NEAR)
    return differing


def _said(job: Job) -> tuple[Any, ...]:
    return (job.id, job.scope.session_id, job.kind, job.key, job.run_at.isoformat(), dict(job.payload), job.attempts)
