"""Keys, byte formats, retention and scripts of a Redis store.

A user is named in a key by a digest of their scope, whose parts carry their lengths: no character of an id can move a
boundary, end a key early or stand for another user, and no name is ever searched for by a pattern.

On a cluster, users are spread over buckets. A bucket is what a store is on a single server, in one slot: its users, its
jobs, its count of changes. Its name stands in braces behind the prefix of each key, so that one server has all of it,
and every script runs there as it would on a single server.
"""

from __future__ import annotations

import json
import sys
from array import array
from binascii import crc_hqx
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from itertools import count
from typing import Any

from loom.core.clock import Clock
from loom.core.codec import record_from_dict, record_to_dict
from loom.core.record import Episode, Layer, Record
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import DeadLetter, Job
from loom.stores._record_table import HeldJob, job_from_dict, job_to_dict, payload_error
from loom.stores._sql import to_micros
from loom.stores.base import Bound, reading, unreadable
from loom.stores.redis.cluster import SLOTS
from loom.stores.redis.connection import Ttl

DIGEST = 64
"""How many characters name a user."""


class _Key:
    """A key that is called like the attribute that holds it."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, names: StoreNames | UserNames | None, _: type) -> str:
        return self._name if names is None else names.of(self._name)


@dataclass(frozen=True, slots=True)
class StoreNames:
    """The keys that a store has once, and on a cluster once in each bucket."""

    prefix: str

    format = _Key()
    """The version of the format of all keys; on a cluster outside of the buckets."""
    version = _Key()
    """A counter of all changes, which never goes back."""
    users = _Key()
    """Digest of a user to namespace and user id."""
    embedder = _Key()
    """The embedder of the vectors; on a cluster also outside of the buckets, where it is set first."""
    due = _Key()
    """Jobs that are free, by the time they are to run."""
    held = _Key()
    """Jobs that are leased, by the end of the lease."""
    forgotten = _Key()
    """How many users were removed, under the field `users`."""

    def of(self, what: str) -> str:
        """The key of this name."""
        return f"{self.prefix}:{what}"

    @property
    def is_spread(self) -> bool:
        """Whether it is spread over the buckets of a cluster."""
        return False

    @property
    def buckets(self) -> Sequence[StoreNames]:
        """The buckets of the store: on a single server it is its only one."""
        return (self,)

    def bucket(self, scope: Scope) -> StoreNames:  # noqa: ARG002 - it is the only one
        """The bucket of the user of a scope."""
        return self

    @property
    def near(self) -> str:
        """How the documents of all vectors start, where the server searches them."""
        return f"{self.prefix}:near:"

    def user(self, scope: Scope) -> UserNames:
        """The keys of the user of a scope."""
        return UserNames(self.prefix, _digest(scope))

    def of_digest(self, digest: str) -> UserNames:
        """The keys of the user with this digest."""
        return UserNames(self.prefix, digest)


@dataclass(frozen=True, slots=True)
class ClusterNames(StoreNames):
    """The keys of a store on a cluster, whose users are spread over `count` buckets."""

    count: int

    def __post_init__(self) -> None:
        if "{" in self.prefix or "}" in self.prefix:
            raise UsageError(f"the prefix {self.prefix!r} has braces, which Redis Cluster reads itself; leave them out")

    @property
    def is_spread(self) -> bool:
        """Whether it is spread over the buckets of a cluster."""
        return True

    @property
    def buckets(self) -> Sequence[StoreNames]:
        """Every bucket."""
        return _all_buckets(self.prefix, self.count)

    def bucket(self, scope: Scope) -> StoreNames:
        """The bucket of the user of a scope."""
        return self.buckets[bucket_number(_digest(scope), self.count)]

    def user(self, scope: Scope) -> UserNames:
        """The keys of the user of a scope."""
        digest = _digest(scope)
        return self.buckets[bucket_number(digest, self.count)].of_digest(digest)


@lru_cache(maxsize=64)
def _all_buckets(prefix: str, buckets: int) -> Sequence[StoreNames]:
    return tuple(StoreNames(bucket_prefix(prefix, number, buckets)) for number in range(buckets))


def bucket_number(digest: str, buckets: int) -> int:
    """The bucket of a user, by their digest."""
    return int(digest[:8], 16) % buckets


@lru_cache(maxsize=1 << 15)  # to find it takes a fraction of a millisecond
def bucket_prefix(prefix: str, number: int, buckets: int) -> str:
    """How the keys of a bucket start.

    The text in the braces is chosen so that buckets lie evenly over the slots: servers with equal shares of the
    slots have equal shares of the buckets.
    """
    first, end = number * SLOTS // buckets, (number + 1) * SLOTS // buckets
    return next(
        f"{prefix}:{{{number}.{salt}}}"
        for salt in count()
        if first <= crc_hqx(f"{number}.{salt}".encode(), 0) % SLOTS < end
    )


def store_names(prefix: str, buckets: int | None) -> StoreNames:
    """The keys of a store; `buckets` is None on a single server."""
    return StoreNames(prefix) if buckets is None else ClusterNames(prefix, buckets)


def _digest(scope: Scope) -> str:
    return sha256(scope.for_user().key().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class UserNames:
    """The keys of one user; there are no others, so that removing these removes everything."""

    prefix: str
    digest: str

    meta = _Key()
    """The number of the last change and of the last removal."""
    changed = _Key()
    """Ids of records, by the number of the change that wrote them."""
    records = _Key()
    """Records by id."""
    keys = _Key()
    """Index keys by the id of their record."""
    vectors = _Key()
    """Vectors by the id of their record."""
    jobs = _Key()
    """Open jobs by id."""
    job_keys = _Key()
    """Ids of open jobs by the key of the job."""
    dead = _Key()
    """Dead letters, the earliest first."""
    ends = _Key()
    """Ids of records that expire, by the time they do."""
    snapshot = _Key()
    """All of the above that a search reads, as of one change; it is made from the rest, and may be missing."""

    def of(self, what: str) -> str:
        """The key of this name."""
        return f"{self.prefix}:{what}:{self.digest}"

    def near(self, id: str) -> str:
        """The document of a vector, where the server searches them; there is one only beside a field in `vectors`."""
        return f"{self.of('near')}:{id}"

    @property
    def all(self) -> tuple[str, ...]:
        """Every key of the user."""
        return (
            *(self.meta, self.changed, self.records, self.keys, self.vectors),
            *(self.jobs, self.job_keys, self.dead, self.ends, self.snapshot),
        )

    def member(self, job_id: str) -> str:
        """The name of a job among those of all users; at equal times they sort by the id of the job."""
        # No id holds a NUL, and the digest is of one length, so that the two can be told apart.
        return f"{job_id}\0{self.digest}"


def of_member(member: str) -> tuple[str, str]:
    """The id of a job and the digest of its user."""
    return member[: -DIGEST - 1], member[-DIGEST:]


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """The keys of a checkpoint store. No memory store uses one of them, so that both may have one prefix.

    `buckets` is None on a single server.
    """

    prefix: str
    buckets: int | None = None

    @property
    def format(self) -> str:
        """The format of what is stored."""
        return f"{self.prefix}:checkpoint_format"

    @property
    def number(self) -> str:
        """A counter of all saves, which never goes back; on a cluster, of those of a bucket."""
        return f"{self.prefix}:checkpoint_number"

    @property
    def users(self) -> str:
        """Digest of a user who has sessions to namespace and user id; on a cluster, of those of a bucket."""
        return f"{self.prefix}:checkpoint_users"

    @property
    def parts(self) -> Sequence[CheckpointNames]:
        """The keys of every bucket; on a single server the store is its only one."""
        if self.buckets is None:
            return (self,)
        count = self.buckets
        return tuple(CheckpointNames(bucket_prefix(self.prefix, number, count)) for number in range(count))

    def bucket(self, scope: Scope) -> CheckpointNames:
        """The keys of the bucket of a user; on a single server, of the store."""
        if self.buckets is None:
            return self
        return CheckpointNames(bucket_prefix(self.prefix, bucket_number(_digest(scope), self.buckets), self.buckets))

    def user(self, scope: Scope) -> tuple[str, ...]:
        """Every key of a user, in the order of USER_KEYS."""
        digest = _digest(scope)
        return tuple(f"{self.prefix}:checkpoint_{what}:{digest}" for what in USER_KEYS)


USER_KEYS = (
    *("sessions", "order", "ids", "data", "entries", "links", "children", "used", "parts", "uses"),
    *("held", "upto"),
)
"""What a user of a checkpoint store has, as the scripts name it."""


def session_name(scope: Scope) -> str:
    """The name of a session inside the keys of its user: of one length, so that an id can stand behind it."""
    return sha256(scope.key().encode()).hexdigest()


# Records, keys, vectors and jobs as bytes, and back.

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def id_bytes(id: str) -> bytes:
    """An id as a field; one that cannot be stored is found nowhere."""
    return id.encode(errors="surrogatepass")


def pack_record(record: Record) -> bytes:
    """A record; `kind` comes first, where the script that forgets a user counts it."""
    return _to_json(record_to_dict(record)).encode()


def unpack_record(data: bytes) -> Record:
    """The record of pack_record()."""
    try:
        return record_from_dict(json.loads(data))
    except Exception as error:
        raise unreadable("a record", error) from error


def pack_keys(keys: Mapping[str, str]) -> bytes:
    """The keys of a record, by kind."""
    return _to_json(dict(keys)).encode()


def unpack_keys(data: bytes | None) -> dict[str, str]:
    """The keys of pack_keys(); none where there is nothing."""
    if data is None:
        return {}
    with reading("the keys of a record"):
        return {str(kind): str(text) for kind, text in json.loads(data).items()}


def pack_vector(vector: Vector) -> bytes:
    """A vector, exactly: 8 bytes for each number, the lowest first."""
    return little_endian(array("d", vector)).tobytes()


def unpack_vector(data: bytes) -> Vector:
    """The vector of pack_vector(), in a form that numpy takes as it is."""
    try:
        return little_endian(array("d", data))
    except ValueError as error:
        raise unreadable("a vector", error) from error


def little_endian(numbers: array[float]) -> array[float]:
    """Numbers with their lowest byte first, on any machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_job(held: HeldJob) -> bytes:
    """An open job."""
    until = None if held.until is None else held.until.isoformat()
    return _dumped(held.job, {"token": held.token, "until": until})


