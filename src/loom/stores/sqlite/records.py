"""Reading and changing records and jobs inside a transaction."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, NamedTuple

from loom.core.filter import Eq, Filter
from loom.core.record import Layer, Record, WorkingBlock
from loom.core.scope import Scope
from loom.protocols.memory_store import Around, DeadLetter, Job, Lease, Newest
from loom.stores import _sql
from loom.stores._record_table import Keys, check_version, lease_lost, listed_place, new_jobs, no_record
from loom.stores._search import BEHIND, FIRST, OWN
from loom.stores._sql import to_micros
from loom.stores.base import UNREADABLE, DamagedData, LeaseRequest, described, reading
from loom.stores.sqlite.connection import (
    MADE,
    SELECTED,
    WALKED,
    WRITTEN,
    Database,
    KnownRecords,
    Row,
    condition,
    count_removal,
    each,
    find_rows,
    find_user,
    forget_name,
    from_row,
    make_user,
    number_of,
    one,
    row_of,
    rows,
    seen,
    spend,
    to_row,
    user_of,
)
from loom.stores.sqlite.index import AROUND_KIND, IndexChange, drop_vector

_INSERT = f"INSERT INTO records (row, user, {', '.join(WRITTEN)}) VALUES (?, ?{', ?' * len(WRITTEN)})"
_SESSION_ROWS = "SELECT row FROM records WHERE user = ? AND session_id = ? LIMIT ?"
_OTHER_ROWS = "SELECT row FROM records WHERE user = ? AND layer IS NULL LIMIT ?"
_LAYER_ROWS = "SELECT row FROM records WHERE user = ? AND layer = ? AND archived_at IS NULL LIMIT ?"
_FEW = 1000
_EPISODES = Eq("kind", "episode")


class Changed(NamedTuple):
    """What change() did: how many records it deleted, of which user, and the rows of the new ones, by id."""

    deleted: int
    user: int | None
    new: Mapping[str, int]


def change(
    db: Database,
    scope: Scope,
    *,
    put: Sequence[Record] = (),
    delete: Sequence[str] = (),
    keys: Keys | None = None,
) -> Changed:
    """Delete, put and set keys, in this order."""
    user = make_user(db, scope) if put else find_user(db, scope)
    if user is None:  # nothing to delete, and a user who has nothing is not registered
        for id in keys or ():
            raise no_record(id, "keys")
        return Changed(0, None, {})
    index = IndexChange(db, user)
    deleted = _delete(db, user, scope, delete, index)
    new = _put(db, user, scope, put, index)
    _set_keys(db, user, scope, keys or {}, index, new=new)
    index.flush()
    if deleted or index.has_replaced:
        count_removal(db, user)
    return Changed(deleted, user, new)


def _put(db: Database, user: int, scope: Scope, records: Sequence[Record], index: IndexChange) -> dict[str, int]:
    """Write the records; returns the rows of the new ones, by id."""
    new: dict[str, int] = {}
    first = index.size
    known = find_rows(db, user, scope.for_user(), [record.id for record in records])
    for record in records:
        row = known.get(record.id)
        old = None if row is None else one(db, f"SELECT {SELECTED} FROM records AS r WHERE r.row = ?", row)
        if isinstance(record, WorkingBlock):
            check_version(record, None if old is None else from_row(old))
        if row is None or old is None:
            number = first + len(new)
            known[record.id] = new[record.id] = row_of(user, number)
            db.execute(_INSERT, (new[record.id], user, *to_row(record, user)))
        else:
            _replace(db, record, row, old, index)
    if new:
        index.size = first + len(new)
        db.execute("UPDATE users SET next_number = ? WHERE user = ?", (index.size, user))
    return new


def _replace(db: Database, record: Record, row: int, stored: Row, index: IndexChange) -> None:
    """Write the columns that change: for each one that is named, its indexes are written as well."""
    old, new = from_row(stored), to_row(record, user_of(row))
    changes = {name: value for name, value, was in zip(WRITTEN, new, stored, strict=False) if value != was}
    if changes:
        columns = ", ".join([f"{name} = ?" for name in changes])
        db.execute(f"UPDATE records SET {columns} WHERE row = ?", (*changes.values(), row))
    if old.text != record.text:
        # The vector of another text would find the record for words it no longer says.
        drop_vector(db, row)
        index.has_replaced = True
        index.remove_record(number_of(row), old)
        index.add_record(number_of(row), record)


def _delete(db: Database, user: int, scope: Scope, ids: Iterable[str], index: IndexChange) -> int:
    sql, values = seen(user, scope)
    deleted = 0
    for id in dict.fromkeys(ids):
        stored = one(db, f"SELECT {SELECTED}, r.row FROM records AS r WHERE {sql} AND r.id = ?", *values, id)
        if stored is None:
            continue
        row = int(stored[-1])
        index.remove_record(number_of(row), from_row(stored))
        index.link(number_of(row), None)
        for kind, text in rows(db, "SELECT kind, text FROM keys WHERE row = ?", row):
            index.remove(f"{OWN}.{kind}", number_of(row), text)
        drop_vector(db, row)
        db.execute("DELETE FROM records WHERE row = ?", (row,))
        deleted += 1
    return deleted


def _set_keys(db: Database, user: int, scope: Scope, keys: Keys, index: IndexChange, *, new: Mapping[str, int]) -> None:
    """Set keys; `new` are the rows of this change that have none yet."""
    if not keys:
        return
    around = (text for texts in keys.values() for text in texts.values() if isinstance(text, Around))
    quoted = {text.before for text in around if text.before}
    wanted = keys.keys() if scope.session_id else keys.keys() | quoted  # a session may quote what it does not see
    rows_of = {**new, **find_rows(db, user, scope, wanted - new.keys())}
    linked = {**rows_of, **find_rows(db, user, scope.for_user(), quoted - rows_of.keys() - wanted)}
    stored = _stored_keys(db, [rows_of[id] for id in keys if id in rows_of and id not in new])
    for id, texts in keys.items():
        row = rows_of.get(id)
        if row is None:
            raise no_record(id, "keys")
        for kind, text in texts.items():
            before = _link(text, linked) if kind == AROUND_KIND else None
            if kind == AROUND_KIND and stored.pop((row, BEFORE), None) != before:
                db.execute("UPDATE records SET before = ? WHERE row = ?", (before, row))
                index.link(number_of(row), before)
            wanted = text if text.strip() and before is None else None
            old = stored.pop((row, kind), None)
            if old is not None and old != wanted:
                db.execute("DELETE FROM keys WHERE row = ? AND kind = ?", (row, kind))
                index.remove(f"{OWN}.{kind}", number_of(row), old)
            if wanted is not None and old != wanted:
                db.execute("INSERT INTO keys VALUES (?, ?, ?)", (row, kind, text))
                index.add(f"{OWN}.{kind}", number_of(row), text)


BEFORE = ""
"""The kind under which _stored_keys() gives what a turn follows."""


def _stored_keys(db: Database, given: Sequence[int]) -> dict[tuple[int, str], Any]:
    """The texts of the keys of these rows, by row and kind, and how each is linked to the one before."""
    if not given:
        return {}
    among = json.dumps(given)
    sql = "FROM json_each(?) AS given CROSS JOIN"
    found = rows(db, f"SELECT row, kind, text {sql} keys ON row = given.value", among)
    linked = rows(db, f"SELECT row, '{BEFORE}', before {sql} records ON row = given.value", among)
    return {(row, kind): value for row, kind, value in (*found, *linked)}


def _link(text: str, known: Mapping[str, int]) -> int | None:
    """How a turn is linked to the one before it; None where only the text says what is around it."""
    if not isinstance(text, Around) or not text.strip():
        return None
    if text.before is None:
        return FIRST
    return None if text.before not in known else number_of(known[text.before]) + BEHIND


def get(db: Database, user: int, scope: Scope, id: str) -> Record | None:
    """The record, if the scope sees it."""
    sql, values = seen(user, scope)
    stored = one(db, f"SELECT {SELECTED} FROM records AS r WHERE {sql} AND r.id = ?", *values, id)
    return None if stored is None else from_row(stored)


def select(
    db: Database,
    user: int,
    scope: Scope,
    *,
    where: Filter | None,
    after: str | None = None,
    limit: int | None = None,
    known: KnownRecords | None = None,
) -> list[Record]:
    """The first records that fit, by id; all of them without a limit."""
    sql, values = _listed(db, user, scope, where)
    if sql is None:
        return []
    fits = condition(where)
    start, values = ("", values) if after is None else (" AND r.id > ?", (*values, after))
    listed = f"SELECT {SELECTED} FROM records AS r WHERE {sql}{start} AND {fits.sql} ORDER BY r.id"
    made = from_row if known is None else known.made
    found: list[Record] = []
    last = after or ""
    with closing(each(db, listed, *values, *fits.values, cost=MADE)) as stored:
        for row in stored:
            record = made(row)
            if record.id <= last:  # pages would go round in circles
                raise DamagedData(f"the index of records has {record.id!r} behind {last!r}")
            last = record.id
            if where is None or fits.exact or where.matches(record):
                found.append(record)
                if len(found) == limit:
                    break
    return found


def select_all(db: Database, user: int, scope: Scope, where: Filter | Newest, known: KnownRecords) -> list[Record]:
    """All records that fit, or the newest of them, by id."""
    if not isinstance(where, Newest):
        return select(db, user, scope, where=where, known=known)
    sql, values = seen(user, scope)
    fits = condition(where.where)
    if not fits.exact:
        return where.of(select(db, user, scope, where=where.where, known=known))
    if place := listed_place(where.where):  # said so that the index by layer and time is walked from its end
        sql, values = f"{sql} AND r.layer = ? AND r.archived_at IS NULL", (*values, place)
    newest = f"{sql} AND {fits.sql} AND r.kind = 'episode' ORDER BY r.recorded_at DESC LIMIT ?"
    listed = f"SELECT {SELECTED} FROM records AS r WHERE {newest}"
    with closing(each(db, listed, *values, *fits.values, where.limit, cost=MADE)) as found:
        return sorted(map(known.made, found), key=lambda record: record.id)


def _listed(db: Database, user: int, scope: Scope, where: Filter | None) -> tuple[str | None, tuple[Any, ...]]:
    """What seen() says, for a list of all: the few rows that can fit are named, or else all that the user has.

    None where there are none.

    Left alone, SQLite walks the index by id, which is everything that the user has, to find the rows of a session, the
    facts, or the living records of a layer. Many rows are not named: they would be sorted again for every page.
    """
    found: list[Row] | None = None
    if scope.session_id is not None:
        found = rows(db, _SESSION_ROWS, user, scope.session_id, _FEW)
        if where != _EPISODES:
            found += rows(db, _OTHER_ROWS, user, _FEW)
    elif (place := listed_place(where)) is not None:
        found = rows(db, _LAYER_ROWS, user, place, _FEW) if place else rows(db, _OTHER_ROWS, user, _FEW)
    if found is None or len(found) >= _FEW:
        held = one(db, "SELECT records FROM users WHERE user = ?", user)
        spend(MADE * len(found or ()) + (WALKED * held[0] if held else 0.0))
        return seen(user, scope)
    return "r.row IN (SELECT value FROM json_each(?))" if found else None, (json.dumps([row for (row,) in found]),)


def count(db: Database, user: int, scope: Scope, where: Filter | None) -> int:
    """How many records fit."""
    if where is None and scope.session_id is None:
        found = one(db, "SELECT records FROM users WHERE user = ?", user)
        return int(found[0]) if found else 0
    sql, values = _listed(db, user, scope, where)
    if sql is None:
        return 0
    fits = condition(where)
    if where is None or fits.exact:
        found = one(db, f"SELECT count(*) FROM records AS r WHERE {sql} AND {fits.sql}", *values, *fits.values)
        return int(found[0]) if found else 0
    cursor = db.execute(f"SELECT {SELECTED} FROM records AS r WHERE {sql} AND {fits.sql}", (*values, *fits.values))
    return sum(where.matches(from_row(row)) for row in cursor)


def touch(db: Database, user: int, scope: Scope, ids: Iterable[str], at: datetime) -> None:
    """Count an access of each episode that is there."""
    sql, values = seen(user, scope)
    micros = to_micros(at)
    db.executemany(
        "UPDATE records AS r SET accesses = accesses + 1, accessed_at = max(?, coalesce(accessed_at, ?)) "
        f"WHERE {sql} AND r.id = ? AND r.kind = 'episode'",
        [(micros, micros, *values, id) for id in ids],
    )


def prune(
    db: Database,
    user: int,
    scope: Scope,
    layer: Layer,
    *,
    keep: int | None,
    before: datetime | None,
    now: datetime,
) -> tuple[str, ...]:
    """Archive what is too much or too old, least recently accessed first."""
    sql, values = seen(user, scope)
    live = f"FROM records AS r WHERE {sql} AND r.layer = ? AND r.archived_at IS NULL"
    values = (*values, int(layer))
    start = None if before is None else to_micros(before)
    found = one(db, f"SELECT count(*), coalesce(sum(r.recorded_at < ?), 0) {live}", start, *values)
    amount, old = found or (0, 0)
    excess = _sql.excess_of(amount, old, keep)
    if not old and not excess:
        return ()
    sql = f"SELECT r.row, r.id, r.recorded_at < ? {live} {_sql.EVICTION_ORDER}"
    gone = _sql.to_archive(rows(db, sql, start, *values), excess)
    db.executemany("UPDATE records SET archived_at = ? WHERE row = ?", [(to_micros(now), row) for row in gone])
    return tuple(gone.values())


def forget_session(db: Database, user: int, scope: Scope) -> dict[str, int]:
    """Remove the episodes of a session; returns how many."""
    ids = rows(db, "SELECT id FROM records WHERE user = ? AND session_id = ?", user, scope.session_id)
    index = IndexChange(db, user)
    deleted = _delete(db, user, scope, [id for (id,) in ids], index)
    index.flush()
    if deleted:
        count_removal(db, user)
    return {"episode": deleted}


def forget_user(db: Database, user: int) -> dict[str, int]:
    """Remove all records of a user with keys, vectors and index, and their name; returns how many of each kind."""
    removed = dict(rows(db, "SELECT kind, count(*) FROM records WHERE user = ? GROUP BY kind", user))
    for table in ("vectors", "records", "postings", "lengths"):
        db.execute(f"DELETE FROM {table} WHERE user = ?", (user,))
    for table in ("links", "sketches"):
        db.execute(f"DELETE FROM {table} WHERE row >= ? AND row < ?", (row_of(user, 0), row_of(user + 1, 0)))
    forget_name(db, user)
    return removed


# The jobs of all users: who holds each, and which were given up.
#
# A lease is told from every other by the number of its job, which is never used again, and how often that job was
# leased.

_FROM = "FROM jobs AS j JOIN users AS u USING (user)"
_JOBS_INSERT = (
    "INSERT INTO jobs (user, session_id, id, kind, key, run_at, payload, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_OPEN_ONE = "SELECT key, id FROM jobs WHERE user = ? AND dead_at IS NULL AND {} IN (SELECT value FROM json_each(?))"
_OPEN = f"{_OPEN_ONE.format('key')} UNION ALL {_OPEN_ONE.format('id')}"
"""Two questions: one for either would read all open jobs of the user."""
_COUNT_ALL = (
    "SELECT count(*) FILTER (WHERE dead_at IS NULL AND run_at <= ? AND (until IS NULL OR until <= ?)), "
    "count(*) FILTER (WHERE dead_at IS NULL AND until > ?), count(*) FILTER (WHERE dead_at IS NOT NULL) FROM jobs"
)
_OLDER = (
    "SELECT 1 FROM jobs AS o INDEXED BY open_jobs WHERE o.dead_at IS NULL AND (o.run_at, o.id) < (j.run_at, j.id) "
    "AND o.user = j.user AND o.until > ?"
)
"""By age: little is older than the oldest that may be leased, and a user may have very many jobs."""
_OLDER_OF_ONE = (
    "SELECT 1 FROM users AS u CROSS JOIN jobs AS o USING (user) WHERE u.namespace = ? AND u.user_id = ? "
    "AND o.dead_at IS NULL AND (o.run_at, o.id) < (?, ?) AND o.until > ?"
)


def enqueue(db: Database, scope: Scope, jobs: Sequence[Job], user: int | None = None) -> int:
    """Queue the jobs whose key is not open yet; returns how many. `user` is that of the scope, where it is known."""
    if not jobs:
        return 0
    user = make_user(db, scope) if user is None else user
    keys, ids = json.dumps([job.key for job in jobs]), json.dumps([job.id for job in jobs])
    found = rows(db, _OPEN, user, keys, user, ids)
    new = new_jobs(jobs, {key for key, _ in found}, {id for _, id in found})
    db.executemany(_JOBS_INSERT, [(user, *_sql.job_to_row(job)) for job in new])
    return len(new)


def lease(db: Database, asked: LeaseRequest) -> tuple[Lease, ...]:
    """Take due jobs, oldest first."""
    whose, values = ("1", ()) if asked.scope is None else _covered(asked.scope)
    if asked.kinds is not None:
        whose, values = f"{whose} AND j.kind IN ({', '.join('?' * len(asked.kinds))})", (*values, *asked.kinds)
    now, until = to_micros(asked.now), to_micros(asked.until)
    kinds = "" if asked.kinds is None else f"AND o.kind IN ({', '.join('?' * len(asked.kinds))})"
    is_of_one = asked.in_order and asked.scope is not None
    if asked.in_order and not is_of_one:
        whose, values = f"{whose} AND NOT EXISTS ({_OLDER} {kinds})", (*values, now, *(asked.kinds or ()))
    sql = (
        f"SELECT {_sql.JOB}, j.leased {_FROM} WHERE j.dead_at IS NULL AND j.run_at <= ? "
        f"AND (j.until IS NULL OR j.until <= ?) AND {whose} ORDER BY j.run_at, j.id LIMIT ?"
    )
    due = rows(db, sql, now, now, *values, 1 if is_of_one else asked.limit)
    if is_of_one and due:
        # What is older than the oldest is older than the others, too: they need not be looked at.
        (namespace, user_id, _, id, _, _, run_at, *_) = due[0]
        if one(db, f"{_OLDER_OF_ONE} {kinds} LIMIT 1", namespace, user_id, run_at, id, now, *(asked.kinds or ())):
            return ()
    leases: list[Lease] = []
    for row in due:
        if asked.in_order and any(row[:2] == (one.job.scope.namespace, one.job.scope.user_id) for one in leases):
            continue
        with reading("how often a job was leased"):
            number, leased, attempts = row[-2], row[-1] + 1, row[8] + 1
        token = f"{number}.{leased}"
        db.execute(
            "UPDATE jobs SET attempts = attempts + 1, leased = ?, token = ?, until = ? WHERE number = ?",
            (leased, token, until, number),
        )
        leases.append(Lease(job=_sql.job_from_row(row, attempts=attempts), token=token, until=asked.until))
    return tuple(leases)


def close(db: Database, held: Lease) -> None:
    """The job is done."""
    db.execute("DELETE FROM jobs WHERE number = ?", (_number(db, held),))


def fail(db: Database, held: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
    """Put the job back, or give it up."""
    number = _number(db, held)
    if retry_at is None:
        db.execute(
            "UPDATE jobs SET token = NULL, until = NULL, reason = ?, dead_at = ? WHERE number = ?",
            (reason, to_micros(now), number),
        )
    else:
        db.execute(
            "UPDATE jobs SET token = NULL, until = NULL, run_at = ? WHERE number = ?", (to_micros(retry_at), number)
        )


def job_counts(db: Database, now: datetime) -> dict[str, int]:
    """How many jobs of all users are due, leased and given up."""
    at = to_micros(now)
    return dict(zip(_sql.JOB_STATES, one(db, _COUNT_ALL, at, at, at) or (), strict=True))


def dead_letters(db: Database, scope: Scope) -> tuple[DeadLetter, ...]:
    """The jobs of the scope that were given up, the earliest first."""
    whose, values = _covered(scope)
    sql = f"SELECT {_sql.JOB}, j.reason, j.dead_at {_FROM} WHERE j.dead_at IS NOT NULL AND {whose}"
    found = rows(db, f"{sql} ORDER BY j.dead_at, j.number", *values)
    return tuple(_sql.letter_from_row(row) for row in found)


def pending(db: Database, scope: Scope) -> int:
    """How many jobs of the scope are open."""
    whose, values = _covered(scope)
    found = one(db, f"SELECT count(*) {_FROM} WHERE j.dead_at IS NULL AND {whose}", *values)
    return int(found[0]) if found else 0


def open_jobs(db: Database, scope: Scope) -> tuple[Job, ...]:
    """The open jobs of the scope, by id."""
    whose, values = _covered(scope)
    found = rows(db, f"SELECT {_sql.JOB} {_FROM} WHERE j.dead_at IS NULL AND {whose} ORDER BY j.id", *values)
    return tuple(_sql.job_from_row(row) for row in found)


def unreadable(db: Database, user: int) -> list[tuple[int, str]]:
    """The numbers of the jobs of a user that cannot be read, and why."""
    found: list[tuple[int, str]] = []
    for (number,) in rows(db, "SELECT number FROM jobs WHERE user = ?", user):
        try:
            for row in rows(db, f"SELECT {_sql.JOB}, j.leased {_FROM} WHERE j.number = ?", number):
                _sql.job_from_row(row, attempts=row[8] + row[-1])
        except (*UNREADABLE, TypeError) as error:
            found.append((number, f"job number {number}: {described(error)}"))
    return found


def forget(db: Database, user: int, scope: Scope) -> dict[str, int]:
    """Remove the jobs and dead letters of the scope; returns how many of each."""
    session, values = ("", ()) if scope.session_id is None else (" AND session_id = ?", (scope.session_id,))
    found = rows(db, f"DELETE FROM jobs WHERE user = ?{session} RETURNING dead_at IS NOT NULL", user, *values)
    dead = sum(is_dead for (is_dead,) in found)
    return {"job": len(found) - dead, "dead_letter": dead}


def _number(db: Database, held: Lease) -> int:
    user = find_user(db, held.job.scope)
    found = one(db, "SELECT number FROM jobs WHERE user = ? AND id = ? AND token = ?", user, held.job.id, held.token)
    if found is None:
        raise lease_lost(held)
    return int(found[0])


def _covered(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    whose, values = "u.namespace = ? AND u.user_id = ?", (scope.namespace, scope.user_id)
    if scope.session_id is None:
        return whose, values
    return f"{whose} AND j.session_id = ?", (*values, scope.session_id)
