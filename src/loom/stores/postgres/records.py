"""Reading and changing records, jobs and the word index inside a transaction."""

# ruff: noqa: S608 - only constants of this module stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from loom.core.filter import Filter
from loom.core.record import Layer, Record, WorkingBlock
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.errors import StaleWrite
from loom.protocols.memory_store import DeadLetter, Job, Lease
from loom.stores import _sql
from loom.stores._record_table import Keys, check_version, lease_lost, new_jobs, no_record
from loom.stores._search import (
    OWN,
    Place,
    PostingPart,
    TextChange,
    check_numbers,
    joined_run,
    parts_of,
    runs_of,
    without,
)
from loom.stores.base import LeaseRequest, reading
from loom.stores.postgres.connection import Database, Row, fetch, one, owner_of, rows, run, run_many, seen
from loom.text.words import query_terms

# Filters as conditions of Postgres.

POSTGRES = _sql.Dialect(true="true", false="false", mark="%s", most_values=10_000)
"""Postgres takes 65,535 values in a statement."""

condition = POSTGRES.condition


# The word index: rows of postings, which the server keeps and hands over, and whose scores are computed here.
#
# A search reads the rows of its words, 8 bytes for each text that holds one of them, and adds them up in arrays, which
# takes far less than to have the server join and sum as many rows. Every statistic is of one user alone: what others
# write changes no score.

# One row after another is looked up by its key: left to itself, a planner that knows little may read all of them.
_PLACES = (
    "FROM unnest(%b::bigint[], %b::text[], %b::text[]) AS g (run, term, signal) "
    "CROSS JOIN LATERAL (SELECT p.ctid, p.entries FROM postings AS p "
    "WHERE p.owner = %s AND p.run = g.run AND p.term = g.term AND p.signal = g.signal OFFSET 0) AS h"
)
_READ = f"SELECT g.run, g.term, g.signal, h.entries {_PLACES}"
_DROP = f"DELETE FROM postings WHERE owner = %s AND ctid = ANY(ARRAY(SELECT h.ctid {_PLACES}))"
_WRITE = (
    "INSERT INTO postings (owner, run, term, signal, entries) "
    "SELECT %s, * FROM unnest(%b::bigint[], %b::text[], %b::text[], %b::bytea[]) "
    "ON CONFLICT (owner, run, term, signal) DO UPDATE SET entries = "
)
_AT_ONCE = 2_000
"""Rows that are handed to the driver at once, which turns them into bytes on the event loop."""
_WORD = 6
"""Characters of a word, about."""
_SET = f"{_WRITE} excluded.entries"
_APPEND = f"{_WRITE} postings.entries || excluded.entries"
_JOIN = (
    "WITH small AS (DELETE FROM postings WHERE owner = %s AND run >= %s RETURNING *) "
    "INSERT INTO postings (owner, run, term, signal, entries) "
    "SELECT owner, %s, term, signal, string_agg(entries, '') FROM small GROUP BY owner, term, signal"
)
_COUNT = (
    "INSERT INTO lengths (owner, signal, texts, words) "
    "SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::bigint[]) ON CONFLICT (owner, signal) "
    "DO UPDATE SET texts = lengths.texts + excluded.texts, words = lengths.words + excluded.words"
)
_ASKED = (
    "SELECT h.term, h.signal, h.entries, l.texts, l.words FROM unnest(%s::bigint[]) AS g (run) CROSS JOIN LATERAL "
    "(SELECT p.term, p.signal, p.entries FROM postings AS p "
    "WHERE p.owner = %s AND p.run = g.run AND p.term = ANY(%s) OFFSET 0) AS h "
    "JOIN lengths AS l ON l.owner = %s AND l.signal = h.signal"
)


async def read(work: Callable[[], object], *texts: str) -> None:
    """Take texts into a change or out of it; where they are long, in a thread."""
    await off_loop(sum(map(len, texts)), work)


