"""Comparing an index with the truth, and bringing it into step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import numpy as np

from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorItem
from loom.stores.delegating import Truth
from loom.stores.index_difference import IndexDifference, UserDifference, summed
from loom.stores.index_outbox import OUTBOX
from loom.stores.vector_entries import VectorIndex

PAGE = 200
_USERS = 100
NEAR = 1e-5
"""How far numbers of one direction may differ that came through engines which round."""


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
            if written.keys() == held.keys() and all(is_same(written[id], held[id]) for id in held):
                break


async def put_user_right(truth: Truth, index: VectorIndex, user: Scope) -> None:
    """Make the index say of one user what the truth says, and nothing at all of whom the truth does not know."""
    if not await truth.count(user):
        await index.forget(user)
    # Also after that: the user may have come back meanwhile.
    differing = await _differing(truth, index, user)
    await bring_into_step(truth, index, user, [*differing.missing, *differing.wrong, *differing.extra])


async def compare(truth: Truth, index: VectorIndex, *, repair: bool) -> IndexDifference:
    """How the index differs from the truth, over all users of either; in step with it afterwards with `repair`."""
    users = [user async for user in _users(truth)]
    users += sorted(set(await index.users()) - set(users), key=lambda user: (user.namespace, user.user_id))
    found: list[UserDifference] = []
    vectors = 0
    for user in users:
        differing = await _differing(truth, index, user)
        vectors += differing.vectors
        found.append(differing.counted(user))
        if repair and not found[-1].is_equal:
            await put_user_right(truth, index, user)
    return summed(found, users=len(users), vectors=vectors, repair=repair)


class _Differing(NamedTuple):
    """Which vectors of a user differ, and how many the truth has."""

    vectors: int
    missing: list[str]
    extra: list[str]
    wrong: list[str]

    def counted(self, user: Scope) -> UserDifference:
        """How many of them differ."""
        missing, extra, wrong = (len(ids) for ids in (self.missing, self.extra, self.wrong))
        return UserDifference(user=user, what="vectors", missing=missing, extra=extra, wrong=wrong)


async def _differing(truth: Truth, index: VectorIndex, user: Scope) -> _Differing:
    in_index = set(await index.ids(user))
    seen = set[str]()
    missing, wrong = list[str](), list[str]()
    async for held in _all_vectors(truth, user):
        seen |= held.keys()
        missing += [id for id in held if id not in in_index]
        there = await index.vectors(user, *(id for id in held if id in in_index))
        wrong += [id for id, vector in there.items() if not is_same(vector, held[id], within=NEAR)]
    return _Differing(len(seen), missing, sorted(in_index - seen), wrong)


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


def is_same(one: Vector, other: Vector, *, within: float = 0.0) -> bool:
    """Whether two vectors have one direction, number by number."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return a.shape == b.shape and bool(np.abs(a / np.linalg.norm(a) - b / np.linalg.norm(b)).max() <= within)
