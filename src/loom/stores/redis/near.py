"""Vectors that the server searches: where it has RediSearch, the nearest are found there, and copies hold no vectors.

The truth stays in the hash of the user's vectors. Beside it, each vector is a document of its own that RediSearch
indexes; every change writes or removes both in one step. Documents that are missing, because the server had no
RediSearch when the vectors came, are made before the first search of their user.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from loom.core.filter import Filter, In
from loom.core.scope import Scope
from loom.errors import StoreError, StoreUnavailable
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit
from loom.stores.redis.codec import id_bytes, little_endian, unpack_vector
from loom.stores.redis.link import RedisConnection
from loom.stores.redis.names import StoreNames, UserNames
from loom.stores.redis.retention import Retention
from loom.stores.redis.scripts import NEAR

EXACT = 20_000
"""Up to so many vectors of a user all are compared by the server; beyond, it asks its HNSW graph."""
_PAGE = 500
_LEAST_LOOK = 200
_DIGITS = 6
_EXISTS = "already exists"


def pack_near(vector: Iterable[float]) -> bytes:
    """A vector as RediSearch reads it: 4 bytes for each number."""
    return little_endian(array("f", vector)).tobytes()


class Near:
    """The vectors of users in RediSearch; each is a document named after its user and its record."""

    def __init__(self, link: RedisConnection, names: StoreNames, retention: Retention) -> None:
        self._link, self._names, self._retention = link, names, retention
        self._made = set[int]()

    async def is_used(self) -> bool:
        """Whether the server searches vectors; where episodes end by themselves it does not know of their end."""
        return self._retention.is_unlimited and await self._link.searches()

    async def search(
        self, scope: Scope, vector: Vector, *, limit: int = 10, where: Filter | None = None
    ) -> tuple[VectorHit, ...]:
        """The nearest vectors of a user, nearest first; the only filter is one of ids."""
        user = self._names.user(scope)
        ids = [str(id) for id in where.values] if isinstance(where, In) else await self._nearest(user, vector, limit)
        if not ids:
            return ()
        found: list[bytes | None] = await self._link.call("HMGET", user.vectors, *map(id_bytes, ids))
        # The server compares numbers of 32 bits; what is returned is compared as everywhere else.
        near = _cosines({id: data for id, data in zip(ids, found, strict=True) if data is not None}, vector)
        return tuple(sorted(near, key=lambda hit: (-hit.score, hit.id))[:limit])

    async def drop(self, dimension: int) -> None:
        """Let go of the index for vectors of a size; their documents are gone with them."""
        if await self._link.searches():
            self._made.discard(dimension)
            index = self._index(dimension)
            if index.encode() in await self._link.call("FT._LIST"):
                await self._link.call("FT.DROPINDEX", index)

    def _index(self, dimension: int) -> str:
        return f"{self._names.prefix}:near_index:{dimension}"

    async def _nearest(self, user: UserNames, vector: Vector, limit: int) -> list[str]:
        """The ids of the nearest vectors."""
        index = await self._ready(len(vector))
        try:
            held, indexed = await self._counts(index, user)
        except StoreUnavailable:
            raise
        except StoreError:  # it was dropped, or the server lost it in a crash
            self._made.discard(len(vector))
            held, indexed = await self._counts(await self._ready(len(vector)), user)
        if held != indexed:
            await self._put_right(index, user)
            held, indexed = await self._counts(index, user)
        if held != indexed:
            # The server still reads the documents of a new index, or another process writes at this moment.
            return await self._compared(user, vector, limit)
        how = "HYBRID_POLICY ADHOC_BF" if held <= EXACT else f"EF_RUNTIME {max(2 * limit, _LEAST_LOOK)}"
        query = f"(@u:{{{user.digest}}})=>[KNN $k @v $q {how}]"
        more = ("PARAMS", 4, "k", limit, "q", pack_near(vector), "SORTBY", "__v_score", "LIMIT", 0, limit)
        found: list[Any] = await self._link.call(
            "FT.SEARCH", index, query, "NOCONTENT", *more, "TIMEOUT", self._link.milliseconds, "DIALECT", 2
        )
        return [key.decode().removeprefix(user.near("")) for key in found[1:]]

    async def prepare(self, dimension: int) -> None:
        """Have an index before the first vector comes: one that is made later has to read them all."""
        if await self.is_used():
            await self._ready(dimension)

    async def _compared(self, user: UserNames, vector: Vector, limit: int) -> list[str]:
        """The ids of the nearest vectors, by comparing with each, here."""
        found: dict[bytes, bytes] = await self._link.call("HGETALL", user.vectors)
        held = {id.decode(): data for id, data in found.items()}
        near = sorted(_cosines(held, vector), key=lambda hit: (-hit.score, hit.id))
        return [hit.id for hit in near[:limit]]

    async def _ready(self, dimension: int) -> str:
        """The index for vectors of this size, made where it is not there."""
        index = self._index(dimension)
        if dimension not in self._made:
            how = ("TYPE", "FLOAT32", "DIM", dimension, "DISTANCE_METRIC", "COSINE")
            try:
                await self._link.call(
                    *("FT.CREATE", index, "ON", "HASH", "PREFIX", 1, self._names.near, "SCHEMA"),
                    *("u", "TAG", "CASESENSITIVE", "v", "VECTOR", "HNSW", len(how), *how),
                )
            except StoreError as error:
                if _EXISTS not in str(error).lower():
                    raise
            self._made.add(dimension)
        return index

    async def _counts(self, index: str, user: UserNames) -> tuple[int, int]:
        query = ("FT.SEARCH", index, f"@u:{{{user.digest}}}", "NOCONTENT", "LIMIT", 0, 0, "DIALECT", 2)
        held, (indexed, *_) = await self._link.calls([("HLEN", user.vectors), query])
        return int(held), int(indexed)

    async def _put_right(self, index: str, user: UserNames) -> None:
        """Make each document what the vector of its record is; each page is one step, on what is there then."""
        ids: list[bytes] = await self._link.call("HKEYS", user.vectors)
        query = ("FT.SEARCH", index, f"@u:{{{user.digest}}}", "NOCONTENT", "DIALECT", 2, "LIMIT", 0)
        known: list[Any] = await self._link.call(*query, 1_000_000)
        start = user.near("").encode()
        both = dict.fromkeys([*ids, *(key.removeprefix(start) for key in known[1:])])
        for page in _pages(list(both)):
            found: list[bytes | None] = await self._link.call("HMGET", user.vectors, *page)
            arguments: list[bytes | str] = [user.near(""), user.digest]
            for id, data in zip(page, found, strict=True):
                arguments += [id, data or b"", b"" if data is None else pack_near(unpack_vector(data))]
            await self._link.run(NEAR, (user.vectors,), arguments)


def _cosines(found: dict[str, bytes], vector: Vector) -> list[VectorHit]:
    import numpy as np  # noqa: PLC0415 - only a search by vector pays for it

    if not found:
        return []
    rows = np.stack([np.asarray(unpack_vector(data), np.float64) for data in found.values()])
    query = np.asarray(vector, np.float64)
    likeness = (rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))).round(_DIGITS)
    return [VectorHit(id, score) for id, score in zip(found, likeness.tolist(), strict=True)]


def _pages(ids: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE))
