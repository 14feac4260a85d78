"""A memory store with an index beside it: everything in one store, its vectors also in an engine made for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from anyio import CancelScope

from loom.core.clock import Clock
from loom.core.filter import Eq, Filter, In
from loom.core.hit import Hit
from loom.core.record import Receipt, Record
from loom.core.scope import Scope
from loom.errors import StoreError, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.jobs import Lease
from loom.protocols.memory_store import Query
from loom.stores import index_search
from loom.stores.base import Bound, Write, Written, embedder_label
from loom.stores.delegating import DelegatingStore, Truth
from loom.stores.index_check import bring_into_step, compare, put_user_right
from loom.stores.index_difference import IndexDifference
from loom.stores.index_outbox import OUTBOX, Mark, Outbox
from loom.stores.vector_entries import VectorIndex, checked_query

_PAGE = 500
# A mark of another process may be of work that goes on; after so long that process is taken for dead.
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
        super().__init__(truth, clock=clock)
        self._index = index
        self._outbox = Outbox(truth, self._clock)
        self._embedder: Bound | None = None
        self._is_behind = True
        self._over = set[str]()  # marks whose change has come to its end, here
        self._looked_at: datetime | None = None
        self.failure: str | None = None
        """Why the index could not be used the last time; None where it could."""

    # -- searching ----------------------------------------------------------------------------------------

    async def _search(self, scope: Scope, query: Query) -> Iterable[Hit]:
        if query.vector is not None and await self._can_answer():
            vector = checked_query(query.vector, self._embedder)
            try:
                return await index_search.search(self._truth, self._index, scope, query, vector)
            except StoreError as error:
                self._fell_behind(error)
        return await self._truth.search(scope, query)

    async def _search_apart(self, scope: Scope, query: Query, near: int) -> Iterable[Hit]:
        if query.vector is not None and await self._can_answer():
            vector = checked_query(query.vector, self._embedder)
            try:
                return await index_search.search_apart(self._truth, self._index, scope, query, vector, near=near)
            except StoreError as error:
                self._fell_behind(error)
        by_vector = await self._truth.search(scope, replace(query, text="", limit=near))
        nearest = {hit.item.id: hit.score for hit in by_vector}
        return await index_search.search_beside(self._truth, scope, query, nearest)

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
        """Bring the index into step where a mark points, and remove the mark if its change is over."""
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
        """Whether the embedder is known: as it was said, or else as the truth has it.

        So forgetting a user and verifying the index need no embedder.
        """
        if self._embedder is None:
            self._embedder = await self._truth.bound()
        return self._embedder is not None

    # -- keeping the index in step ------------------------------------------------------------------------

    async def verify(self, *, repair: bool = False) -> IndexDifference:
        """How the index differs from the truth, over all users; with `repair` it does not any longer."""
        if repair and await self._is_known():
            await self._renew_if_foreign()
        return await compare(self._truth, self._index, repair=repair)

    async def _lease(
        self, now: datetime, until: datetime, limit: int, scope: Scope | None, kinds: Sequence[str] | None
    ) -> Iterable[Lease]:
        await self._catch_up()  # a worker also looks after the index: other processes may have left marks
        return await super()._lease(now, until, limit, scope, kinds)

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
        if self._embedder is not None and await self._index.bound() != self._embedder:
            mark = await self._outbox.write()
            await self._index.clear()
            await self._index.bind(*self._embedder)
            self._over.add(mark.id)

    def _fell_behind(self, error: StoreError) -> None:
        self._is_behind, self.failure, self._looked_at = True, str(error), self._clock.now()

    # -- without the outbox, which belongs to no user -----------------------------------------------------

    async def _unembedded(
        self, where: Filter | None, after: tuple[Scope, str] | None, limit: int | None
    ) -> Collection[tuple[Scope, Record]]:
        found: list[tuple[Scope, Record]] = []
        while True:
            page = list(await super()._unembedded(where, after, limit))
            found += [one for one in page if one[0] != OUTBOX]
            if limit is None or len(page) < limit or len(found) >= limit:
                return found[:limit]
            after = (page[-1][0], page[-1][1].id)

    async def _count_unembedded(self, where: Filter | None) -> int:
        return await super()._count_unembedded(where) - await self._truth.count(OUTBOX, where=where)

    async def _users(self, after: Scope | None, limit: int) -> Iterable[Scope]:
        return [user for user in await super()._users(after, limit + 1) if user != OUTBOX][:limit]

    # -- as a whole ---------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Truth]:
        """The store below, which keeps everything."""
        return {"truth": self._truth}

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
        if bound != await self._truth.bound():
            return f"{place}; of another embedder, {embedder_label(bound)}: it is built again at the next use"
        return f"{place}; {f'{marks} changes may be missing' if marks else 'in step, by the outbox'}"

    async def _close(self) -> None:
        try:
            await self._outbox.flush()
        finally:
            await self._index.aclose()
            await super()._close()


_STILL_INDEXED = "vectors are still in the index, which could not be reached ({why}); they go when it can be"
