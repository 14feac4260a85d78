"""Making an index say what the truth says, and telling where it does not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorItem
from loom.stores.delegating import Truth
from loom.stores.index_outbox import OUTBOX
from loom.stores.vector_entries import VectorIndex

PAGE = 200
_USERS = 100
_NEAR = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDifference:
    """How an index differs from the truth, in vectors: `missing` from the index, `extra` in it, or `wrong` there.

    `is_repaired` says that the differences were there and are no longer.
    """

    users: int = 0
    vectors: int = 0
    missing: int = 0
    extra: int = 0
    wrong: int = 0
    is_repaired: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether there was no difference."""
        return not (self.missing or self.extra or self.wrong)


async def bring_into_step(truth: Truth, index: VectorIndex, user: Scope, ids: Sequence[str]) -> None:
    """Make the index say of these records what the truth says.

    The truth is read again after the index was written, until both agree. So of two that do this at a time, in any
    processes, the one that writes last has seen the newest truth.
    """
    for start in range(0, len(ids), PAGE):
        page = ids[start : start + PAGE]
        held = await _vectors(truth, user, page)
        while True:
            await index.upsert(user, [VectorItem(id, vector) for id, vector in held.items()])
            gone = [id for id in page if id not in held]
            if gone:
                await index.delete(user, *gone)
            written, held = held, await _vectors(truth, user, page)
            if written.keys() == held.keys() and all(_same(written[id], held[id]) for id in held):
                break


async def put_user_right(truth: Truth, index: VectorIndex, user: Scope) -> None:
    """Make the index say of one user what the truth says, and nothing at all of whom the truth does not know."""
    if not await truth.count(user):
        await index.forget(user)
    # Also after that: he may have come back meanwhile.
    differing = await _differing(truth, index, user)
    await bring_into_step(truth, index, user, [*differing.missing, *differing.wrong, *differing.extra])


async def compare(truth: Truth, index: VectorIndex, *, repair: bool) -> IndexDifference:
    """How the index differs from the truth, over all users of either; in step with it afterwards with `repair`."""
    total = IndexDifference()
    in_truth = set[Scope]()
    async for user in _users(truth):
        in_truth.add(user)
        total = await _add(total, truth, index, user, repair=repair)
    for user in await index.users():
        if user not in in_truth:
            total = await _add(total, truth, index, user, repair=repair)
    return total


class _Differing(NamedTuple):
    """Which vectors of a user differ, and how many the truth has."""

    vectors: int
    missing: list[str]
    extra: list[str]
    wrong: list[str]


async def _differing(truth: Truth, index: VectorIndex, user: Scope) -> _Differing:
    in_index = set(await index.ids(user))
    seen = set[str]()
    missing, wrong = list[str](), list[str]()
    async for held in _all_vectors(truth, user):
        seen |= held.keys()
        missing += [id for id in held if id not in in_index]
        there = await index.vectors(user, *(id for id in held if id in in_index))
        wrong += [id for id, vector in there.items() if not _same(vector, held[id], within=_NEAR)]
    return _Differing(len(seen), missing, sorted(in_index - seen), wrong)


async def _add(
    total: IndexDifference, truth: Truth, index: VectorIndex, user: Scope, *, repair: bool
) -> IndexDifference:
    """The difference with that of one user added."""
    found = await _differing(truth, index, user)
    differs = bool(found.missing or found.extra or found.wrong)
    if repair and differs:
        await put_user_right(truth, index, user)
    return IndexDifference(
        users=total.users + 1,
        vectors=total.vectors + found.vectors,
        missing=total.missing + len(found.missing),
        extra=total.extra + len(found.extra),
        wrong=total.wrong + len(found.wrong),
        is_repaired=total.is_repaired or (repair and differs),
    )


async def _users(truth: Truth) -> AsyncGenerator[Scope]:
    after: Scope | None = None
    while page := await truth.users(after=after, limit=_USERS):
        for user in page:
            if user != OUTBOX:
                yield user
        after = page[-1]


async def _all_vectors(truth: Truth, user: Scope) -> AsyncGenerator[dict[str, Vector]]:
    after: str | None = None
    while page := await truth.list(user, after=after, limit=PAGE):
        yield await _vectors(truth, user, [record.id for record in page])
        after = page[-1].id


async def _vectors(truth: Truth, user: Scope, ids: Sequence[str]) -> dict[str, Vector]:
    found = await truth.found_by(user, *ids)
    return {id: how.vector for id, how in found.items() if how.vector is not None}


def _same(one: Vector, other: Vector, *, within: float = 0.0) -> bool:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return a.shape == b.shape and bool(np.abs(a / np.linalg.norm(a) - b / np.linalg.norm(b)).max() <= within)
