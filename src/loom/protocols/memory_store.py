"""Memory stores: records, search, jobs, and the administrative view of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from loom.core.checks import as_utc, check_id, check_text
from loom.core.clock import to_micros
from loom.core.filter import Filter
from loom.core.record import Episode, Hit, Layer, Origin, Receipt, Record, Scalar, WorkingBlock
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.embedder import Vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search: by words, a vector, a filter, or several of them.

    `at` and `known_at` ask for facts true then, as believed then; None is now. `history` brings retired
    facts too, `archived` episodes that are no longer shown.
    """

    text: str = ""
    vector: Vector | None = field(default=None, repr=False, compare=False)
    where: Filter | None = None
    limit: int = 10
    at: datetime | None = None
    known_at: datetime | None = None
    history: bool = False
    archived: bool = False

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UsageError(f"a query has limit={self.limit}; ask for at least one hit")
        for name in ("at", "known_at"):
            at: datetime | None = getattr(self, name)
            if at is not None:
                object.__setattr__(self, name, as_utc(at, f"{name} of a query"))


@runtime_checkable
class MemoryStore(Protocol):
    """Keeps episodes, facts and working blocks, each for one user.

    A scope with a session sees the episodes of that session, and the facts and blocks of its user, which
    belong to no session; a scope without one sees all of the user's records.

    Laws:
    - what put() acknowledged is durable, and comes back equal to what was given;
    - put() is all or nothing, and idempotent by id: under an equal id the newest wins; the same id of two
      users is two records;
    - a block is written with the version after the stored one, or StoreConflict; equal again is a no-op;
    - scopes never meet, in get, search, list, count, delete or forget; an episode of another session than
      the scope names is refused with UsageError;
    - search orders by loom.core.record.rank_key: total and stable; filters come before the limit;
    - search returns facts current at `at` and `known_at`, others only with `history`; archived episodes
      only with `archived`;
    - every hit says why, signal by signal;
    - list() goes by id and `after` continues it, so that pages neither repeat nor skip what was there all along;
    - after delete() or forget() nothing is found by any call, and no row, vector or index term is left, or
      the receipt says what is pending; no other user's records are touched;
    - text is data: no character of an id, a text or a filter reaches a query language.
    """

    async def put(self, scope: Scope, *records: Record) -> None:
        """Write the records, all or none."""
        ...

    async def get(self, scope: Scope, id: str) -> Record | None:
        """The record with this id, None where there is none."""
        ...

    async def search(self, scope: Scope, query: Query) -> tuple[Hit, ...]:
        """The best hits, best first."""
        ...

    async def list(
        self, scope: Scope, *, where: Filter | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[Record, ...]:
        """Records in the order of their ids, from behind `after`; a page shorter than `limit` is the last."""
        ...

    async def count(self, scope: Scope, *, where: Filter | None = None) -> int:
        """How many records there are."""
        ...

    async def delete(self, scope: Scope, *ids: str) -> int:
        """Remove these records; returns how many were there."""
        ...

    async def forget(self, scope: Scope) -> Receipt:
        """Remove everything of a user, or the episodes of a session."""
        ...

    async def aclose(self) -> None:
        """Finish writing and release the store. Closing twice is allowed."""
        ...


@runtime_checkable
class Prunes(Protocol):
    """A store that can enforce a layer's capacity and retention.

    Laws:
    - the least recently accessed go first; at equal access the oldest, then by id;
    - what is pruned is archived, not deleted; the ids returned are exactly those;
    - pruning twice changes nothing the second time.
    """

    async def prune(
        self, scope: Scope, *, layer: Layer, keep: int | None = None, before: datetime | None = None
    ) -> tuple[str, ...]:
        """Archive what exceeds `keep` records or was recorded before `before`; returns the ids."""
        ...


@runtime_checkable
class Touches(Protocol):
    """A store that counts accesses.

    Laws: concurrent touches all count; an unknown id is ignored; nothing but `accesses` and `accessed_at` changes;
    every later call of the store sees the count. It may be written to disk later, and be lost in a crash.
    """

    async def touch(self, scope: Scope, *ids: str, at: datetime) -> None:
        """Count one access of each episode."""
        ...


@runtime_checkable
class KeepsVectors(Protocol):
    """A store that searches `Query.vector`; any other store refuses it with UsageError.

    Laws:
    - bind() fixes the embedder of the vectors; with another identity or dimension it raises EmbedderMismatch, with an
      empty identity or no dimension UsageError, and before it no vector is accepted;
    - a vector of another dimension, or with a NaN, is refused with UsageError;
    - a vector lives and dies with its record; the vector of an unknown record is refused with NotFound.
    """

    async def bind(self, identity: str, dimension: int) -> None:
        """Say which embedder the vectors come from."""
        ...

    async def put_vectors(self, scope: Scope, vectors: Mapping[str, Vector]) -> None:
        """Set the vectors of records, by record id, all or none."""
        ...


@runtime_checkable
class WritesVectors(Protocol):
    """A store that writes vectors in the transaction of their records.

    Law: all is written, or nothing, as write() and put_vectors() would write it one after the other.
    """

    async def write_embedded(
        self,
        scope: Scope,
        vectors: Mapping[str, Vector],
        *,
        put: Sequence[Record] = (),
        keys: Mapping[str, Mapping[str, str]] | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Put records, keys, vectors and jobs; returns how many jobs are new."""
        ...


@runtime_checkable
class HybridSearch(Protocol):
    """Hybrid search in one call: two lists, by words and by vector, each ranked by itself.

    Laws: the records are those that search() finds with the text of the query and its limit, and with its vector and
    the limit `near`; `why` holds what words say of those that words found, and the cosine of all that have a vector;
    hits are ordered as those of search().
    """

    async def search_hybrid(self, scope: Scope, query: Query, *, near: int) -> tuple[Hit, ...]:
        """The best by the words of a query and the `near` best by its vector."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HitColumns:
    """Hits of a search as columns, best first: one list for each property of a record, one array for each signal.

    Ranking looks at hundreds of hits and returns a few: no record is made before `read` is called with its place. A
    fact has no speaker, session or time. Times are whole microseconds, see `loom.core.clock.to_micros`: `times` of what
    happened, `recorded` of when it was written, which a block does not say. `derived` says which were made of other
    records. The array of a signal has NaN where the signal did not find the record. `held` is how many records the
    scope has, where the store knows that without counting.
    """

    ids: Sequence[str]
    kinds: Sequence[str]
    texts: Sequence[str]
    origins: Sequence[Origin]
    speakers: Sequence[str | None]
    sessions: Sequence[str | None]
    times: Sequence[int | None]
    recorded: Sequence[int | None]
    derived: Sequence[bool]
    attributes: Sequence[Mapping[str, Scalar]]
    signals: Mapping[str, NDArray[np.float64]]
    read: Callable[[int], Record]
    held: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        signals: Mapping[str, NDArray[np.float64]],
        read: Callable[[int], Record],
        *,
        held: int | None = None,
    ) -> HitColumns:
        """The columns of hits that have their records."""
        turns = [record if isinstance(record, Episode) else None for record in records]
        written = [None if isinstance(record, WorkingBlock) else record for record in records]
        return cls(
            ids=[record.id for record in records],
            kinds=[record.kind for record in records],
            texts=[record.text for record in records],
            origins=[record.provenance.origin for record in records],
            speakers=[turn and turn.speaker for turn in turns],
            sessions=[turn and turn.session_id for turn in turns],
            times=[turn and to_micros(turn.at) for turn in turns],
            recorded=[one and to_micros(one.recorded_at) for one in written],
            derived=[bool(one and one.sources) for one in written],
            attributes=[turn.attributes if turn else {} for turn in turns],
            signals=signals,
            read=read,
            held=held,
        )


@runtime_checkable
class ColumnSearch(Protocol):
    """Hybrid search that makes no records.

    Law: the hits are those of search_hybrid(), in the same order, and `read` gives the record of each.
    """

    async def search_columns(self, scope: Scope, query: Query, *, near: int) -> HitColumns:
        """The hits of search_hybrid(), not read."""
        ...


class Newest(NamedTuple):
    """Of the episodes that fit a filter, those that were recorded last, at most `limit`; among equal times, any."""

    where: Filter
    limit: int

    def of(self, records: Iterable[Record]) -> list[Record]:
        """Those of records that fit the filter, by id."""
        episodes = [record for record in records if isinstance(record, Episode)]
        episodes.sort(key=lambda episode: episode.recorded_at)
        return sorted(episodes[max(0, len(episodes) - self.limit) :], key=lambda episode: episode.id)


class Together(NamedTuple):
    """Several reads of one moment: the epoch of a user, and the records that fit each filter, by id."""

    epoch: str
    lists: Sequence[Sequence[Record]]


@runtime_checkable
class ReadsTogether(Protocol):
    """A store that answers several reads from one moment of its data.

    Law: it returns what epoch() and then list(), for each filter, would return if nothing was written meanwhile; all
    records that fit, not a page of them, but for what asks for the Newest of them.
    """

    async def read_together(self, scope: Scope, *wheres: Filter | Newest) -> Together:
        """The epoch of the scope's user, and the records that fit each filter."""
        ...


@runtime_checkable
class Reembeds(Protocol):
    """A store whose vectors can be exchanged for those of another embedder, of all users at once.

    Laws:
    - rebind() takes every vector away and binds the store to the new embedder, both or neither; with the embedder
      that the store is bound to already it changes nothing, so that work that was broken off can go on;
    - unembedded() lists the records of all users that have no vector, by namespace, user and id, each with the scope
      of its user; `after` continues it behind a user and an id;
    - records, keys and jobs stay as they are.
    """

    async def rebind(self, identity: str, dimension: int) -> bool:
        """Let go of another embedder's vectors and take this one's from now on; False if it was bound to it."""
        ...

    async def unembedded(
        self, *, where: Filter | None = None, after: tuple[Scope, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Scope, Record], ...]:
        """Records without a vector."""
        ...

    async def count_unembedded(self, *, where: Filter | None = None) -> int:
        """How many records have no vector."""
        ...


@runtime_checkable
class Scrubs(Protocol):
    """A store whose files may hold deleted text for a while, and that can remove it."""

    async def scrub(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted; returns what is pending, in words."""
        ...


@runtime_checkable
class Sweeps(Protocol):
    """A store whose files, or those of its server, can be rewritten, which takes too long to wait for in a call."""

    async def sweep(self) -> tuple[str, ...]:
        """Leave no bytes of what was deleted in the files; returns what is pending, in words."""
        ...


@runtime_checkable
class SeesSessions(Protocol):
    """A store that can tell whether conversations are saved in the same place, in tables that are not its own."""

    async def saved_sessions(self, scope: Scope) -> int:
        """How many conversations of the scope's user, or whether the one it names, are saved beside the records."""
        ...


class Others(NamedTuple):
    """What is known of those who write to the same place, as of the last look."""

    checks: int
    """How often it was looked."""
    changes: int
    """How often another process had written since the look before."""
    latest: datetime | None
    """The latest time at which a record that this process wrote was recorded or retired."""


@runtime_checkable
class SeesOthers(Protocol):
    """A store that sees, when it writes, whether another process has written to the same place.

    Laws:
    - every write looks, before it is acknowledged; what another process had written by then is in `changes`;
    - `latest` is never before the time of a record that any store of this process has written to the same place.
    """

    @property
    def others(self) -> Others | None:
        """What is known; nothing before the store is opened."""
        ...


class Around(str):
    """A key that quotes a conversation: the text of a turn and those of the `REACH` turns on each side of it, as lines.

    Of its neighbours, a turn quotes `AROUND` characters (see `loom.core.checks`). A store may keep it like any other
    text. A store that puts the turns of a conversation in order needs no copy of their texts: `before` is the id of the
    turn before this one, None for the first.
    """

    __slots__ = ("before",)

    before: str | None

    def __new__(cls, text: str, before: str | None) -> Self:
        """A key with this text, of a turn that follows the one with the id `before`."""
        made = super().__new__(cls, text)
        made.before = before
        return made


@runtime_checkable
class KeepsKeys(Protocol):
    """A store that finds a record by more than its own text.

    A key is another text under which a record is found: the turns around it, a fact made from it, a summary it is
    part of. It never takes the record's place: what is returned is the record.

    Laws:
    - search() over `Query.text` looks into the own text and all keys; `why` holds one score for each kind that
      matched: `bm25` for the own text, `bm25.KIND` for a key of that kind; the score of the hit is their sum;
    - put_keys() replaces the keys of the kinds it names and leaves other kinds alone; an empty text takes a key away;
    - keys live and die with their record; the key of an unknown record is refused with NotFound.
    """

    async def put_keys(self, scope: Scope, keys: Mapping[str, Mapping[str, str]]) -> None:
        """Set keys: record id, then kind, then text; all or none."""
        ...


@dataclass(frozen=True, slots=True)
class SearchKeys:
    """A record's search keys beside its own text: keys by kind, and its vector if it has one."""

    keys: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    vector: Vector | None = field(default=None, repr=False, compare=False)


@runtime_checkable
class ExportsKeys(Protocol):
    """A store whose records can be exported with their search keys and vectors.

    Laws: search_keys() gives the keys that put_keys() set, and a vector in the direction of the one that put_vectors()
    set; what the scope does not see is left out.
    """

    async def search_keys(self, scope: Scope, *ids: str) -> Mapping[str, SearchKeys]:
        """The keys and the vector of each of these records that is there."""
        ...


# Work that memory still has to do, kept beside the records it is about.


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work for one user. `key` is unique among the open jobs of a user: the same work is queued once.

    `payload` is a JSON object. `attempts` counts how often the job was leased.
    """

    id: str
    scope: Scope
    kind: str
    key: str
    run_at: datetime
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    attempts: int = 0

    def __post_init__(self) -> None:
        check_id(self.id, "the id of a job")
        check_id(self.key, f"the key of job {self.id}")
        check_text(self.kind, f"the kind of job {self.id}")
        object.__setattr__(self, "run_at", as_utc(self.run_at, f"run_at of job {self.id}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do a job until `until`; `token` tells this holder from every earlier and later one."""

    job: Job
    token: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job that was given up, and why."""

    job: Job
    reason: str
    at: datetime


@runtime_checkable
class KeepsJobs(Protocol):
    """A memory store that keeps jobs, so that a change and the work it asks for are one transaction.

    Laws:
    - enqueue() and put() in one `write` are durable together, or neither is;
    - a job whose key is open already is not queued again; the count returned leaves it out;
    - lease() with `kinds` gives jobs of these kinds alone, however many others are older; those stay as they are;
    - lease() with `in_order` gives one job of a user at most, and none while a lease of this sort on an older one of
      these kinds runs: a user's jobs are done one after the other, however many workers there are;
    - a job is leased to one holder at a time; after `until` any holder may lease it again, with `attempts` one higher;
    - finish() applies the effects and closes the job in one transaction, and only while the lease is the newest:
      a holder that comes late raises StoreConflict and changes nothing;
    - fail() puts the job back for `retry_at`, or with None makes it a dead letter, which stays until it is dropped;
    - epoch() changes whenever text of the user goes: a record is deleted or forgotten, or gets another text. Given
      `since`, write() and finish() raise StaleWrite and change nothing if the epoch is another one by now, in the
      transaction that would have written: what was prepared from a read never brings back what was removed after it;
    - forget() of a user removes their jobs and dead letters, and a lease on one of them can no longer be finished.
    """

    async def epoch(self, scope: Scope) -> str:
        """A token that changes whenever text of the scope's user is removed; read it before what a write stands on."""
        ...

    async def write(
        self,
        scope: Scope,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Mapping[str, Mapping[str, str]] | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> int:
        """Change records, index keys and queue jobs, all in one transaction; returns how many jobs are new."""
        ...

    async def lease(
        self,
        *,
        now: datetime,
        until: datetime,
        limit: int = 1,
        scope: Scope | None = None,
        kinds: Sequence[str] | None = None,
        in_order: bool = False,
    ) -> tuple[Lease, ...]:
        """Take jobs that are due, oldest first; of one user, and of some kinds, only, if these are given.

        With `in_order`, one of a user at most, and none of a user for whom another holder works.
        """
        ...

    async def finish(
        self,
        lease: Lease,
        *,
        put: Sequence[Record] = (),
        delete: Sequence[str] = (),
        keys: Mapping[str, Mapping[str, str]] | None = None,
        jobs: Sequence[Job] = (),
        since: str | None = None,
    ) -> None:
        """Apply what the job did and close it."""
        ...

    async def fail(self, lease: Lease, *, reason: str, now: datetime, retry_at: datetime | None) -> None:
        """The job did not work."""
        ...

    async def dead_letters(self, scope: Scope) -> tuple[DeadLetter, ...]:
        """The jobs of a user that were given up."""
        ...

    async def pending(self, scope: Scope) -> int:
        """How many jobs of a user are open."""
        ...


class Store(MemoryStore, KeepsJobs, Protocol):
    """A memory store that keeps jobs: what a memory needs."""


# Administrative view of a memory store: users, embedder, pending jobs, guarantees.
#
# Memory itself works for one user at a time and needs none of this.


@runtime_checkable
class ListsUsers(Protocol):
    """A store that lists its users.

    Laws: each user with a record or an open job is listed once, by namespace and user; `after` continues the list.
    """

    async def users(self, *, after: Scope | None = None, limit: int = 100) -> tuple[Scope, ...]:
        """Users of whom something was written, by namespace and user, from behind `after`."""
        ...


@runtime_checkable
class AdminStore(MemoryStore, KeepsVectors, KeepsKeys, ExportsKeys, KeepsJobs, ListsUsers, Protocol):
    """A store whose data of all users can be copied to and from another store.

    Laws:
    - bound() returns what the last bind() or rebind() set, in any process that shares the store;
    - open_jobs() changes no job: it leases none, and no attempt is counted;
    - a job that open_jobs() gave is queued by write() at another store as it is, with its attempts;
    - what list() and search_keys() give of a user, put there, makes another store equal to this one.
    """

    async def bound(self) -> tuple[str, int] | None:
        """The embedder of the vectors and their dimension, as bind() set them; None before that."""
        ...

    async def open_jobs(self, scope: Scope) -> tuple[Job, ...]:
        """The open jobs of a user, by id; this leases none of them."""
        ...


@runtime_checkable
class PrimaryStore(AdminStore, Prunes, Touches, Reembeds, Protocol):
    """A store that can hold everything: every optional protocol, and a list of its users."""


@runtime_checkable
class CountsJobs(Protocol):
    """A store that counts the jobs of all users, however many there are."""

    async def job_counts(self, *, now: datetime) -> dict[str, int]:
        """How many jobs are `due`, how many are `leased`, and, where the store knows it, how many were `given_up`."""
        ...


@runtime_checkable
class Describes(Protocol):
    """A store that describes itself: what it is, and what it guarantees as configured now."""

    async def describe(self) -> dict[str, str]:
        """Labels such as `server`, `durability`, `isolation`, `index`, `embedder` and `schema`, each with a text."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A store with notes for people about what it guarantees, known once it was used."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people; empty where nothing is unusual, and before the first call."""
        ...


@runtime_checkable
class HasParts(Protocol):
    """A store that is made of others."""

    @property
    def parts(self) -> Mapping[str, MemoryStore]:
        """The stores below, by the name of what each is for, the primary store first."""
        ...


# The result of comparing an index with its records.


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDifference:
    """How the index of one user differs; `what` is what it is an index of: `vectors` or `words`."""

    user: Scope
    what: str
    missing: int = 0
    extra: int = 0
    wrong: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the two agree."""
        return not (self.missing or self.extra or self.wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDifference:
    """How an index differs from its records, in entries: `missing` from the index, `extra` in it, or `wrong` there.

    `users` and `vectors` say how much was looked at, `by_user` where the differences are. `is_repaired` says that they
    were there and are no longer. `damaged` are records and jobs that cannot be read, each in words; a repair removes
    them. `problems` are damages of the file itself, which nothing here can repair.
    """

    users: int = 0
    vectors: int = 0
    missing: int = 0
    extra: int = 0
    wrong: int = 0
    is_repaired: bool = False
    by_user: tuple[UserDifference, ...] = field(default=(), compare=False)
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether there was no difference."""
        return not (self.missing or self.extra or self.wrong or self.problems or self.damaged)


def summed(
    found: Iterable[UserDifference],
    *,
    users: int,
    vectors: int,
    repair: bool,
    problems: Iterable[str] = (),
    damaged: Sequence[str] = (),
) -> IndexDifference:
    """The differences of all users as one; `repair` says that they were repaired."""
    differing = tuple(one for one in found if not one.is_equal)
    return IndexDifference(
        users=users,
        vectors=vectors,
        missing=sum(one.missing for one in differing),
        extra=sum(one.extra for one in differing),
        wrong=sum(one.wrong for one in differing),
        is_repaired=repair and bool(differing or damaged),
        by_user=differing,
        problems=tuple(problems),
        damaged=tuple(damaged),
    )
