"""A primary memory store with a vector index beside it, kept in step through an outbox."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from anyio import CancelScope

from loom.core.clock import Clock, RecordIds
from loom.core.filter import Eq, Filter
from loom.core.record import Episode, Hit, Provenance, Receipt, Record
from loom.core.scope import Scope
from loom.errors import StoreError, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import IndexDifference, Lease, PrimaryStore, Query, UserDifference, summed
from loom.protocols.vector_store import VectorItem
from loom.stores import _search as index_search
from loom.stores._vector_entries import VectorIndex, checked_query
from loom.stores.base import After, Bound, LeaseRequest, Owned, Write, Written, embedder_label
from loom.wrappers.delegating import DelegatingStore, records_in

# The outbox of an index: a change is noted in the primary store before it is made, and crossed out afterwards.
#
# A mark says which vectors may differ between the primary store and the index. It is written before the change, so that
# whatever dies in between leaves a mark, and nothing but looking there is needed to put the index right. Marks are
# records of a scope of their own; those that are done go with the next mark, so that a change costs one more commit and
# not two.

OUTBOX = Scope(namespace="loom.index", user_id="outbox")
_SUBJECT = "mark"
_INDEX_OUTBOX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Mark:
    """What may differ: these vectors of a user, all of theirs without ids, or those of all users without a user."""

    id: str
    at: datetime
    user: Scope | None = None
    ids: tuple[str, ...] | None = None


class Outbox:
    """The marks of one index, of this process and of others."""

    def __init__(self, primary: PrimaryStore, clock: Clock) -> None:
        self._primary = primary
        self._clock = clock
        self._ids = RecordIds(clock)
        self._done: list[str] = []

    async def write(self, user: Scope | None = None, ids: Sequence[str] | None = None) -> Mark:
        """Write down what is about to change."""
        mark = Mark(self._ids.next_id(), self._clock.now(), user, None if ids is None else tuple(ids))
        done = tuple(self._done)
        await self._primary.write(OUTBOX, put=[_record(mark)], delete=done)
        self._done = [id for id in self._done if id not in done]
        return mark

    def cross_out(self, mark: Mark) -> None:
        """PrimaryStore and index agree on this; the mark goes at the next occasion."""
        self._done.append(mark.id)

    async def flush(self) -> None:
        """Let the marks go that are crossed out."""
        done, self._done = self._done, []
        if done:
            await self._primary.delete(OUTBOX, *done)

    async def marks(self) -> tuple[Mark, ...]:
        """The marks that are not crossed out, the oldest first."""
        found: list[Mark] = []
        after: str | None = None
        while page := await self._primary.list(OUTBOX, after=after, limit=_INDEX_OUTBOX_PAGE):
            found += [_mark(record) for record in page if isinstance(record, Episode)]
            after = page[-1].id
        return tuple(mark for mark in found if mark.id not in self._done)


def _record(mark: Mark) -> Episode:
    user = None if mark.user is None else [mark.user.namespace, mark.user.user_id]
    stored = json.dumps({"user": user, "ids": mark.ids})
    source = Provenance("derived")
    return Episode(
        id=mark.id, text=_SUBJECT, at=mark.at, recorded_at=mark.at, provenance=source, attributes={_SUBJECT: stored}
    )


def _mark(record: Episode) -> Mark:
    stored = json.loads(str(record.attributes[_SUBJECT]))
    user = None if stored["user"] is None else Scope(*stored["user"])
    return Mark(record.id, record.at, user, None if stored["ids"] is None else tuple(stored["ids"]))


# Comparing an index with the primary store, and bringing it into step.

PAGE = 200
_USERS = 100
NEAR = 1e-5
"""How far numbers of one direction may differ that came through engines which round."""


async def bring_into_step(primary: PrimaryStore, index: VectorIndex, user: Scope, ids: Sequence[str]) -> None:
    """Make the index say of these records what the primary store says.

    The primary store is read again after the index was written, until both agree. So of two processes that
    do this at once, the one that writes last has seen the newest records.
    """
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        held = await _vectors(primary, user, page)
        while True:
            await index.upsert(user, [VectorItem(id, vector) for id, vector in held.items()])
            gone = [id for id in page if id not in held]
            if gone:
                await index.delete(user, *gone)
            written, held = held, await _vectors(primary, user, page)
            if written.keys() == held.keys() and all(is_same(written[id], held[id]) for id in held):
                break


async def put_user_right(primary: PrimaryStore, index: VectorIndex, user: Scope) -> None:
    """Make the index agree with the primary store about one user; drop a user that the primary does not know."""
    if not await primary.count(user):
        await index.forget(user)
    # Also after that: the user may have come back meanwhile.
    differing = await _differing(primary, index, user)
    await bring_into_step(primary, index, user, [*differing.missing, *differing.wrong, *differing.extra])


async def compare(primary: PrimaryStore, index: VectorIndex, *, repair: bool) -> IndexDifference:
    """How the index differs from the primary store, over all users of either; `repair` makes them agree."""
    users = [user async for user in _users(primary)]
    users += sorted(set(await index.users()) - set(users), key=lambda user: (user.namespace, user.user_id))
    found: list[UserDifference] = []
    vectors = 0
    for user in users:
        differing = await _differing(primary, index, user)
        vectors += differing.vectors
        found.append(differing.counted(user))
        if repair and not found[-1].is_equal:
            await put_user_right(primary, index, user)
    return summed(found, users=len(users), vectors=vectors, repair=repair)


class _Differing(NamedTuple):
    """Which vectors of a user differ, and how many the primary store has."""

    vectors: int
    missing: list[str]
    extra: list[str]
    wrong: list[str]

    def counted(self, user: Scope) -> UserDifference:
        missing, extra, wrong = (len(ids) for ids in (self.missing, self.extra, self.wrong))
        return UserDifference(user=user, what="vectors", missing=missing, extra=extra, wrong=wrong)


async def _differing(primary: PrimaryStore, index: VectorIndex, user: Scope) -> _Differing:
    in_index = set(await index.ids(user))
    seen = set[str]()
    missing, wrong = list[str](), list[str]()
    async for held in _all_vectors(primary, user):
        seen |= held.keys()
        missing += [id for id in held if id not in in_index]
        there = await index.vectors(user, *(id for id in held if id in in_index))
        wrong += [id for id, vector in there.items() if not is_same(vector, held[id], within=NEAR)]
    return _Differing(len(seen), missing, sorted(in_index - seen), wrong)


async def _users(primary: PrimaryStore) -> AsyncGenerator[Scope]:
    after: Scope | None = None
    while page := await primary.users(after=after, limit=_USERS):
        for user in page:
            if user != OUTBOX:
                yield user
        after = page[-1]


async def _all_vectors(primary: PrimaryStore, user: Scope) -> AsyncGenerator[dict[str, Vector]]:
    after: str | None = None
    while page := await primary.list(user, after=after, limit=PAGE):
        yield await _vectors(primary, user, [record.id for record in page])
        after = page[-1].id


async def _vectors(primary: PrimaryStore, user: Scope, ids: Sequence[str]) -> dict[str, Vector]:
    found = await primary.search_keys(user, *ids)
    return {id: how.vector for id, how in found.items() if how.vector is not None}


def is_same(one: Vector, other: Vector, *, within: float = 0.0) -> bool:
    """Whether two vectors have one direction, number by number."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return a.shape == b.shape and bool(np.abs(a / np.linalg.norm(a) - b / np.linalg.norm(b)).max() <= within)