def unpack_job(data: bytes) -> HeldJob:
    """The job of pack_job()."""
    with reading("a job"):
        found = json.loads(data)
        until = None if found["until"] is None else datetime.fromisoformat(found["until"])
        return HeldJob(job_from_dict(found), found["token"], until)


def pack_letter(letter: DeadLetter) -> bytes:
    """A job that was given up."""
    return _dumped(letter.job, {"reason": letter.reason, "dead_at": letter.at.isoformat()})


def unpack_letter(data: bytes) -> DeadLetter:
    """The dead letter of pack_letter()."""
    with reading("a job that was given up"):
        found = json.loads(data)
        return DeadLetter(job=job_from_dict(found), reason=found["reason"], at=datetime.fromisoformat(found["dead_at"]))


def pack_owner(scope: Scope) -> bytes:
    """The namespace and the id of a user."""
    return _to_json([scope.namespace, scope.user_id]).encode()


def unpack_owner(data: bytes) -> Scope:
    """The scope of pack_owner()."""
    with reading("the name of a user"):
        return Scope(*json.loads(data))


@dataclass(frozen=True, slots=True)
class Binding:
    """The embedder of a store's vectors; `stamp` tells one binding from a later one to the same embedder."""

    identity: str
    dimension: int
    stamp: str

    @property
    def bound(self) -> Bound:
        """The embedder and the dimension alone."""
        return (self.identity, self.dimension)

    def packed(self) -> bytes:
        """As bytes."""
        return _to_json([self.identity, self.dimension, self.stamp]).encode()

    @staticmethod
    def unpacked(data: bytes | None) -> Binding | None:
        """The binding of packed()."""
        with reading("the embedder of the store"):
            return None if data is None else Binding(*json.loads(data))


