"""A memory store with an index beside it: everything in one store, its vectors also in an engine made for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from anyio import CancelScope

from loom.core.clock import Clock, SystemClock
from loom.core.filter import Eq, Filter, In
from loom.core.hit import Hit
from loom.core.record import Receipt, Record
from loom.core.scope import Scope
from loom.errors import StoreError, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import Job, Lease
from loom.protocols.memory_store import Query
from loom.protocols.whole_store import Describes
from loom.stores import index_search
from loom.stores.delegating import DelegatingStore, Keys, Truth
from loom.stores.describing import spoken_embedder
from loom.stores.index_check import bring_into_step, compare, put_user_right
from loom.stores.index_difference import IndexDifference
from loom.stores.index_outbox import OUTBOX, Mark, Outbox
from loom.stores.record_rules import check_record, vector_apart
from loom.stores.vector_entries import VectorIndex, checked_query

_PAGE = 500
# A mark of another process may be of work that goes on; after so long nobody is at work on it.
_ABANDONED = timedelta(minutes=5)
_LOOK_AGAIN = timedelta(seconds=30)


class IndexedStore(DelegatingStore):
    """Keeps everything in `truth`, and the vectors also in `index`, which answers what is near.

    The truth alone decides: what is seen, what fits, what exists. What changes vectors is written down in the truth
    first, so that whatever dies in between is put right when the store is used again. While the index cannot be
    reached, or is known to be behind, the truth answers in its place, as well and more slowly; `failure` says why.
    The index may be lost: it is built again from the truth at the next bind(), or by `verify(repair=True)`.
    """

    def __init__(self, truth: Truth, index: VectorIndex, *, clock: Clock | None = None) -> None:
        if not isinstance(truth, Truth):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(truth).__name__} cannot be the truth: that needs every power, and users()")
        if not isinstance(index, VectorIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{type(index).__name__} cannot be an index: it has to say what it holds, and be cleared")
        super().__init__(truth)
        self._index = index
        self._clock = clock or SystemClock()
        self._outbox = Outbox(truth, self._clock)
        self._bound: tuple[str, int] | None = None
        self._is_behind = True
        self._over = set[str]()  # marks whose change has come to its end, here
        self._looked_at: datetime | None = None
        self.failure: str | None = None
        """Why the index could not be used the last time; None where it could."""

    # -- searching ----------------------------------------------------------------------------------------

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first; the score is the sum of the signals in `why`."""
        if query.vector is None or not await self._can_answer():
            return await self._truth.search(scope, query)
        vector = checked_query(query.vector, self._bound)
        try:
            return await index_search.search(self._truth, self._index, scope, query, vector)
        except StoreError as error:
            self._fell_behind(error)
            return await self._truth.search(scope, query)

    async def search_apart(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        given = vector_apart(query, near)
        if await self._can_answer():
            vector = checked_query(given, self._bound)
            try:
                return await index_search.search_apart(self._truth, self._index, scope, query, vector, near=near)
            except StoreError as error:
                self._fell_behind(error)
        by_vector = await self._truth.search(scope, replace(query, text="", limit=near))
        nearest = {hit.item.id: hit.score for hit in by_vector}
        return tuple(await index_search.search_beside(self._truth, scope, query, nearest))

    async def _can_answer(self) -> bool:
        if self._is_behind:
            await self._catch_up()
        return self._bound is not None and not self._is_behind

    # -- what changes vectors -----------------------------------------------------------------------------

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        async with self._changing(scope, await self._rewritten(scope, records)):
            await self._truth.put(scope, *records)

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        async with self._changing(scope, list(vectors)):
            await self._truth.put_vectors(scope, vectors)

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        async with self._changing(scope, ids):
            return await self._truth.delete(scope, *ids)

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Delete, put, set keys and queue jobs, in this order, all or none; returns how many jobs are new."""
        async with self._changing(scope, [*delete, *await self._rewritten(scope, put)]):
            return await self._truth.write(scope, put=put, delete=delete, keys=keys, jobs=jobs, since=since)

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Keys | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it; a job it queues may have the same key."""
        scope = lease.job.scope
        async with self._changing(scope, [*delete, *await self._rewritten(scope, put)]):
            await self._truth.finish(lease, put=put, delete=delete, keys=keys, jobs=jobs, since=since)

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes and jobs of a session; vectors too."""
        ids = None if scope.session_id is None else await self._episodes(scope)
        async with self._changing(scope, ids):
            receipt = await self._truth.forget(scope)
        return replace(receipt, pending=(*receipt.pending, *await self._in_index()))

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted; returns what is pending, in words."""
        return (*await super().scrub(), *await self._in_index())

    async def _in_index(self) -> tuple[str, ...]:
        """What of removed records is left in the index and its outbox, in words."""
        left = () if self.failure is None else (_STILL_INDEXED.format(why=self.failure),)
        if not left:
            await self._outbox.flush()  # a mark names the user
        return (*left, *((self._index.residue,) if self._index.residue else ()))

    async def _rewritten(self, scope: Scope, records: Sequence[Record]) -> list[str]:
        """Those of these records that are there and say something else: the vector of the old text goes with it."""
        for record in records:
            check_record(scope, record)
        texts = {record.id: record.text for record in records}
        found: list[str] = []
        for start in range(0, len(records), _PAGE):
            ids = tuple(record.id for record in records[start : start + _PAGE])
            held = await self._truth.list(scope.for_user(), where=In("id", ids), limit=len(ids))
            found += [record.id for record in held if record.text != texts[record.id]]
        return found

    @asynccontextmanager
    async def _changing(self, scope: Scope, ids: Sequence[str] | None) -> AsyncGenerator[None]:
        """A change of the truth that may change these vectors, or all of the user's; the index follows."""
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
        """Bring the index into step where a mark points, and let go of the mark if nobody is at work there."""
        if mark.user is None:
            await compare(self._truth, self._index, repair=True)
        elif mark.ids is not None:
            await bring_into_step(self._truth, self._index, mark.user, mark.ids)
        else:
            await put_user_right(self._truth, self._index, mark.user)
        if mark.id in self._over or mark.at + _ABANDONED < self._clock.now():
            self._over.discard(mark.id)
            self._outbox.cross_out(mark)

    async def _episodes(self, scope: Scope) -> list[str]:
        found: list[str] = []
        while page := await self._truth.list(
            scope, where=Eq("kind", "episode"), after=found[-1] if found else None, limit=_PAGE
        ):
            found += [record.id for record in page]
        return found

    # -- whose vectors these are --------------------------------------------------------------------------

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from; the same again is a no-op."""
        await self._truth.bind(identity, dimension)
        await self._take((identity, dimension))

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        is_new = await self._truth.rebind(identity, dimension)
        await self._take((identity, dimension))
        return is_new

    async def _take(self, bound: tuple[str, int]) -> None:
        if self._bound != bound:
            self._bound, self._is_behind, self._looked_at = bound, True, None
        if self._is_behind:
            await self._catch_up()

    async def _is_known(self) -> bool:
        """Whether the embedder is known: as it was said, or else as the truth has it.

        So to forget somebody, or to verify the index, needs no embedder.
        """
        if self._bound is None:
            self._bound = await self._truth.bound()
        return self._bound is not None

    # -- keeping the index in step ------------------------------------------------------------------------

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the index differs from the truth, over all users; with `repair` it does not any longer."""
        if repair and await self._is_known():
            await self._renew_if_foreign()
        return await compare(self._truth, self._index, repair=repair)

    async def lease(
        self,
        *,
        now: datetime,
        until: datetime,
        limit: int = 1,
        scope: Scope | None = None,
        kinds: Sequence[str] | None = None,
    ) -> tuple[Lease, ...]:
        """Take jobs that are due, oldest first; of one user, and of some kinds, only, if these are given.

        Whoever looks for work also looks after the index: others may have left marks.
        """
        await self._catch_up()
        return await self._truth.lease(now=now, until=until, limit=limit, scope=scope, kinds=kinds)

    async def _catch_up(self) -> None:
        """Put right whatever the outbox names; at most every half a minute."""
        now = self._clock.now()
        if self._looked_at is not None and now < self._looked_at + _LOOK_AGAIN:
            return
        self._looked_at = now
        try:
            if await self._is_known():
                await self._renew_if_foreign()
                for mark in await self._outbox.marks():
                    await self._put_right(mark)
                self._is_behind, self.failure = False, None
        except StoreError as error:
            self._fell_behind(error)

    async def _renew_if_foreign(self) -> None:
        """Start the index anew where it is not that of the embedder: it was lost, or is of another."""
        if self._bound is not None and await self._index.bound() != self._bound:
            mark = await self._outbox.write()
            await self._index.clear()
            await self._index.bind(*self._bound)
            self._over.add(mark.id)

    def _fell_behind(self, error: StoreError) -> None:
        self._is_behind, self.failure, self._looked_at = True, str(error), self._clock.now()

    # -- without the outbox, which is nobody's ------------------------------------------------------------

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records of all users without a vector, by namespace, user and id."""
        found: list[tuple[Scope, Record]] = []
        while True:
            page = await self._truth.unembedded(where=where, after=after, limit=limit)
            found += [one for one in page if one[0] != OUTBOX]
            if len(page) < limit or len(found) >= limit:
                return tuple(found[:limit])
            after = (page[-1][0], page[-1][1].id)

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        return await self._truth.count_unembedded(where=where) - await self._truth.count(OUTBOX, where=where)

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        found = await self._truth.users(after=after, limit=limit + 1)
        return tuple(user for user in found if user != OUTBOX)[:limit]

    # -- as a whole ---------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Truth]:
        """The store below, which keeps everything."""
        return {"truth": self._truth}

    async def describe(self) -> dict[str, str]:
        """What the truth says of itself, and how the index stands to it; an index that is down is said so."""
        told = await self._truth.describe() if isinstance(self._truth, Describes) else {}
        return {**told, "index": await self._state()}

    async def _state(self) -> str:
        place = self._index.place
        try:
            bound = await self._index.bound()
            marks = len(await self._outbox.marks())
        except StoreError as error:
            return f"{place}; cannot be used: {error}"
        if bound is None:
            return f"{place}; empty: it is built when the store is opened with its embedder"
        if bound != await self._truth.bound():
            return f"{place}; of another embedder, {spoken_embedder(bound)}: it is built again at the next use"
        return f"{place}; {f'{marks} changes may be missing' if marks else 'in step, by the outbox'}"

    async def aclose(self) -> None:
        """Finish writing and release the truth and the index. Closing twice is allowed."""
        try:
            await self._outbox.flush()
        finally:
            await self._index.aclose()
            await self._truth.aclose()


_STILL_INDEXED = "vectors are still in the index, which could not be reached ({why}); they go when it can be"