async def write_index(db: Database, owner: UUID, change: TextChange, *, before: int, size: int) -> None:
    """Write a change of a user who had `before` numbers and now has `size`."""
    start = joined_run(before, size)
    if start is not None:
        await run(db, _JOIN, owner, start, start)
    chars = sum(words for _, words in change.lengths.values()) * _WORD
    added, gone = await off_loop(chars, lambda: (change.entries(size), change.gone(size)))
    if gone:
        await _take_out(db, owner, gone, added)
    places = list(added)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        await run(db, _APPEND, owner, *_columns(some), [added[place] for place in some])
    if change.lengths:
        signals = list(change.lengths)
        counts = ([grown[place] for grown in change.lengths.values()] for place in (0, 1))
        await run(db, _COUNT, owner, signals, *counts)
    if any(texts < 0 for texts, _ in change.lengths.values()):
        await run(db, "DELETE FROM lengths WHERE owner = %s AND texts = 0", owner)


async def _take_out(db: Database, owner: UUID, gone: Mapping[Place, set[int]], added: dict[Place, bytes]) -> None:
    """Take numbers out of places; what is added to such a place is written with it, and taken from `added`."""
    held = {(run, term, signal): data for run, term, signal, data in await fetch(db, _READ, *_columns(gone), owner)}
    with reading("the word index"):
        rest = without(held, gone)
    left = {place: data + added.pop(place, b"") for place, data in rest.items()}
    kept = {place: data for place, data in left.items() if data}
    if kept:
        await run(db, _SET, owner, *_columns(kept), list(kept.values()))
    if len(kept) < len(left):
        await run(db, _DROP, owner, *_columns(left.keys() - kept.keys()), owner)


def _columns(places: Collection[Place]) -> list[list[Any]]:
    return [list(column) for column in zip(*places, strict=True)]


async def parts(db: Database, owner: UUID, text: str, size: int) -> list[PostingPart]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    spoken: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    lengths: dict[str, tuple[int, int]] = {}
    asked = (list(runs_of(size)), owner, list(query_terms(text)), owner)
    for term, signal, entries, texts, words in await fetch(db, _ASKED, *asked):
        spoken[term, signal].append(entries)
        lengths[signal] = texts, words
    with reading("the word index"):
        found = parts_of(spoken, lengths)
        check_numbers(found, size)
    return found


_INSERT = "INSERT INTO records SELECT * FROM json_populate_recordset(NULL::records, %s::json)"
_UPDATE = f"UPDATE records SET {', '.join(f'{name} = %s' for name in _sql.COLUMNS)} WHERE owner = %s AND number = %s"
_KEYS = (
    "INSERT INTO keys (owner, number, kind, text) SELECT %s, * FROM unnest(%b::bigint[], %b::text[], %b::text[]) "
    "ON CONFLICT (owner, number, kind) DO UPDATE SET text = excluded.text"
)


class _Write(NamedTuple):
    """A change that is being made: what it does to the word index, and the numbers of the records that are new."""

    db: Database
    scope: Scope
    owner: UUID
    words: TextChange
    new: dict[str, int]
    replaced: set[int]
    """The numbers of the records that got another text."""


async def epoch(db: Database, scope: Scope) -> str:
    """A token that changes whenever text of the user is removed; for an unknown user, when any user is forgotten."""
    found = await one(db, "SELECT life, removed FROM users WHERE owner = %s", owner_of(scope))
    if found is not None:
        return f"{found[0]}.{found[1]}"
    # A user who came and went while another call prepared a write is not the user who was never there.
    gone = await one(db, "SELECT users FROM forgotten")
    return f"-{gone[0] if gone else 0}"


async def check_epoch(db: Database, scope: Scope, since: str | None) -> None:
    """Refuse a write that was prepared before text of its user was removed."""
    if since is not None and await epoch(db, scope) != since:
        raise StaleWrite(scope.user_id)


async def change(
    db: Database, scope: Scope, *, put: Sequence[Record] = (), delete: Sequence[str] = (), keys: Keys | None = None
) -> int:
    """Delete, put and set keys, in this order; returns how many records were deleted."""
    write = _Write(db, scope, owner_of(scope), TextChange(), {}, set())
    deleted = await _delete(write, delete) if delete else 0
    if put:
        await _put(write, put)
    if keys:
        await _set_keys(write, keys)
    if deleted or write.replaced:
        await run(db, "UPDATE users SET removed = removed + 1 WHERE owner = %s", write.owner)
    if put or deleted or keys:
        size = max(write.new.values()) + 1 if write.new else await next_number(db, write.owner)
        await write_index(db, write.owner, write.words, before=size - len(write.new), size=size)
    return deleted