def _dumped(job: Job, more: Mapping[str, Any]) -> bytes:
    try:
        return _to_json({**job_to_dict(job), **more}).encode()
    except (TypeError, ValueError) as error:
        raise payload_error(job, error) from error


# How long a store keeps episodes.


class Retention:
    """When records are over: an episode of a layer in `ttl` that long after it was recorded, while it is not archived.

    A period for None, or one alone, is for all other episodes, those in the archive too.

    Laws: from that moment no call of the store sees it. What it held goes with the next change of its user, and the
    server drops everything of a user by itself when the last of it is over. Nothing else ever ends: no fact, block or
    job, no episode that no period is for; and while a user has any of these, the server drops nothing.
    """

    def __init__(self, ttl: Ttl | None, clock: Clock) -> None:
        given = {None: ttl} if isinstance(ttl, timedelta) else ttl or {}
        self._ttl = {None if layer is None else Layer(layer): period for layer, period in given.items()}
        self._clock = clock
        for layer, period in self._ttl.items():
            if period <= timedelta(0):
                which = "episodes" if layer is None else f"episodes of {layer.label}"
                raise UsageError(f"{which} with ttl={period} are over at once; give more, or none")

    def __str__(self) -> str:
        layers = sorted(layer for layer in self._ttl if layer is not None)
        period = [f"{layer.label} for {self._ttl[layer]} while live" for layer in layers]
        if None in self._ttl:
            period.append(f"{'other' if period else 'all'} episodes for {self._ttl[None]}, the archive too")
        return f"kept: {', '.join(period)}; all else for ever" if period else "everything is kept for ever"

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing ever ends."""
        return not self._ttl

    def now(self) -> int:
        """The time in microseconds."""
        return to_micros(self._clock.now())

    def end_of(self, record: Record) -> int | None:
        """When a record is over, in microseconds; None: never."""
        if not isinstance(record, Episode):
            return None
        period = self._ttl.get(None)
        if record.archived_at is None:
            period = self._ttl.get(record.layer, period)
        return None if period is None else to_micros(_added(record.recorded_at, period))

    def is_over(self, record: Record) -> bool:
        """Whether a record is over now."""
        end = self.end_of(record)
        return end is not None and end <= self.now()

    def over(self, records: Iterable[Record]) -> list[str]:
        """The ids of those that are over now."""
        return [] if self.is_unlimited else [record.id for record in records if self.is_over(record)]


def _added(at: datetime, period: timedelta) -> datetime:
    """The end of the calendar is as late as it gets."""
    try:
        return at + period
    except OverflowError:
        return datetime.max.replace(tzinfo=at.tzinfo)


# The Lua that runs inside Redis: each script is one atomic step.
#
# No script ever holds a value: ids and texts come as arguments and are only compared and stored.

COMMIT = """
-- KEYS: version, users, forgotten, then all keys of the user. ARGV: the user's digest and name, the time, how the
-- documents of vectors start, then checks, ids that change, ids that go, commands. Returns 0, and does nothing, if a
-- field is not what the caller read.
local _, users, forgotten, meta, changed, records, keys, vectors, jobs, _, dead, ends, snapshot = unpack(KEYS)
local digest, now, at = ARGV[1], ARGV[3], 4
local function take()
  at = at + 1
  return ARGV[at]
