"""Reading and changing records, jobs and the word index inside a transaction."""

# ruff: noqa: S608 - only constants of this module stand in SQL; every value is bound
from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from loom.core.filter import Filter
from loom.core.record import Layer, Record, WorkingBlock
from loom.core.scope import Scope
from loom.core.threads import off_loop
from loom.errors import StaleWrite
from loom.protocols.memory_store import DeadLetter, Job, Lease, Newest
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
from loom.stores.postgres.connection import (
    Database,
    Packed,
    Row,
    fetch,
    one,
    owner_of,
    rows,
    run,
    seen,
)
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
    "FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS g (run, term, signal) "
    "CROSS JOIN LATERAL (SELECT p.ctid, p.entries FROM postings AS p "
    "WHERE p.owner = %s AND p.run = g.run AND p.term = g.term AND p.signal = g.signal OFFSET 0) AS h"
)
_READ = f"SELECT g.run, g.term, g.signal, h.entries {_PLACES}"
_DROP = f"DELETE FROM postings WHERE owner = %s AND ctid = ANY(ARRAY(SELECT h.ctid {_PLACES}))"
_WRITE = (
    "INSERT INTO postings (owner, run, term, signal, entries) "
    "SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bytea[]) "
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
# The nearest come with the words, in a row of their own: packed numbers and cosines, nearest first.
_ASKED_BOTH = (
    f"{_ASKED} UNION ALL SELECT NULL, NULL, (SELECT string_agg(int8send(n.number) || float8send(n.score), '' "
    "ORDER BY n.score DESC) FROM ({}) AS n), NULL, NULL"
)


# Arrays as Postgres receives them: made here, they cost a fraction of what the driver needs for hundreds of values.
_ARRAY_HEAD = Struct(">iiIii")
_NO_ARRAY = Struct(">iiI")
_BYTEA, _BIGINT, _TEXT = 17, 20, 25
_BIGINTS = np.dtype([("bytes", ">i4"), ("number", ">i8")])


def bigints(numbers: Collection[int]) -> Packed:
    """Numbers as an array of type bigint."""
    if not numbers:
        return Packed(_NO_ARRAY.pack(0, 0, _BIGINT))
    made = np.empty(len(numbers), _BIGINTS)
    made["bytes"] = 8
    made["number"] = list(numbers)
    return Packed(_ARRAY_HEAD.pack(1, 0, _BIGINT, len(numbers), 1) + made.tobytes())


def texts(values: Iterable[str]) -> Packed:
    """Texts as an array of type text."""
    return _packed_array(_TEXT, [value.encode() for value in values])


def byteas(values: Sequence[bytes]) -> Packed:
    """Bytes as an array of type bytea."""
    return _packed_array(_BYTEA, values)


def _packed_array(type_number: int, values: Sequence[bytes]) -> Packed:
    if not values:
        return Packed(_NO_ARRAY.pack(0, 0, type_number))
    data = [len(value).to_bytes(4, "big") + value for value in values]
    return Packed(_ARRAY_HEAD.pack(1, 0, type_number, len(values), 1) + b"".join(data))


class Batch:
    """Statements that change different rows, and so can be sent as one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._statements: list[str] = []
        self._values: list[Any] = []

    def add(self, sql: str, *values: Any) -> None:
        """Run this with the others. None of them sees what another one did."""
        self._statements.append(sql)
        self._values += values

    async def send(self) -> None:
        """Run them all, or nothing if there are none."""
        if len(self._statements) == 1:
            await run(self._db, self._statements[0], *self._values)
        elif self._statements:
            steps = ", ".join(f"step{place} AS ({sql})" for place, sql in enumerate(self._statements))
            await run(self._db, f"WITH {steps} SELECT", *self._values)
        self._statements, self._values = [], []


async def read(work: Callable[[], object], *texts: str) -> None:
    """Take texts into a change or out of it; where they are long, in a thread."""
    await off_loop(sum(map(len, texts)), work)


async def write_index(db: Database, batch: Batch, owner: UUID, change: TextChange, *, before: int, size: int) -> None:
    """Write a change of a user who had `before` numbers and now has `size`, mostly with the rest of a batch."""
    start = joined_run(before, size)
    if start is not None:
        await run(db, _JOIN, owner, start, start)
    chars = sum(words for _, words in change.lengths.values()) * _WORD
    added, gone = await off_loop(chars, lambda: (change.entries(size), change.gone(size)))
    if gone:
        await _take_out(db, batch, owner, gone, added)
    places = list(added)
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        values = (owner, *_columns(some), byteas([added[place] for place in some]))
        if len(places) > _AT_ONCE:
            await run(db, _APPEND, *values)
        else:
            batch.add(_APPEND, *values)
    if change.lengths:
        counts = (bigints([grown[place] for grown in change.lengths.values()]) for place in (0, 1))
        batch.add(_COUNT, owner, texts(change.lengths), *counts)


async def _take_out(
    db: Database, batch: Batch, owner: UUID, gone: Mapping[Place, set[int]], added: dict[Place, bytes]
) -> None:
    """Take numbers out of places; what is added to such a place is written with it, and taken from `added`."""
    held = {(run, term, signal): data for run, term, signal, data in await fetch(db, _READ, *_columns(gone), owner)}
    with reading("the word index"):
        rest = without(held, gone)
    left = {place: data + added.pop(place, b"") for place, data in rest.items()}
    kept = {place: data for place, data in left.items() if data}
    if kept:
        batch.add(_SET, owner, *_columns(kept), byteas(list(kept.values())))
    if len(kept) < len(left):
        batch.add(_DROP, owner, *_columns(left.keys() - kept.keys()), owner)


def _columns(places: Collection[Place]) -> tuple[Packed, Packed, Packed]:
    runs, terms, signals = zip(*places, strict=True)
    return bigints(runs), texts(terms), texts(signals)


async def parts(db: Database, owner: UUID, text: str, size: int) -> list[PostingPart]:
    """What each term of a text adds to each signal, where the user has `size` numbers; every score is above 0."""
    return _parts_of(await fetch(db, _ASKED, *_asked(owner, text, size)), size)


async def parts_and_nearest(
    db: Database, owner: UUID, text: str, size: int, nearest: tuple[str, tuple[Any, ...]]
) -> tuple[list[PostingPart], bytes]:
    """The same, and what a query for numbers and scores finds: 8 bytes for each of both, the highest score first."""
    sql, values = nearest
    *found, last = await fetch(db, _ASKED_BOTH.format(sql), *_asked(owner, text, size), *values)
    return _parts_of(found, size), last[2] or b""


def _asked(owner: UUID, text: str, size: int) -> tuple[Any, ...]:
    return (list(runs_of(size)), owner, list(query_terms(text)), owner)


def _parts_of(found: Iterable[Row], size: int) -> list[PostingPart]:
    spoken: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
    lengths: dict[str, tuple[int, int]] = {}
    for term, signal, entries, texts, words in found:
        spoken[term, signal].append(entries)
        lengths[signal] = texts, words
    with reading("the word index"):
        made = parts_of(spoken, lengths)
        check_numbers(made, size)
    return made


_INSERT = (
    "INSERT INTO records SELECT * FROM json_populate_recordset(NULL::records, %s::json) "
    f"ON CONFLICT (owner, number) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _sql.COLUMNS)}"
)
_KEYS = (
    "INSERT INTO keys (owner, number, kind, text) SELECT %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[]) "
    "ON CONFLICT (owner, number, kind) DO UPDATE SET text = excluded.text"
)
_GROWN = ("next_number", "records", "next_job", "removed")
_REGISTER = (
    f"INSERT INTO users (owner, namespace, user_id, life, {', '.join(_GROWN)}) "
    "VALUES (%s, %s, %s, (SELECT users FROM forgotten), %s, %s, %s, %s) ON CONFLICT (owner) "
    f"DO UPDATE SET {', '.join(f'{name} = users.{name} + excluded.{name}' for name in _GROWN)}"
)
_QUEUE = "INSERT INTO jobs SELECT * FROM json_populate_recordset(NULL::jobs, %s::json)"
_QUEUED = ("session_id", "id", "kind", "key", "run_at", "payload", "attempts")
_COLUMNS = len(_sql.COLUMNS)


class UserRow(NamedTuple):
    """What a write begins with: the user's epoch and counters, None and 0 for an unknown user."""

    life: int | None
    removed: int | None
    next_number: int
    next_job: int
    forgotten: int

    @property
    def epoch(self) -> str:
        """A token that changes whenever text of the user is removed; of an unknown one, when any is forgotten."""
        # A user who came and went while another call prepared a write is not the user who was never there.
        return f"-{self.forgotten}" if self.life is None else f"{self.life}.{self.removed}"

    def check_epoch(self, scope: Scope, since: str | None) -> None:
        """Refuse a write that was prepared before text of its user was removed."""
        if since is not None and self.epoch != since:
            raise StaleWrite(scope.user_id)


def user_look(scope: Scope) -> str:
    """The statement for the row of a user."""
    return (
        "SELECT u.life, u.removed, coalesce(u.next_number, 0), coalesce(u.next_job, 0), coalesce(f.users, 0) "
        f"FROM (SELECT) AS o LEFT JOIN users AS u ON u.owner = '{owner_of(scope)}' LEFT JOIN forgotten AS f ON true"
    )


class Writing:
    """One transaction on what a user has: looks first, and sends what it changes together at the end."""

    def __init__(self, db: Database, scope: Scope, user: UserRow) -> None:
        self.db, self.scope, self.owner, self.user = db, scope, owner_of(scope), user
        self.batch = Batch(db)
        self._words = TextChange()
        self._stored: dict[str, Row] = {}
        """Rows of the records that are there: the columns of a record, its number, and its keys if they count."""
        self._new: dict[str, int] = {}
        self._grown = dict.fromkeys(_GROWN, 0)
        self._is_registered = False

    async def change(self, put: Sequence[Record], delete: Sequence[str], keys: Keys) -> int:
        """Delete, put and set keys, in this order; returns how many records were deleted."""
        if not (put or delete or keys):
            return 0
        await self._look([record.id for record in put], [*delete, *keys])
        deleted = await self._delete(delete) if delete else 0
        if put:
            await self._put(put)
        if keys:
            await self._set_keys(keys)
        before = self.user.next_number
        await write_index(
            self.db, self.batch, self.owner, self._words, before=before, size=before + self._grown["next_number"]
        )
        return deleted

    async def enqueue(self, jobs: Sequence[Job]) -> int:
        """Queue the jobs whose key is not open yet; returns how many."""
        if not jobs:
            return 0
        sql = "SELECT key, id FROM jobs WHERE owner = %s AND dead_at IS NULL AND (key = ANY(%s) OR id = ANY(%s))"
        found = await fetch(self.db, sql, self.owner, texts(job.key for job in jobs), texts(job.id for job in jobs))
        new = new_jobs(jobs, {key for key, _ in found}, {id for _, id in found})
        self._is_registered = True
        self._grown["next_job"] = len(new)
        if new:
            owner, first = str(self.owner), self.user.next_job
            queued = [dict(zip(_QUEUED, _sql.job_to_row(job), strict=True)) for job in new]
            rows = [{"owner": owner, "number": first + place, **job} for place, job in enumerate(queued)]
            self.batch.add(_QUEUE, json.dumps(rows))
        return len(new)

    async def numbers(self, ids: Collection[str]) -> dict[str, int]:
        """The numbers of those of the records that the scope sees, new ones included."""
        missing = [id for id in ids if id not in self._new and id not in self._stored]
        if missing:
            await self._look(missing)
        seen = {id: row[_COLUMNS] for id in ids if (row := self._stored.get(id)) is not None and self._sees(row)}
        return seen | {id: self._new[id] for id in ids if id in self._new}

    async def send(self) -> None:
        """Send what is changed."""
        if self._is_registered:
            named = (self.owner, self.scope.namespace, self.scope.user_id)
            self.batch.add(_REGISTER, *named, *self._grown.values())
        elif any(self._grown.values()):
            sums = ", ".join(f"{name} = {name} + %s" for name in _GROWN)
            self.batch.add(f"UPDATE users SET {sums} WHERE owner = %s", *self._grown.values(), self.owner)
        await self.batch.send()
        if any(texts < 0 for texts, _ in self._words.lengths.values()):
            await run(self.db, "DELETE FROM lengths WHERE owner = %s AND texts = 0", self.owner)

    async def _look(self, ids: Iterable[str], keyed: Iterable[str] = ()) -> None:
        """Read these records of the user, some of them with their keys.

        One after another is looked up by its id: left to itself, a planner that knows nothing of a new user may read
        all.
        """
        asked = dict.fromkeys(ids, "") | dict.fromkeys(keyed, "k")
        keys = (
            "CASE WHEN g.how = 'k' THEN (SELECT json_object_agg(k.kind, k.text)::text FROM keys AS k "
            "WHERE k.owner = %s AND k.number = r.number) END"
        )
        of_id = f"SELECT {_sql.SELECTED}, r.number, {keys} FROM records AS r WHERE r.owner = %s AND r.id = g.id"
        sql = (
            f"SELECT r.* FROM unnest(%s::text[], %s::text[]) AS g (id, how) CROSS JOIN LATERAL ({of_id} OFFSET 0) AS r"
        )
        found = await fetch(self.db, sql, texts(asked), texts(asked.values()), self.owner, self.owner)
        self._stored |= {row[0]: row for row in found}

    def _sees(self, row: Row) -> bool:
        """Whether the scope sees a record; facts and blocks have no layer and no session."""
        return self.scope.session_id is None or row[_LAYER] is None or row[_SESSION] == self.scope.session_id

    async def _delete(self, ids: Iterable[str]) -> int:
        gone = {row[_COLUMNS]: row for id in ids if (row := self._stored.get(id)) is not None and self._sees(row)}
        if not gone:
            return 0
        held: dict[tuple[int, str], str] = {}
        for number, row in gone.items():
            record = _sql.from_row(row)
            held[number, OWN] = record.text
            held |= {(number, f"{OWN}.{kind}"): text for kind, text in _keys_of(row).items()}
            del self._stored[record.id]
        await read(
            lambda: [self._words.remove(kind, number, text) for (number, kind), text in held.items()], *held.values()
        )
        self._grown["records"] -= len(gone)
        self._grown["removed"] = 1
        # At once, and not with the rest: what is put again under the same id takes a new number.
        for table in ("keys", "vectors", "records"):
            await run(self.db, f"DELETE FROM {table} WHERE owner = %s AND number = ANY(%s)", self.owner, list(gone))
        return len(gone)

    async def _put(self, records: Sequence[Record]) -> None:
        words, stored, first = self._words, self._stored, self.user.next_number
        before = {record.id: _sql.from_row(stored[record.id]) for record in records if record.id in stored}
        wanted = _newest(records, before)
        new = [record for id, record in wanted.items() if id not in before]
        self._new.update((record.id, first + place) for place, record in enumerate(new))
        self._is_registered = True
        self._grown["next_number"] = len(new)
        self._grown["records"] += len(new)
        await read(lambda: [words.add(OWN, self._new[r.id], r.text) for r in new], *(r.text for r in new))
        made = {id: _sql.to_row(record) for id, record in wanted.items()}
        numbers = self._new | {id: stored[id][_COLUMNS] for id in before}
        rows = [
            _fields(self.owner, numbers[id], row)
            for id, row in made.items()
            if id not in before or row != stored[id][:_COLUMNS]
        ]
        if rows:
            self.batch.add(_INSERT, json.dumps(rows))
        changed = [(numbers[id], before[id].text, wanted[id].text) for id in before]
        changed = [(number, old, text) for number, old, text in changed if old != text]
        if changed:
            await read(partial(_reindex, words, changed), *(text for one in changed for text in one[1:]))
            # The vector of another text would find the record for words it no longer says.
            self._grown["removed"] = 1
            sql = "DELETE FROM vectors WHERE owner = %s AND number = ANY(%s)"
            await run(self.db, sql, self.owner, [number for number, *_ in changed])

    async def _set_keys(self, keys: Keys) -> None:
        words = self._words
        kept: dict[tuple[int, str], str] = {}
        gone: list[tuple[int, str]] = []
        changes: list[tuple[Callable[[str, int, str], object], str, int, str]] = []
        for id, of_record in keys.items():
            row = self._stored.get(id)
            number = self._new.get(id) if row is None or not self._sees(row) else row[_COLUMNS]
            if number is None:
                raise no_record(id, "keys")
            held = {} if row is None else _keys_of(row)
            for kind, text in of_record.items():
                before = held.get(kind)
                if before is not None:
                    changes.append((words.remove, f"{OWN}.{kind}", number, before))
                if text.strip():
                    changes.append((words.add, f"{OWN}.{kind}", number, text))
                    kept[number, kind] = text
                elif before is not None:
                    gone.append((number, kind))
        await read(lambda: [do(kind, number, text) for do, kind, number, text in changes], *(c[-1] for c in changes))
        if kept:
            numbers, kinds = zip(*kept, strict=True)
            self.batch.add(_KEYS, self.owner, bigints(numbers), texts(kinds), texts(kept.values()))
        if gone:
            numbers, kinds = zip(*gone, strict=True)
            sql = "DELETE FROM keys AS k USING unnest(%s::bigint[], %s::text[]) AS g (number, kind) "
            sql += "WHERE k.owner = %s AND k.number = g.number AND k.kind = g.kind"
            self.batch.add(sql, bigints(numbers), texts(kinds), self.owner)


_LAYER, _SESSION = _sql.COLUMNS.index("layer"), _sql.COLUMNS.index("session_id")


def _keys_of(row: Row) -> dict[str, str]:
    """The keys of a row of a record that was read with them."""
    return {} if row[-1] is None else json.loads(row[-1])


async def change(
    db: Database, scope: Scope, *, put: Sequence[Record] = (), delete: Sequence[str] = (), jobs: Sequence[Job] = ()
) -> int:
    """Delete and put records, and queue jobs; returns how many were deleted."""
    writing = Writing(db, scope, UserRow(*(await one(db, user_look(scope)) or ())))
    deleted = await writing.change(put, delete, {})
    await writing.enqueue(jobs)
    await writing.send()
    return deleted


def _reindex(words: TextChange, changed: Sequence[tuple[int, str, str]]) -> None:
    for number, before, text in changed:
        words.remove(OWN, number, before)
        words.add(OWN, number, text)


def _fields(owner: UUID, number: int, row: Sequence[Any]) -> dict[str, Any]:
    """A row: what is NULL is left out."""
    columns = ((name, value) for name, value in zip(_sql.COLUMNS, row, strict=True) if value is not None)
    return {"owner": str(owner), "number": number, **dict(columns)}


def _newest(records: Sequence[Record], stored: Mapping[str, Record]) -> dict[str, Record]:
    """The record to write under each id: the last of the batch, if each could follow the one before it."""
    wanted: dict[str, Record] = {}
    for record in records:
        if isinstance(record, WorkingBlock):
            check_version(record, wanted.get(record.id) or stored.get(record.id))
        wanted[record.id] = record
    return wanted


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


_NEWEST = " AND r.kind = 'episode' ORDER BY r.recorded_at DESC LIMIT {:d}"


async def select_all(db: Database, scope: Scope, wheres: Sequence[Filter | Newest]) -> list[list[Record]]:
    """The records that fit each filter, by id; with one statement where columns can tell which fit."""
    filters = [where.where if isinstance(where, Newest) else where for where in wheres]
    conditions = [condition(where) for where in filters]
    if not all(fits.exact for fits in conditions):
        found = [await select(db, scope, where=where, after=None, limit=None) for where in filters]
        return [one.of(read) if isinstance(one, Newest) else read for one, read in zip(wheres, found, strict=True)]
    sql, values = seen(scope)
    lists = [
        f"SELECT {place}, listed.* FROM (SELECT {_sql.SELECTED} FROM records AS r WHERE {sql} AND {fits.sql}"
        + (_NEWEST.format(one.limit) if isinstance(one, Newest) else "")
        + ") AS listed"
        for place, (fits, one) in enumerate(zip(conditions, wheres, strict=True))
    ]
    bound = [value for fits in conditions for value in (*values, *fits.values)]
    found = [list[Record]() for _ in wheres]
    for row in await fetch(db, " UNION ALL ".join(lists), *bound):
        found[int(row[0])].append(_sql.from_row(row[1:]))
    return [sorted(records, key=lambda record: record.id) for records in found]


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
_OLDEST = (
    "(j.run_at, j.id) < ALL (SELECT o.run_at, o.id FROM jobs AS o "
    "WHERE o.owner = %s AND o.dead_at IS NULL AND o.until > %s"
)
"""Older than all that are held. Not asked of each job anew: a user may have thousands that are due."""
_MOST_TURNS = 1000
"""Users that a round remembers, at most."""
_HELD = "owner = %s AND id = %s AND token = %s"


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
        kinds = "" if asked.kinds is None else " AND o.kind = ANY(%s)"
        held = (owner, now) if asked.kinds is None else (owner, now, list(asked.kinds))
        whose, values, limit = f"{whose} AND {_OLDEST}{kinds})", (*values, *held), 1
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