async def next_number(db: Database, owner: UUID) -> int:
    """How many numbers the user's records have taken."""
    found = await one(db, "SELECT next_number FROM users WHERE owner = %s", owner)
    return found[0] if found else 0


async def take_numbers(db: Database, scope: Scope, amount: int, *counters: str) -> int:
    """Register the user and raise these counters of theirs; returns the old value of the first, a number never used."""
    sums = ", ".join(f"{name} = users.{name} + excluded.{name}" for name in counters)
    found = await one(
        db,
        f"INSERT INTO users (owner, namespace, user_id, life, {', '.join(counters)}) "
        f"VALUES (%s, %s, %s, (SELECT users FROM forgotten){', %s' * len(counters)}) "
        f"ON CONFLICT (owner) DO UPDATE SET {sums} RETURNING {counters[0]}",
        *(owner_of(scope), scope.namespace, scope.user_id, *([amount] * len(counters))),
    )
    assert found is not None
    return int(found[0]) - amount


async def _put(write: _Write, records: Sequence[Record]) -> None:
    db, scope, owner, words, *_ = write
    stored: dict[str, tuple[Record, int]] = {}
    for row in await _of_ids(db, scope.for_user(), [record.id for record in records], f"{_sql.SELECTED}, r.number"):
        record = _sql.from_row(row)
        stored[record.id] = (record, row[-1])
    wanted = _newest(records, {id: record for id, (record, _) in stored.items()})
    new = [record for id, record in wanted.items() if id not in stored]
    first = await take_numbers(db, scope, len(new), "next_number", "records")
    write.new.update((record.id, first + place) for place, record in enumerate(new))
    if new:
        await run(db, _INSERT, json.dumps([_fields(owner, write.new[record.id], record) for record in new]))
    await read(lambda: [words.add(OWN, write.new[r.id], r.text) for r in new], *(r.text for r in new))
    old = [(record, *stored[id]) for id, record in wanted.items() if id in stored]
    await run_many(db, _UPDATE, [(*_sql.to_row(record), owner, number) for record, _, number in old])
    changed = [(record, before, number) for record, before, number in old if record.text != before.text]
    if changed:
        await read(partial(_reindex, words, changed), *(r.text for pair in changed for r in pair[:2]))
        # The vector of another text would find the record for words it no longer says.
        write.replaced.update(number for _, _, number in changed)
        await run(db, "DELETE FROM vectors WHERE owner = %s AND number = ANY(%s)", owner, list(write.replaced))


def _reindex(words: TextChange, changed: Sequence[tuple[Record, Record, int]]) -> None:
    for record, before, number in changed:
        words.remove(OWN, number, before.text)
        words.add(OWN, number, record.text)


def _fields(owner: UUID, number: int, record: Record) -> dict[str, Any]:
    """A new row: what is NULL is left out."""
    columns = (
        (name, value) for name, value in zip(_sql.COLUMNS, _sql.to_row(record), strict=True) if value is not None
    )
    return {"owner": str(owner), "number": number, **dict(columns)}


def _newest(records: Sequence[Record], stored: Mapping[str, Record]) -> dict[str, Record]:
    """The record to write under each id: the last of the batch, if each could follow the one before it."""
    wanted: dict[str, Record] = {}
    for record in records:
        if isinstance(record, WorkingBlock):
            check_version(record, wanted.get(record.id) or stored.get(record.id))
        wanted[record.id] = record
    return wanted


async def numbers_of(db: Database, scope: Scope, ids: Iterable[str]) -> dict[str, int]:
    """The numbers of those of the records that the scope sees."""
    return dict(await _of_ids(db, scope, ids, "r.id, r.number"))


