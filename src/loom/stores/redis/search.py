"""Search on Redis: a local copy of one user's records, and RediSearch vectors.

Redis holds the records. A copy asks before every use what has changed since, in one call, and takes just that; so it
answers as the server would at that moment, and a user who is asked about often costs one small question.

A new copy of a large user starts from a snapshot, if there is one: arrays of words and vectors as an earlier copy had
them, and records that are read when they are asked for. A process that had to read much row by row leaves one.
"""

from __future__ import annotations

import json
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import anyio.to_thread
from anyio import Lock

from loom.core.filter import Filter, In
from loom.core.record import Record
from loom.core.scope import Scope
from loom.errors import StoreError, StoreUnavailable
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import VectorHit
from loom.stores._record_table import Numbering, RecordChange, UserRecords, VectorTable, WordIndex
from loom.stores.base import Bound, DamagedData, check_bound, damage_at, reading, unreadable
from loom.stores.redis.connection import RedisConnection
from loom.stores.redis.schema import (
    NEAR,
    PAGE,
    SNAPSHOT,
    Binding,
    Retention,
    StoreNames,
    UserNames,
    id_bytes,
    little_endian,
    unpack_keys,
    unpack_record,
    unpack_vector,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loom.stores._record_table import Counts

_T = TypeVar("_T")
_Row: TypeAlias = tuple[bytes, bytes, bytes | None, bytes | None]
_ROWS = 1000
# Below this many records work takes about a millisecond, less than it costs to hand it to a thread.
_INLINE = 200
_USUAL = 100
_NOTHING = (b"", None)

# Snapshots: all that a search reads of one user, as one piece of bytes.

_SNAPSHOT_FORMAT = 1
_LEAST_ROWS = 500
"""Rows that a copy has to have read one by one, and a quarter of all, for a snapshot to be worth its bytes."""
_PART = 1 << 24
"""How many bytes of a snapshot are sent at once."""
_ARCHIVED = 255
"""The place of records that are listed nowhere."""
_COUNT = "<u4"
_BOUND = "<u8"


class SnapshotHead(NamedTuple):
    """What a snapshot is of: a change of a user, as of a removal and a replaced text, with the embedder's vectors."""

    format: int
    by: str
    version: str
    deleted: str
    replaced: str
    bound: str | None
    has_vectors: int
    parts: int

    def packed(self) -> bytes:
        """As bytes."""
        return json.dumps(self).encode()

    @staticmethod
    def unpacked(data: bytes | None) -> SnapshotHead | None:
        """The head of packed(); None where there is none, or one that another version of Loom wrote."""
        try:
            head = SnapshotHead(*json.loads(data or b"[]"))
        except (TypeError, ValueError):
            return None
        return head if head.format == _SNAPSHOT_FORMAT else None

    def is_of(self, bound: bytes | None, deleted: bytes | None, replaced: bytes | None) -> bool:
        """Whether nothing was removed since, and no text replaced."""
        same = (self.deleted, self.replaced) == ((deleted or b"0").decode(), (replaced or b"0").decode())
        return same and self.bound == (None if bound is None else bound.decode())


class _Unread(MutableMapping[str, _T]):
    """Values by id, as they were stored until they are asked for, or others take their place: that leaves nothing."""

    __slots__ = ("_bounds", "_data", "_held", "_places", "_read")

    def __init__(
        self, ids: Iterable[str], bounds: Sequence[int], data: memoryview, read: Callable[[str, bytes], _T]
    ) -> None:
        self._bounds, self._data, self._read = bounds, memoryview(bytearray(data)), read
        self._places = {id: place for place, id in enumerate(ids) if id}
        self._held: dict[str, _T | None] = dict.fromkeys(self._places)

    def __getitem__(self, id: str) -> _T:
        value = self._held[id]
        if value is None:
            value = self._held[id] = self._read(id, self.stored(id) or b"")
        return value

    def __setitem__(self, id: str, value: _T) -> None:
        self._held[id] = value
        self.wipe(id)

    def __delitem__(self, id: str) -> None:
        del self._held[id]
        self.wipe(id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def stored(self, id: str) -> bytes | None:
        """What the snapshot has under an id."""
        place = self._places.get(id)
        return None if place is None else bytes(self._part(place))

    def wipe(self, id: str) -> None:
        """Leave nothing of what the snapshot has under an id; its value is another by now."""
        place = self._places.pop(id, None)
        if place is not None:
            part = self._part(place)
            part[:] = bytes(len(part))

    def _part(self, place: int) -> memoryview:
        return self._data[self._bounds[place] : self._bounds[place + 1]]


class _StoredWords(WordIndex):
    """An index whose first texts are those of a snapshot, as arrays; texts that follow are counted on top."""

    __slots__ = ("_bounds", "_first", "_has_removed", "_is_held", "_left", "_of_word", "_times")

    def __init__(self, words: Sequence[str], arrays: Sequence[NDArray[Any]]) -> None:
        super().__init__()
        self._of_word = {word: place for place, word in enumerate(words)}
        bounds, self._first, self._times, lengths = arrays
        self._bounds: list[int] = bounds.tolist()
        self._lengths.frombytes(lengths.astype("=u4").tobytes())
        self._total = int(lengths.sum())
        self._is_held = lengths > 0
        self._left = int(self._is_held.sum())
        self._has_removed = False

    def __len__(self) -> int:
        return super().__len__() + self._left

    @property
    def words(self) -> Collection[str]:
        return self._of_word.keys() | self._postings.keys()

    def remove(self, number: int) -> None:
        if number < len(self._is_held) and self._is_held[number]:
            self._is_held[number] = False
            self._has_removed = True
            self._left -= 1
            self._total -= self._lengths[number]
            self._lengths[number] = 0
        else:
            super().remove(number)

    def wipe(self) -> None:
        """Leave nothing of texts that were removed: neither which words they had, nor words that no other has."""
        import numpy as np  # noqa: PLC0415

        if not self._has_removed:
            return
        is_held = self._is_held[self._first]
        self._first, self._times = self._first[is_held], self._times[is_held]
        self._bounds = np.concatenate([[0], np.cumsum(is_held)])[self._bounds].tolist()
        places = self._of_word.items()
        self._of_word = {word: place for word, place in places if self._bounds[place] < self._bounds[place + 1]}
        self._has_removed = False

    def postings(self, word: str) -> tuple[Counts, Counts] | None:
        import numpy as np  # noqa: PLC0415 - only a search pays for it

        place, later = self._of_word.get(word), super().postings(word)
        if place is None:
            return later
        part = slice(*self._bounds[place : place + 2])
        is_held = self._is_held[self._first[part]]
        both = [(self._first[part][is_held], self._times[part][is_held]), *([] if later is None else [later])]
        numbers, times = (np.concatenate(parts).astype(np.uintc, copy=False) for parts in zip(*both, strict=True))
        return (numbers, times) if len(numbers) else None


def _pack_snapshot(records: UserRecords, rows: dict[str, tuple[bytes, bytes]]) -> bytes:
    """What a copy holds; `rows` are the records and keys that it read one by one, as they are stored."""
    import numpy as np  # noqa: PLC0415

    ids = records.numbering.ids
    place_of = {id: place for place, named in records.places.items() for id in named}
    places = bytes(place_of.get(id, _ARCHIVED) for id in ids)
    sections = ["\0".join(ids).encode(), places]
    for column, held in enumerate((records.records, records.keys)):
        values = [rows[id][column] if id in rows else _stored(held, id) for id in ids]
        bounds = np.asarray([0, *accumulate(map(len, values))], _BOUND)
        sections += [bounds.tobytes(), b"".join(values)]
    vectors = records.vectors.rows()
    if vectors is not None:
        sections += [vectors[1].astype(np.uint8).tobytes(), vectors[0].astype("<f4").tobytes()]
    for index in records.indexes.values():
        held = [(word, found) for word in index.words if (found := index.postings(word)) is not None]
        bounds = np.asarray([0, *accumulate(len(numbers) for _, (numbers, _) in held)], _COUNT)
        columns = [np.concatenate([np.zeros(0, _COUNT), *(found[column] for _, found in held)]) for column in (0, 1)]
        lengths = np.frombuffer(index.lengths, np.uintc)
        arrays = [part.astype(_COUNT).tobytes() for part in (bounds, *columns, lengths)]
        sections += ["\n".join(word for word, _ in held).encode(), *arrays]
    head = [vectors is not None, list(records.indexes), [*map(len, sections)]]
    packed = json.dumps(head).encode()
    return b"".join([len(packed).to_bytes(8, "little"), packed, *sections])


def _stored(held: MutableMapping[str, Any], id: str) -> bytes:
    return (held.stored(id) if isinstance(held, _Unread) else None) or b""


def _unpack_snapshot(data: bytes) -> UserRecords:
    """The copy of _pack_snapshot(); its records and keys are read when they are asked for."""
    import numpy as np  # noqa: PLC0415

    start = 8 + int.from_bytes(data[:8], "little")
    has_vectors, kinds, sizes = json.loads(data[8:start])
    cut, view = [*pairwise(accumulate(sizes, initial=start))][::-1], memoryview(data)

    def section() -> memoryview:
        return view[slice(*cut.pop())]

    def numbers(kind: str) -> NDArray[Any]:
        return np.frombuffer(section(), kind)

    ids, places = str(section(), "utf-8").split("\0"), section()
    records = UserRecords()
    records.numbering = Numbering(ids)
    records.records = _Unread(ids, numbers(_BOUND).tolist(), section(), _read_record)
    records.keys = _Unread(ids, numbers(_BOUND).tolist(), section(), lambda _, keys: unpack_keys(keys or None))
    for id, place in zip(ids, places, strict=True):
        if id and place != _ARCHIVED:
            records.places.setdefault(place, {})[id] = None
    has = numbers("u1").astype(np.bool_) if has_vectors else None
    matrix = numbers("<f4").reshape(len(ids), -1).astype(np.float32) if has_vectors else None
    records.vectors = VectorTable(records.numbering, matrix, has)
    for kind in kinds:
        words = str(section(), "utf-8")
        found = [numbers(_COUNT).copy() for _ in range(4)]  # a view of them would hold all of the snapshot
        records.indexes[kind] = _StoredWords(words.split("\n") if words else (), found)
    return records


def _read_record(id: str, data: bytes) -> Record:
    try:
        return unpack_record(data)
    except DamagedData as error:
        raise unreadable(f"record {id!r}", error) from error


# The copies.


@dataclass(slots=True)
class LocalCopy:
    """The copy of one user, as of a change and a removal; `life` is the server's run and whose vectors it keeps.

    `failure` is why it could not be brought up to date; such a copy is used no more.
    """

    lock: Lock = field(default_factory=Lock)
    records: UserRecords = field(default_factory=UserRecords)
    life: tuple[bytes, bytes | None] = _NOTHING
    version: bytes = b"0"
    deleted: bytes = b"0"
    counted: int = 0
    epoch: str = ""
    failure: StoreUnavailable | None = None
    rows: dict[str, tuple[bytes, bytes]] | None = field(default_factory=dict[str, tuple[bytes, bytes]])
    """Records and keys as they are stored, while all of them are read for the first time."""

    @property
    def binding(self) -> Binding | None:
        """The embedder of the vectors."""
        return Binding.unpacked(self.life[1])

    def start_again(self, life: tuple[bytes, bytes | None]) -> None:
        """Hold nothing."""
        self.hold(UserRecords(), life, b"0", b"0")
        self.rows = {}

    def hold(self, records: UserRecords, life: tuple[bytes, bytes | None], version: bytes, deleted: bytes) -> None:
        """Hold these records, as of a change and a removal."""
        self.records, self.life, self.version, self.deleted = records, life, version, deleted
        bound = self.binding
        self.records.dimension = None if bound is None else bound.dimension

    def take(self, rows: list[_Row], left: list[bytes] | None) -> None:
        """Take what has changed; `left` are the ids of all records, where some were removed."""
        changed: dict[str, Record] = {}
        gone = frozenset[str]() if left is None else self.records.records.keys() - {id.decode() for id in left}
        texts: dict[str, dict[str, str]] = {}
        for id, record, keys, _ in rows:
            name = id.decode()
            changed[name] = _read_record(name, record)
            if self.rows is not None:
                self.rows[name] = (record, keys or b"")
            held = self.records.keys.get(name, {})
            found = dict.fromkeys(held, "") | unpack_keys(keys)
            # An access changes a record and no key of it: what is as it was is not indexed again.
            if found != held:
                texts[name] = {kind: text for kind, text in found.items() if held.get(kind) != text}
        self.records.apply(RecordChange(changed, texts, frozenset(gone)))
        self._wipe(texts)
        for id, _, _, vector in rows:
            if vector is None:
                self.records.vectors.discard(id.decode())
        vectors = {id.decode(): unpack_vector(data) for id, _, _, data in rows if data is not None}
        with reading("the vectors of a user"):
            self.records.vectors.set(vectors)

    def _wipe(self, rekeyed: Iterable[str]) -> None:
        """Leave nothing of what the snapshot had in place of what it is now; some records have other keys."""
        if isinstance(self.records.keys, _Unread):
            for id in rekeyed:
                self.records.keys.wipe(id)
        for index in self.records.indexes.values():
            if isinstance(index, _StoredWords):
                index.wipe()

    def drop(self, ids: Iterable[str]) -> None:
        """Remove expired records; the server removes them in its own time."""
        self.records.apply(RecordChange({}, deleted=frozenset(ids)))


class Unbound(StoreError):
    """The server is bound to no embedder, and this process bound it to one: it lost what it had."""


class LocalCopies:
    """The copies of the users that were asked about last, up to so many records together."""

    def __init__(self, link: RedisConnection, names: StoreNames, retention: Retention, *, max_records: int) -> None:
        self._link, self._names, self._retention, self._max = link, names, retention, max_records
        self._held: OrderedDict[str, LocalCopy] = OrderedDict()
        self._total = 0

    async def ask(
        self, scope: Scope, question: Callable[[UserRecords], _T], *, expected: Bound | None = None
    ) -> tuple[str, _T]:
        """The user's epoch, and the question's answer about their records as they are now.

        Refuses another embedder than the expected one, if there is one, and none.
        """
        digest = self._names.user(scope).digest
        copy = self._held.setdefault(digest, LocalCopy())
        self._held.move_to_end(digest)
        async with copy.lock:
            if copy.failure is not None:
                # Found out while this call waited for the copy: to try again would take it past its own time.
                raise StoreUnavailable(str(copy.failure)) from copy.failure
            try:
                with self._damage():
                    await self._catch_up(copy, scope)
            except BaseException as error:
                # Half a step must not be taken for a whole one.
                self._drop(digest, copy)
                copy.failure = error if isinstance(error, StoreUnavailable) else None
                raise
            copy.drop(self._retention.over(copy.records.records.values()))
            self._settle(digest, copy)
            if expected is not None:
                if copy.binding is None:
                    raise Unbound(f"the Redis store at {self._link.address} lost what it held, and its embedder")
                check_bound(copy.binding.bound, expected)
            epoch = copy.epoch
            with self._damage():
                return epoch, await _run(len(copy.records.records), lambda: question(copy.records))

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()
        self._total = 0

    def _damage(self) -> AbstractContextManager[None]:
        return damage_at(f"the Redis store at {self._link.address}")

    async def _catch_up(self, copy: LocalCopy, scope: Scope) -> None:
        names, bucket = self._names.user(scope), self._names.bucket(scope)
        of_user = (names.meta, names.changed, names.records, names.keys, names.vectors)
        keys = (bucket.embedder, *of_user, bucket.forgotten)
        more: bytes | None = b""
        # Where the server searches vectors they are not needed here.
        with_vectors = int(not (self._retention.is_unlimited and await self._link.searches()))
        head = await self._load(copy, names, with_vectors)
        while more is not None:
            since = (copy.version, copy.deleted, _ROWS, with_vectors)
            page: list[Any] = await self._link.run(PAGE, keys, since)
            run, bound, version, deleted, rows, more, left, replaced, forgotten = page
            if any(record is None for _, record, *_ in rows):
                raise StoreError(
                    f"the Redis store at {self._link.address} lost records of {scope.user_id!r}: a full server drops "
                    "keys unless its maxmemory-policy is noeviction, or somebody deleted them; restore them from a "
                    "copy, or forget() the user"
                )
            copy.epoch = epoch_of(deleted, replaced, forgotten)
            if head is not None:
                is_good, head = head.is_of(bound, deleted, replaced), None
                if not is_good:
                    copy.start_again((run, bound))
                    more = b""
                    continue
                copy.life = (run, bound)
            if (run, bound) != copy.life or _is_behind(version, copy.version):
                # Another life of the server may have lost what this copy holds, and numbered something else like it.
                empty = copy.version == b"0" and not copy.records.records
                copy.start_again((run, bound))
                if not empty:
                    more = b""
                    continue
            weight = max(_weight(rows), len(left or ()))
            await _run(weight, lambda rows=rows, left=left: copy.take(rows, left))
            copy.version = more or version or b"0"
            if more is None:
                copy.deleted = deleted or b"0"
                await self._leave(copy, names, bucket.embedder, with_vectors, (replaced or b"0").decode())

    async def _load(self, copy: LocalCopy, names: UserNames, with_vectors: int) -> SnapshotHead | None:
        """Start a new copy from the snapshot of its user; the head of that, None where it was of no use."""
        if copy.version != b"0" or copy.rows or not self._retention.is_unlimited:
            return None
        packed, *parts = await self._link.call("HMGET", names.snapshot, "head", 0)
        head = SnapshotHead.unpacked(packed)
        if head is None or head.has_vectors != with_vectors:
            return None
        for number in range(1, head.parts):
            same, part = await self._link.call("HMGET", names.snapshot, "head", number)
            if same != packed:
                return None
            parts.append(part)
        try:
            records = await _run(len(parts[0]) // _USUAL, lambda: _unpack_snapshot(b"".join(parts)))
        except (ValueError, IndexError, TypeError):
            return None  # damaged: all that it was made from is there
        bound = None if head.bound is None else head.bound.encode()
        copy.hold(records, (b"", bound), head.version.encode(), head.deleted.encode())
        return head

    async def _leave(self, copy: LocalCopy, names: UserNames, embedder: str, with_vectors: int, replaced: str) -> None:
        """Leave a snapshot for others, where much had to be read row by row."""
        rows, copy.rows = copy.rows, None
        size, (run, bound), by = len(copy.records.records), copy.life, secrets.token_hex(8)
        if not rows or len(rows) < max(_LEAST_ROWS, size / 4) or not self._retention.is_unlimited:
            return
        data = await _run(size, lambda: _pack_snapshot(copy.records, rows))
        of = (by, copy.version.decode(), copy.deleted.decode(), replaced, None if bound is None else bound.decode())
        parts = range(0, len(data), _PART)
        head = SnapshotHead(_SNAPSHOT_FORMAT, *of, with_vectors, len(parts)).packed()
        known = (run, b"-" if bound is None else b"=" + bound, copy.version, by)
        # Without it the next copy is slower, and as good: a server that refuses it loses nothing.
        with suppress(StoreError):
            for number, start in enumerate(parts):
                last = head if number == len(parts) - 1 else b""
                more = (number, data[start : start + _PART], last)
                if not await self._link.run(SNAPSHOT, (names.snapshot, names.meta, embedder), (*known, *more)):
                    return

    def _settle(self, digest: str, copy: LocalCopy) -> None:
        """Count what the copy holds, and let go of those that were not asked about for longest."""
        if self._held.get(digest) is not copy:
            return
        size = len(copy.records.records)
        self._total += size - copy.counted
        copy.counted = size
        if not size:
            self._drop(digest, copy)
        while self._total > self._max and len(self._held) > 1:
            self._drop(*next(iter(self._held.items())))

    def _drop(self, digest: str, copy: LocalCopy) -> None:
        if self._held.get(digest) is copy:
            del self._held[digest]
            self._total -= copy.counted


def epoch_of(deleted: bytes | None, replaced: bytes | None, forgotten: bytes | None) -> str:
    """A token that changes whenever text of a user is removed; of an unknown one, when any user is forgotten."""
    if deleted is not None:
        return f"{deleted.decode()}.{(replaced or b'0').decode()}"
    # A user who came and went while another call prepared a write is not the user who was never there.
    return f"-{(forgotten or b'0').decode()}"


def _is_behind(version: bytes | None, held: bytes) -> bool:
    return int(version or 0) < int(held)


def _weight(rows: list[_Row]) -> int:
    """How much work rows are, in records of the usual length."""
    return max(len(rows), sum(len(record) + len(keys or b"") for _, record, keys, _ in rows) // _USUAL)


async def _run(size: int, work: Callable[[], _T]) -> _T:
    """Do it here if it is little, otherwise in a thread, so that the event loop goes on."""
    return work() if size < _INLINE else await anyio.to_thread.run_sync(work)


# Vectors that the server searches: where it has RediSearch, the nearest are found there, and copies hold no vectors.
#
# The vectors themselves stay in a hash of the user. Beside it, each vector is a document of its own that RediSearch
# indexes; every change writes or removes both in one step. Documents that are missing, because the server had no
# RediSearch when the vectors came, are made before the first search of their user.

EXACT = 20_000
"""Up to so many vectors of a user all are compared by the server; beyond, it asks its HNSW graph."""
_PAGE = 500
_LEAST_LOOK = 200
_DIGITS = 6
_EXISTS = "already exists"


def pack_near(vector: Iterable[float]) -> bytes:
    """A vector as RediSearch reads it: 4 bytes for each number."""
    return little_endian(array("f", vector)).tobytes()


class RedisVectors:
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
            await self._link.change(NEAR, (user.vectors,), arguments)


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
