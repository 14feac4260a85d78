"""A local copy of one user's data, kept in step with the server, for searches.

Redis holds the truth. A copy asks before every use what has changed since, in one call, and takes just that; so it
answers as the server would at that moment, and a user who is asked about often costs one small question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import anyio.to_thread
from anyio import Lock

from loom.core.record import Record
from loom.core.scope import Scope
from loom.errors import StoreUnavailable
from loom.stores.damage import DamagedData, damage_at, reading, unreadable
from loom.stores.redis.codec import Binding, unpack_keys, unpack_record, unpack_vector
from loom.stores.redis.link import RedisConnection
from loom.stores.redis.names import StoreNames
from loom.stores.redis.retention import Retention
from loom.stores.redis.scripts import PAGE
from loom.stores.user_records import RecordChange, UserRecords

_T = TypeVar("_T")
_Row: TypeAlias = tuple[bytes, bytes, bytes | None, bytes | None]
_ROWS = 1000
# Below this many records work takes about a millisecond, less than it costs to hand it to a thread.
_INLINE = 200
_USUAL = 100
_NOTHING = (b"", None)


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
    failure: StoreUnavailable | None = None

    @property
    def binding(self) -> Binding | None:
        """The embedder of the vectors."""
        return Binding.unpacked(self.life[1])

    def start_again(self, life: tuple[bytes, bytes | None]) -> None:
        """Hold nothing."""
        self.records, self.life, self.version, self.deleted = UserRecords(), life, b"0", b"0"
        bound = self.binding
        self.records.dimension = None if bound is None else bound.dimension

    def take(self, rows: list[_Row], left: list[bytes] | None) -> None:
        """Take what has changed; `left` are the ids of all records, where some were removed."""
        changed: dict[str, Record] = {}
        gone = frozenset[str]() if left is None else self.records.records.keys() - {id.decode() for id in left}
        texts: dict[str, dict[str, str]] = {}
        for id, record, keys, _ in rows:
            name = id.decode()
            try:
                changed[name] = unpack_record(record)
            except DamagedData as error:
                raise unreadable(f"record {name!r}", error) from error
            held = self.records.keys.get(name, {})
            found = dict.fromkeys(held, "") | unpack_keys(keys)
            # An access changes a record and no key of it: what is as it was is not indexed again.
            if found != held:
                texts[name] = {kind: text for kind, text in found.items() if held.get(kind) != text}
        self.records.apply(RecordChange(changed, texts, frozenset(gone)))
        for id, _, _, vector in rows:
            if vector is None:
                self.records.vectors.discard(id.decode())
        vectors = {id.decode(): unpack_vector(data) for id, _, _, data in rows if data is not None}
        with reading("the vectors of a user"):
            self.records.vectors.set(vectors)

    def drop(self, ids: Iterable[str]) -> None:
        """Remove expired records; the server removes them in its own time."""
        self.records.apply(RecordChange({}, deleted=frozenset(ids)))


class LocalCopies:
    """The copies of the users that were asked about last, up to so many records together."""

    def __init__(self, link: RedisConnection, names: StoreNames, retention: Retention, *, max_records: int) -> None:
        self._link, self._names, self._retention, self._max = link, names, retention, max_records
        self._held: OrderedDict[str, LocalCopy] = OrderedDict()
        self._total = 0

    async def ask(self, scope: Scope, question: Callable[[UserRecords], _T]) -> _T:
        """The question's answer about the user's records as they are now."""
        digest = self._names.user(scope).digest
        copy = self._held.setdefault(digest, LocalCopy())
        self._held.move_to_end(digest)
        async with copy.lock:
            if copy.failure is not None:
                # Found out while this call waited for the copy: to try again would take it past its own time.
                raise StoreUnavailable(str(copy.failure)) from copy.failure
            try:
                with damage_at(f"the Redis store at {self._link.address}"):
                    await self._catch_up(copy, scope)
            except BaseException as error:
                # Half a step must not be taken for a whole one.
                self._drop(digest, copy)
                copy.failure = error if isinstance(error, StoreUnavailable) else None
                raise
            copy.drop(self._retention.over(copy.records.records.values()))
            self._settle(digest, copy)
            return await _run(len(copy.records.records), lambda: question(copy.records))

    def clear(self) -> None:
        """Hold nothing."""
        self._held.clear()
        self._total = 0

    async def _catch_up(self, copy: LocalCopy, scope: Scope) -> None:
        names = self._names.user(scope)
        keys = (self._names.embedder, names.meta, names.changed, names.records, names.keys, names.vectors)
        more: bytes | None = b""
        # Where the server searches vectors they are not needed here.
        with_vectors = int(not (self._retention.is_unlimited and await self._link.searches()))
        while more is not None:
            since = (copy.version, copy.deleted, _ROWS, with_vectors)
            page: list[Any] = await self._link.run(PAGE, keys, since)
            run, bound, version, deleted, rows, more, left = page
            if (run, bound) != copy.life or _is_behind(version, copy.version):
                # Another life of the server may have lost what this copy holds, and numbered something else like it.
                empty = copy.version == b"0" and not copy.records.records
                copy.start_again((run, bound))
                if not empty:
                    more = b""
                    continue
            await _run(_weight(rows), lambda rows=rows, left=left: copy.take(rows, left))
            copy.version = more or version or b"0"
            if more is None:
                copy.deleted = deleted or b"0"

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


def _is_behind(version: bytes | None, held: bytes) -> bool:
    return int(version or 0) < int(held)


def _weight(rows: list[_Row]) -> int:
    """How much work rows are, in records of the usual length."""
    return max(len(rows), sum(len(record) + len(keys or b"") for _, record, keys, _ in rows) // _USUAL)


async def _run(size: int, work: Callable[[], _T]) -> _T:
    """Do it here if it is little, otherwise in a thread, so that the event loop goes on."""
    return work() if size < _INLINE else await anyio.to_thread.run_sync(work)