async def _of_ids(db: Database, scope: Scope, ids: Iterable[str], columns: str) -> list[Row]:
    """These columns of those of the records that the scope sees.

    One after another is looked up by its id: left to itself, a planner that knows nothing of a new user may read all.
    """
    shown, values = seen(scope)
    of_id = f"SELECT {columns} FROM records AS r WHERE {shown} AND r.id = g.id"
    sql = f"SELECT r.* FROM unnest(%s::text[]) AS g (id) CROSS JOIN LATERAL ({of_id} OFFSET 0) AS r"
    return await fetch(db, sql, list(dict.fromkeys(ids)), *values)


async def _delete(write: _Write, ids: Iterable[str]) -> int:
    db, scope, owner, words, *_ = write
    found = await _of_ids(db, scope, ids, f"{_sql.SELECTED}, r.number")
    texts = {row[-1]: _sql.from_row(row).text for row in found}
    if not texts:
        return 0
    gone = {(number, OWN): text for number, text in texts.items()}
    gone |= {(number, f"{OWN}.{kind}"): text for (number, kind), text in (await _keys_of(write, texts)).items()}
    await read(lambda: [words.remove(kind, number, text) for (number, kind), text in gone.items()], *gone.values())
    await run(db, "UPDATE users SET records = records - %s WHERE owner = %s", len(texts), owner)
    for table in ("keys", "vectors", "records"):
        await run(db, f"DELETE FROM {table} WHERE owner = %s AND number = ANY(%s)", owner, list(texts))
    return len(texts)


async def _keys_of(write: _Write, numbers: Iterable[int]) -> dict[tuple[int, str], str]:
    """The keys of these records, by number and kind."""
    sql = "SELECT number, kind, text FROM keys WHERE owner = %s AND number = ANY(%s)"
    return {(number, kind): text for number, kind, text in await rows(write.db, sql, write.owner, list(numbers))}


async def _set_keys(write: _Write, keys: Keys) -> None:
    db, scope, owner, words, new, _ = write
    old = await numbers_of(db, scope, keys.keys() - new.keys()) if keys.keys() - new.keys() else {}
    held = await _keys_of(write, old.values()) if old else {}
    kept: dict[tuple[int, str], str] = {}
    gone: list[tuple[UUID, int, str]] = []
    changes: list[tuple[Callable[[str, int, str], object], str, int, str]] = []
    for id, of_record in keys.items():
        number = new[id] if id in new else old.get(id)
        if number is None:
            raise no_record(id, "keys")
        for kind, text in of_record.items():
            before = held.get((number, kind))
            if before is not None:
                changes.append((words.remove, f"{OWN}.{kind}", number, before))
            if text.strip():
                changes.append((words.add, f"{OWN}.{kind}", number, text))
                kept[number, kind] = text
            elif before is not None:
                gone.append((owner, number, kind))
    await read(lambda: [do(kind, number, text) for do, kind, number, text in changes], *(c[-1] for c in changes))
    if kept:
        numbers, kinds = zip(*kept, strict=True)
        await run(db, _KEYS, owner, list(numbers), list(kinds), list(kept.values()))
    await run_many(db, "DELETE FROM keys WHERE owner = %s AND number = %s AND kind = %s", gone)


async def get(db: Database, scope: Scope, id: str) -> Record | None:
    """The record, if the scope sees it."""
    sql, values = seen(scope)
    stored = await one(db, f"SELECT {_sql.SELECTED} FROM records AS r WHERE {sql} AND r.id = %s", *values, id)
    return None if stored is None else _sql.from_row(stored)


async def fitting(
    db: Database, sql: str, values: Sequence[Any], *, where: Filter | None, fits: _sql.Condition, limit: int | None
) -> AsyncGenerator[Row]:
    """The rows of this query that start with a record which the filter fits, at most `limit`."""
    if where is None or fits.exact:
        for row in await fetch(db, f"{sql} LIMIT %s", *values, limit):
            yield row
        return
    amount = 0
    async with db.cursor("fitting") as cursor:
        async for row in await cursor.execute(sql.encode(), values):
            if where.matches(_sql.from_row(row)):
                yield row
                amount += 1
                if amount == limit:
                    break