_PAGE = 500
# A mark of another process may be of work that goes on; after so long that process is taken for dead.
_ABANDONED = timedelta(minutes=5)
_LOOK_AGAIN = timedelta(seconds=30)


class IndexedStore(DelegatingStore):
    """Keeps everything in `primary`, and the vectors also in `index`, which answers what is near.

    The primary store alone decides: what is seen, what fits, what exists. A change of vectors is noted there
    first, so that whatever dies in between is put right when the store is used again. While the index cannot be
    reached, or is known to be behind, the primary answers in its place, as well and more slowly; `failure` says why.
    The index may be lost: it is built again from the primary store at the next bind(), or by `verify(repair=True)`.
    """

    def __init__(self, primary: PrimaryStore, index: VectorIndex, *, clock: Clock | None = None) -> None:
        if not isinstance(primary, PrimaryStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"{type(primary).__name__} cannot be the primary store: that needs every power, and users()"
            )
        if not isinstance(index, VectorIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(index).__name__} cannot be an index: it has to say what it holds, and be cleared")
        super().__init__(primary, clock=clock)
        self._index = index
        self._outbox = Outbox(primary, self._clock)
        self._embedder: Bound | None = None
        self._is_behind = True
        self._is_catching_up = False
        self._over = set[str]()  # marks whose change has come to its end, here
        self._looked_at: datetime | None = None
        self.failure: str | None = None
        """Why the index could not be used the last time; None where it could."""

    # -- searching ----------------------------------------------------------------------------------------

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        if query.vector is not None and await self._can_answer():
            vector = checked_query(query.vector, self._embedder)
            try:
                return await index_search.search(self._primary, self._index, scope, query, vector)
            except StoreError as error:
                self._fell_behind(error)
        return await self._primary.search(scope, query)

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        if query.vector is not None and await self._can_answer():
            vector = checked_query(query.vector, self._embedder)
            try:
                return await index_search.search_hybrid(self._primary, self._index, scope, query, vector, near=near)
            except StoreError as error:
                self._fell_behind(error)
        by_vector = await self._primary.search(scope, replace(query, text="", limit=near))
        nearest = {hit.item.id: hit.score for hit in by_vector}
        return await index_search.search_beside(self._primary, scope, query, nearest)

    async def _can_answer(self) -> bool:
        if self._is_behind:
            await self._catch_up()
        return self._embedder is not None and not self._is_behind

    # -- what changes vectors -----------------------------------------------------------------------------

    async def _write(self, scope: Scope, write: Write) -> Written:
        async with self._changing(scope, [*write.delete, *await self._rewritten(scope, write.put)]):
            return await super()._write(scope, write)

    async def _put_vectors(self, scope: Scope, vectors: dict[str, Vector]) -> None:
        async with self._changing(scope, list(vectors)):
            await super()._put_vectors(scope, vectors)

    async def _forget(self, scope: Scope) -> Receipt:
        ids = None if scope.session_id is None else await self._episodes(scope)
        async with self._changing(scope, ids):
            receipt = await super()._forget(scope)
        return replace(receipt, pending=(*receipt.pending, *await self._in_index()))

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted; returns what is pending, in words."""
        return (*await super().scrub(), *await self._in_index())

    async def _in_index(self) -> tuple[str, ...]:
        """Remains of removed records in the index and its outbox, in words."""
        left = () if self.failure is None else (_STILL_INDEXED.format(why=self.failure),)
        if not left:
            await self._outbox.flush()  # a mark names the user
        return (*left, *((self._index.residue,) if self._index.residue else ()))

    async def _rewritten(self, scope: Scope, records: Sequence[Record]) -> list[str]:
        """The ids of stored records that get another text: the vector of the old text goes with it."""
        texts = {record.id: record.text for record in records}
        held = await records_in(self._primary, scope.for_user(), texts)
        return [id for id, record in held.items() if record.text != texts[id]]

    @asynccontextmanager
    async def _changing(self, scope: Scope, ids: Sequence[str] | None) -> AsyncGenerator[None]:
        """A change of the primary store that may change these vectors, or all of the user's; the index follows."""
        if ids is not None and not ids:
            yield
            return
        mark = await self._outbox.write(scope.for_user(), ids)
        try:
            yield
        finally:
            # Also after an error: the change may have happened all the same.
            with CancelScope(shield=True):
                await self._follow(mark)

    async def _follow(self, mark: Mark) -> None:
        self._over.add(mark.id)
        if self.failure is not None:  # so that not every write waits for an index that does not answer
            await self._catch_up()
            return
        try:
            if await self._is_known():
                await self._put_right(mark)
        except StoreError as error:
            self._fell_behind(error)

    async def _put_right(self, mark: Mark) -> None:
        """Bring the index into step where a mark points, and remove the mark if its change is over."""
        if mark.user is None:
            await compare(self._primary, self._index, repair=True)
        elif mark.ids is not None:
            await bring_into_step(self._primary, self._index, mark.user, mark.ids)
        else:
            await put_user_right(self._primary, self._index, mark.user)
        if mark.id in self._over or mark.at + _ABANDONED < self._clock.now():
            self._over.discard(mark.id)
            self._outbox.cross_out(mark)

    async def _episodes(self, scope: Scope) -> list[str]:
        found: list[str] = []
        while page := await self._primary.list(
            scope, where=Eq("kind", "episode"), after=found[-1] if found else None, limit=_PAGE
        ):
            found += [record.id for record in page]
        return found

    # -- whose vectors these are --------------------------------------------------------------------------

    async def _bind(self, wanted: Bound) -> None:
        await super()._bind(wanted)
        await self._adopt(wanted)

    async def _rebind(self, wanted: Bound) -> bool:
        is_new = await super()._rebind(wanted)
        await self._adopt(wanted)
        return is_new

    async def _adopt(self, bound: Bound) -> None:
        if self._embedder != bound:
            self._embedder, self._is_behind, self._looked_at = bound, True, None
        if self._is_behind:
            await self._catch_up()

    async def _is_known(self) -> bool:
        """Whether the embedder is known: as it was said, or else as the primary store has it.

        So forgetting a user and verifying the index need no embedder.
        """
        if self._embedder is None:
            self._embedder = await self._primary.bound()
        return self._embedder is not None

    # -- keeping the index in step ------------------------------------------------------------------------

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the index differs from the primary store, over all users; with `repair` it does not any longer."""
        if repair and await self._is_known():
            await self._renew_if_foreign()
        return await compare(self._primary, self._index, repair=repair)

    async def _lease(self, asked: LeaseRequest) -> Iterable[Lease]:
        await self._catch_up()  # a worker also looks after the index: other processes may have left marks
        return await super()._lease(asked)

    async def _catch_up(self) -> None:
        """Put right whatever the outbox names; at most every half a minute, and once at a time.

        Of two at once, one could say that the index is in step while the other has found that it is not.
        """
        now = self._clock.now()
        if self._is_catching_up or (self._looked_at is not None and now < self._looked_at + _LOOK_AGAIN):
            return
        self._looked_at, self._is_catching_up = now, True
        try:
            if await self._is_known():
                await self._renew_if_foreign()
                await self._put_all_right()
                self.failure = None  # from here on every change follows by itself
                await self._put_all_right()  # what came meanwhile, and did not wait
                self._is_behind = bool(self.failure)
        except StoreError as error:
            self._fell_behind(error)
        finally:
            self._is_catching_up = False

    async def _put_all_right(self) -> None:
        for mark in await self._outbox.marks():
            await self._put_right(mark)

    async def _renew_if_foreign(self) -> None:
        """Start the index anew where it is not that of the embedder: it was lost, or is of another."""
        if self._embedder is not None and await self._index.bound() != self._embedder:
            mark = await self._outbox.write()
            await self._index.clear()
            await self._index.bind(*self._embedder)
            self._over.add(mark.id)

    def _fell_behind(self, error: StoreError) -> None:
        self._is_behind, self.failure, self._looked_at = True, str(error), self._clock.now()

    # -- without the outbox, which belongs to no user -----------------------------------------------------

    async def _unembedded(self, where: Filter | None, after: After, limit: int | None) -> Collection[Owned]:
        found: list[Owned] = []
        while True:
            page = list(await super()._unembedded(where, after, limit))
            found += [one for one in page if one[0] != OUTBOX]
            if limit is None or len(page) < limit or len(found) >= limit:
                return found[:limit]
            after = (page[-1][0], page[-1][1].id)

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await super()._count_unembedded(where) - await self._primary.count(OUTBOX, where=where)

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return [user for user in await super()._users(after, limit + 1) if user != OUTBOX][:limit]

    # -- as a whole ---------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, PrimaryStore]:
        """The store below, which keeps everything."""
        return {"primary": self._primary}

    async def _describe(self) -> dict[str, str]:
        return {**await super()._describe(), "index": await self._state()}

    async def _state(self) -> str:
        place = self._index.place
        try:
            bound = await self._index.bound()
            marks = len(await self._outbox.marks())
        except StoreError as error:
            return f"{place}; cannot be used: {error}"
        if bound is None:
            return f"{place}; empty: it is built when the store is opened with its embedder"
        if bound != await self._primary.bound():
            return f"{place}; of another embedder, {embedder_label(bound)}: it is built again at the next use"
        return f"{place}; {f'{marks} changes may be missing' if marks else 'in step, by the outbox'}"

    async def _close(self) -> None:
        try:
            await self._outbox.flush()
        finally:
            await self._index.aclose()
            await super()._close()


_STILL_INDEXED = "vectors are still in the index, which could not be reached ({why}); they go when it can be"