end
for _ = 1, tonumber(take()) do
  local key, field, expected = take(), take(), take()
  local held = redis.call('HGET', key, field)
  if (held and '=' .. held or '-') ~= expected then return 0 end
end
local version = redis.call('INCR', KEYS[1])
local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now)
for _, id in ipairs(over) do
  for _, key in ipairs({records, keys, vectors}) do redis.call('HDEL', key, id) end
  for _, key in ipairs({changed, ends}) do redis.call('ZREM', key, id) end
  redis.call('DEL', ARGV[4] .. id)
end
if redis.call('EXISTS', meta) == 0 then redis.call('HSET', meta, 'deleted', version) end
redis.call('HSET', meta, 'version', version)
for _ = 1, tonumber(take()) do redis.call('ZADD', changed, version, take()) end
local removed = tonumber(take())
for _ = 1, removed do redis.call('ZREM', changed, take()) end
if removed + #over > 0 then
  redis.call('HSET', meta, 'deleted', version)
  redis.call('DEL', snapshot)
end
while at < #ARGV do
  local command = {}
  for place = 1, tonumber(take()) do command[place] = take() end
  redis.call(unpack(command))
end
if redis.call('EXISTS', changed, jobs, dead) == 0 then
  redis.call('DEL', meta, snapshot)
  redis.call('HDEL', users, digest)
  redis.call('HINCRBY', forgotten, 'users', 1)
  return 1