async def select(
    db: Database, scope: Scope, *, where: Filter | None, after: str | None, limit: int | None
) -> list[Record]:
    """The records that fit, by id."""
    sql, values = seen(scope)
    fits = condition(where)
    query = f"SELECT {_sql.SELECTED} FROM records AS r WHERE {sql} AND r.id > %s AND {fits.sql} ORDER BY r.id"
    found = fitting(db, query, (*values, after or "", *fits.values), where=where, fits=fits, limit=limit)
    return [_sql.from_row(row) async for row in found]


def counted(scope: Scope) -> str:
    """The statement for how many records a user has in all."""
    return f"SELECT records FROM users WHERE owner = '{owner_of(scope)}'"


async def count(db: Database, scope: Scope, where: Filter | None) -> int:
    """How many records fit."""
    fits = condition(where)
    if where is not None and not fits.exact:
        return len(await select(db, scope, where=where, after=None, limit=None))
    sql, values = seen(scope)
    found = await one(db, f"SELECT count(*) FROM records AS r WHERE {sql} AND {fits.sql}", *values, *fits.values)
    return int(found[0]) if found else 0


async def touch(db: Database, scope: Scope, ids: Iterable[str], at: datetime) -> None:
    """Count an access of each episode that is there."""
    sql, values = seen(scope)
    named = Counter(ids)
    for times in sorted(set(named.values())):
        await run(
            db,
            "UPDATE records AS r SET accesses = accesses + %s, accessed_at = greatest(accessed_at, %s) "
            f"WHERE {sql} AND r.id = ANY(%s) AND r.kind = 'episode'",
            *(times, _sql.to_micros(at), *values, [id for id, often in named.items() if often == times]),
        )


async def prune(
    db: Database, scope: Scope, layer: Layer, *, keep: int | None, before: datetime | None, now: datetime
) -> tuple[str, ...]:
    """Archive what is too much or too old, least recently accessed first."""
    sql, values = seen(scope)
    live = f"FROM records AS r WHERE {sql} AND r.layer = %s AND r.archived_at IS NULL"
    values = (*values, int(layer))
    start = None if before is None else _sql.to_micros(before)
    is_old = "coalesce(r.recorded_at < %s::bigint, false)"
    found = await one(db, f"SELECT count(*), count(*) FILTER (WHERE {is_old}) {live}", start, *values)
    amount, old = found or (0, 0)
    excess = _sql.excess_of(amount, old, keep)
    if not old and not excess:
        return ()
    sql = f"SELECT r.number, r.id, {is_old} {live} {_sql.EVICTION_ORDER}"
    gone = _sql.to_archive(await rows(db, sql, start, *values), excess)
    sql = "UPDATE records SET archived_at = %s WHERE owner = %s AND number = ANY(%s)"
    await run(db, sql, _sql.to_micros(now), owner_of(scope), list(gone))
    return tuple(gone.values())


async def count_sessions(db: Database, scope: Scope) -> int:
    """How many conversations of the scope the schema holds."""
    session, values = ("IS NOT NULL", ()) if scope.session_id is None else ("= %s", (scope.session_id,))
    sql = f"SELECT count(DISTINCT session_id) FROM checkpoint_nodes WHERE owner = %s AND session_id {session}"
    found = await one(db, sql, owner_of(scope), *values)
    return int(found[0]) if found else 0


async def forget_session(db: Database, scope: Scope) -> dict[str, int]:
    """Remove the episodes of a session; returns how many."""
    found = await rows(
        db, "SELECT id FROM records WHERE owner = %s AND session_id = %s", owner_of(scope), scope.session_id
    )
    return {"episode": await change(db, scope, delete=[id for (id,) in found])}


async def forget_user(db: Database, scope: Scope) -> dict[str, int]:
    """Remove all records of a user with keys, vectors and index, and their name; returns how many of each kind."""
    owner = owner_of(scope)
    removed = dict(await rows(db, "SELECT kind, count(*) FROM records WHERE owner = %s GROUP BY kind", owner))
    for table in ("postings", "keys", "vectors", "records", "lengths", "users", "marks"):
        await run(db, f"DELETE FROM {table} WHERE owner = %s", owner)
    await run(db, "UPDATE forgotten SET users = users + 1")
    return removed


# The jobs of all users: who holds each, and which were given up.
#
# Workers take jobs with SKIP LOCKED, so that any number of them share the work and none waits for another. A lease is
# told from every other by a token that the server makes for it.

_FROM = "FROM jobs AS j JOIN users AS u ON u.owner = j.owner"
_DUE = """
SELECT j.owner FROM jobs AS j WHERE j.dead_at IS NULL AND j.run_at <= %s AND (j.until IS NULL OR j.until <= %s)
AND {whose} ORDER BY j.run_at, j.id LIMIT %s
"""
_TAKE = f"""
WITH due AS (
    SELECT j.number FROM jobs AS j WHERE j.dead_at IS NULL AND j.run_at <= %s
    AND (j.until IS NULL OR j.until <= %s) AND {{whose}} ORDER BY j.run_at, j.id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE jobs AS j SET attempts = attempts + 1, token = gen_random_uuid()::text, until = %s
FROM due, users AS u WHERE u.owner = %s AND j.owner = %s AND j.number = due.number
RETURNING {_sql.JOB}, j.token
"""
_COUNT_ALL = """
SELECT count(*) FILTER (WHERE dead_at IS NULL AND run_at <= %s AND (until IS NULL OR until <= %s)),
    count(*) FILTER (WHERE dead_at IS NULL AND until > %s), count(*) FILTER (WHERE dead_at IS NOT NULL) FROM jobs
"""
_IS_FREE = "SELECT pg_try_advisory_xact_lock(%s)"
_OLDER = (
    "EXISTS (SELECT FROM jobs AS o WHERE o.owner = %s AND o.dead_at IS NULL AND o.until > %s "
    "AND (o.run_at, o.id) < (j.run_at, j.id)"
)
_MOST_TURNS = 1000
"""Users that a round remembers, at most."""
_HELD = "owner = %s AND id = %s AND token = %s"


async def enqueue(db: Database, scope: Scope, jobs: Sequence[Job]) -> int:
    """Queue the jobs whose key is not open yet; returns how many."""
    if not jobs:
        return 0
    owner = owner_of(scope)
    found = await rows(db, "SELECT key, id FROM jobs WHERE owner = %s AND dead_at IS NULL AND (key = ANY(%s) "
                           "OR id = ANY(%s))", owner, [job.key for job in jobs], [job.id for job in jobs])  # fmt: skip
    new = new_jobs(jobs, {key for key, _ in found}, {id for _, id in found})
    first = await take_numbers(db, scope, len(new), "next_job")
    await run_many(
        db,
        "INSERT INTO jobs (owner, number, session_id, id, kind, key, run_at, payload, attempts) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [(owner, first + place, *_sql.job_to_row(job)) for place, job in enumerate(new)],
    )
    return len(new)


async def lease(db: Database, asked: LeaseRequest, turns: set[UUID]) -> tuple[Lease, ...]:
    """Take due jobs, oldest first: of one user, or of users who had no turn in this round.

    Each user is asked alone, so that rows of one partition are locked and changed. `turns` are the users who had
    theirs: one with very many jobs does not keep the others waiting.
    """
    if asked.scope is not None:
        return tuple(await _taken(db, asked, owner_of(asked.scope), asked.limit))
    now = _sql.to_micros(asked.now)
    leases: list[Lease] = []
    passed: set[UUID] = set()
    while (left := asked.limit - len(leases)) > 0:
        whose, values = "NOT j.owner = ANY(%s)", ([*turns | passed],)
        if asked.kinds is not None:
            whose, values = f"{whose} AND j.kind = ANY(%s)", (*values, list(asked.kinds))
        due = Counter(owner for (owner,) in await rows(db, _DUE.format(whose=whose), now, now, *values, left))
        if not due and not turns - passed:
            break
        if not due:
            turns.clear()
        for owner, amount in due.items():
            leases += await _taken(db, asked, owner, amount)
        passed |= due.keys()
    turns |= {owner_of(lease.job.scope) for lease in leases}
    if len(turns) > _MOST_TURNS:
        turns.clear()
    return tuple(sorted(leases, key=lambda lease: (lease.job.run_at, lease.job.id)))