end
redis.call('HSET', users, digest, ARGV[2])
local last = redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
local all_end = last and redis.call('ZCARD', ends) == redis.call('HLEN', records)
if all_end and redis.call('EXISTS', jobs, dead) == 0 then
  local left = string.format('%.0f', math.max(0, math.ceil((last - now) / 1000)))
  for place = 4, #KEYS do redis.call('PEXPIRE', KEYS[place], left) end
  -- A server before Redis 7.4 cannot end one field; there the user's name stays until they are forgotten.
  redis.pcall('HPEXPIRE', users, left, 'FIELDS', 1, digest)
elseif redis.call('PTTL', meta) ~= -1 then
  for place = 4, #KEYS do redis.call('PERSIST', KEYS[place]) end
end
return 1
"""

PAGE = """
-- KEYS: embedder, meta, changed, records, keys, vectors, forgotten. ARGV: since which change, since which removal, how
-- many, and whether vectors are wanted.
-- Returns the server's run, the embedder, version, deleted, rows, whether more follow, the ids that are left, how often
-- a text was replaced, and how many users were forgotten.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local meta = redis.call('HMGET', KEYS[2], 'version', 'deleted', 'replaced')
local since, limit = '(' .. ARGV[1], tonumber(ARGV[3])
local found = redis.call('ZRANGEBYSCORE', KEYS[3], since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local more = #found == 2 * limit
if more then
  -- What one change wrote stays on one page, so that the next begins behind a whole change.
  found = redis.call('ZRANGEBYSCORE', KEYS[3], since, found[#found], 'WITHSCORES')
end
local rows = {}
for place = 1, #found, 2 do
  local id = found[place]
  rows[#rows + 1] = {
    id, redis.call('HGET', KEYS[4], id), redis.call('HGET', KEYS[5], id),
    ARGV[4] == '1' and redis.call('HGET', KEYS[6], id),
  }
end
local left = false
if not more and meta[2] and meta[2] ~= ARGV[2] then left = redis.call('ZRANGE', KEYS[3], 0, -1) end
return {
  run, redis.call('HGET', KEYS[1], 'bound'), meta[1], meta[2], rows, more and found[#found] or false, left,
  meta[3], redis.call('HGET', KEYS[7], 'users'),
}
"""

FORGET = """
-- KEYS: users, due, held, forgotten, then all keys of the user: meta, changed, records, keys, vectors, jobs, job_keys,
-- dead, ends, snapshot. ARGV: the user's digest, and how the documents of vectors start ('' for none). Returns how many
-- episodes, facts, blocks, jobs and dead letters there were.
local count = {episode = 0, fact = 0, block = 0}
for _, record in ipairs(redis.call('HVALS', KEYS[7])) do
  local kind = string.match(record, '^{"kind":"(%l+)"')
  count[kind] = count[kind] + 1
end
local jobs = redis.call('HKEYS', KEYS[10])
for _, id in ipairs(jobs) do
  redis.call('ZREM', KEYS[2], id .. '\\0' .. ARGV[1])
  redis.call('ZREM', KEYS[3], id .. '\\0' .. ARGV[1])
end
local dead = redis.call('LLEN', KEYS[12])
if ARGV[2] ~= '' then
  for _, id in ipairs(redis.call('HKEYS', KEYS[9])) do redis.call('DEL', ARGV[2] .. id) end
end
for place = 5, 14 do redis.call('DEL', KEYS[place]) end
redis.call('HINCRBY', KEYS[4], 'users', 1)
redis.call('HDEL', KEYS[1], ARGV[1])
return {count.episode, count.fact, count.block, #jobs, dead}
"""

BIND = """
-- KEYS: the embedder of a store that is spread over buckets. ARGV: what was bound ('-' for nothing), what is bound now.
local held = redis.call('HGET', KEYS[1], 'bound')
if (held and '=' .. held or '-') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'bound', ARGV[2])
return 1
"""

REBIND = """
-- KEYS: embedder, users. ARGV: what was bound ('-' for nothing), what is bound now, the start of the keys of vectors,
-- that of their documents ('' for none), and that of the keys of snapshots, which hold vectors too.
local held = redis.call('HGET', KEYS[1], 'bound')
if (held and '=' .. held or '-') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'bound', ARGV[2])
if held then
  for _, digest in ipairs(redis.call('HKEYS', KEYS[2])) do
    local ids = ARGV[4] ~= '' and redis.call('HKEYS', ARGV[3] .. digest) or {}
    for _, id in ipairs(ids) do redis.call('DEL', ARGV[4] .. digest .. ':' .. id) end
    redis.call('DEL', ARGV[3] .. digest)
    redis.call('DEL', ARGV[5] .. digest)
  end
end
return 1
"""

SNAPSHOT = """
-- KEYS: snapshot, meta, embedder. ARGV: the server's run, the embedder ('-' for none) and the last change, as the copy
-- knows them; who writes it, the number of the part, its bytes, and with the last one the head ('' before). Returns 0,
-- and writes nothing, if anything is not as the copy has it, or if all of the user is to end.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local bound = redis.call('HGET', KEYS[3], 'bound')
if run ~= ARGV[1] or (bound and '=' .. bound or '-') ~= ARGV[2] then return 0 end
if redis.call('HGET', KEYS[2], 'version') ~= ARGV[3] or redis.call('PTTL', KEYS[2]) ~= -1 then return 0 end
if ARGV[5] == '0' then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'by', ARGV[4])
elseif redis.call('HGET', KEYS[1], 'by') ~= ARGV[4] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[5], ARGV[6])
if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'head', ARGV[7]) end
return 1
"""

NEAR = """
-- KEYS: vectors. ARGV: how the documents of the user start, the user's digest, then id, vector and document of each as
-- they were read. Writes or removes the documents of those that are still so.
for place = 3, #ARGV, 3 do
  local id, held = ARGV[place], redis.call('HGET', KEYS[1], ARGV[place])
  if not held then
    redis.call('DEL', ARGV[1] .. id)
  elseif held == ARGV[place + 1] and redis.call('HGET', ARGV[1] .. id, 'v') ~= ARGV[place + 2] then
    redis.call('HSET', ARGV[1] .. id, 'u', ARGV[2], 'v', ARGV[place + 2])
  end
end
return 1
"""