async def _taken(db: Database, asked: LeaseRequest, owner: UUID, limit: int) -> list[Lease]:
    """Take due jobs of one user, oldest first."""
    whose, values = ("j.owner = %s", (owner,)) if asked.scope is None else _covered(asked.scope)
    if asked.kinds is not None:
        whose, values = f"{whose} AND j.kind = ANY(%s)", (*values, list(asked.kinds))
    now, until = _sql.to_micros(asked.now), _sql.to_micros(asked.until)
    if asked.in_order:
        # One at a time looks whom somebody works for: of two who look at once, each would find nobody.
        if await one(db, _IS_FREE, int.from_bytes(owner.bytes[:8], signed=True)) != (True,):
            return []
        older, kinds = (_OLDER, ()) if asked.kinds is None else (f"{_OLDER} AND o.kind = ANY(%s)", (list(asked.kinds),))
        whose, values, limit = f"{whose} AND NOT {older})", (*values, owner, now, *kinds), 1
    taken = await rows(db, _TAKE.format(whose=whose), now, now, *values, limit, until, owner, owner)
    taken.sort(key=lambda row: (row[6], row[3]))
    return [Lease(job=_sql.job_from_row(row), token=row[-1], until=asked.until) for row in taken]


async def close(db: Database, held: Lease) -> None:
    """The job is done."""
    await _change_held(db, held, f"DELETE FROM jobs WHERE {_HELD}")


async def fail(db: Database, held: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
    """Put the job back, or give it up."""
    if retry_at is None:
        # Without what Postgres cannot hold: why a job was given up must not get lost over a character.
        storable = reason.encode(errors="replace").decode().replace("\0", "\ufffd")
        what, values = "reason = %s, dead_at = %s", (storable, _sql.to_micros(now))
    else:
        what, values = "run_at = %s", (_sql.to_micros(retry_at),)
    await _change_held(db, held, f"UPDATE jobs SET token = NULL, until = NULL, {what} WHERE {_HELD}", *values)


async def dead_letters(db: Database, scope: Scope) -> tuple[DeadLetter, ...]:
    """The jobs of the scope that were given up, the earliest first."""
    whose, values = _covered(scope)
    sql = f"SELECT {_sql.JOB}, j.reason, j.dead_at {_FROM} WHERE j.dead_at IS NOT NULL AND {whose}"
    found = await rows(db, f"{sql} ORDER BY j.dead_at, j.number", *values)
    return tuple(_sql.letter_from_row(row) for row in found)


async def pending(db: Database, scope: Scope) -> int:
    """How many jobs of the scope are open."""
    whose, values = _covered(scope)
    found = await one(db, f"SELECT count(*) FROM jobs AS j WHERE j.dead_at IS NULL AND {whose}", *values)
    return int(found[0]) if found else 0


async def job_counts(db: Database, now: datetime) -> dict[str, int]:
    """How many jobs of all users are due, leased and given up."""
    at = _sql.to_micros(now)
    return dict(zip(_sql.JOB_STATES, await one(db, _COUNT_ALL, at, at, at) or (), strict=True))


async def open_jobs(db: Database, scope: Scope) -> tuple[Job, ...]:
    """The open jobs of the scope, by id."""
    whose, values = _covered(scope)
    found = await rows(db, f"SELECT {_sql.JOB} {_FROM} WHERE j.dead_at IS NULL AND {whose} ORDER BY j.id", *values)
    return tuple(_sql.job_from_row(row) for row in found)


async def forget(db: Database, scope: Scope) -> dict[str, int]:
    """Remove the jobs and dead letters of the scope; returns how many of each."""
    whose, values = _covered(scope)
    found = await rows(db, f"DELETE FROM jobs AS j WHERE {whose} RETURNING j.dead_at IS NOT NULL", *values)
    dead = sum(is_dead for (is_dead,) in found)
    return {"job": len(found) - dead, "dead_letter": dead}


async def _change_held(db: Database, held: Lease, sql: str, *values: Any) -> None:
    if not await run(db, sql, *values, owner_of(held.job.scope), held.job.id, held.token):
        raise lease_lost(held)


def _covered(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    if scope.session_id is None:
        return "j.owner = %s", (owner_of(scope),)
    return "j.owner = %s AND j.session_id = %s", (owner_of(scope), scope.session_id)
