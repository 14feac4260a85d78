"""The jobs of all users: who holds each, and which were given up.

A lease is told from every other by the number of its job, which is never used again, and how often that job was
leased.
"""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from loom.core.scope import Scope
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.stores.damage import UNREADABLE, described, reading
from loom.stores.record_rows import JOB, job_from_row, job_to_row, letter_from_row, to_micros
from loom.stores.sqlite.connection import Database, one, rows
from loom.stores.sqlite.users import find_user, make_user
from loom.stores.user_records import jobs_without, lease_lost

_FROM = "FROM jobs AS j JOIN users AS u USING (user)"
_INSERT = (
    "INSERT INTO jobs (user, session_id, id, kind, key, run_at, payload, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_OPEN = (
    "SELECT key, id FROM jobs WHERE user = ? AND dead_at IS NULL "
    "AND (key IN (SELECT value FROM json_each(?)) OR id IN (SELECT value FROM json_each(?)))"
)


def enqueue(db: Database, scope: Scope, jobs: Sequence[Job]) -> int:
    """Queue the jobs whose key is not open yet; returns how many."""
    if not jobs:
        return 0
    user = make_user(db, scope)
    found = rows(db, _OPEN, user, json.dumps([job.key for job in jobs]), json.dumps([job.id for job in jobs]))
    new = jobs_without(jobs, {key for key, _ in found}, {id for _, id in found})
    db.executemany(_INSERT, [(user, *job_to_row(job)) for job in new])
    return len(new)


def lease(
    db: Database, now: datetime, until: datetime, limit: int, *, scope: Scope | None, kinds: Sequence[str] | None
) -> tuple[Lease, ...]:
    """Take due jobs, oldest first."""
    whose, values = ("1", ()) if scope is None else _covered(scope)
    if kinds is not None:
        whose, values = f"{whose} AND j.kind IN ({', '.join('?' * len(kinds))})", (*values, *kinds)
    micros = to_micros(now)
    due = rows(
        db,
        f"SELECT {JOB}, j.leased {_FROM} WHERE j.dead_at IS NULL AND j.run_at <= ? "
        f"AND (j.until IS NULL OR j.until <= ?) AND {whose} ORDER BY j.run_at, j.id LIMIT ?",
        micros,
        micros,
        *values,
        limit,
    )
    leases: list[Lease] = []
    for row in due:
        with reading("how often a job was leased"):
            number, leased, attempts = row[-2], row[-1] + 1, row[8] + 1
        token = f"{number}.{leased}"
        db.execute(
            "UPDATE jobs SET attempts = attempts + 1, leased = ?, token = ?, until = ? WHERE number = ?",
            (leased, token, to_micros(until), number),
        )
        leases.append(Lease(job=job_from_row(row, attempts=attempts), token=token, until=until))
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


def dead_letters(db: Database, scope: Scope) -> tuple[DeadLetter, ...]:
    """The jobs of the scope that were given up, the earliest first."""
    whose, values = _covered(scope)
    found = rows(
        db,
        f"SELECT {JOB}, j.reason, j.dead_at {_FROM} WHERE j.dead_at IS NOT NULL AND {whose} "
        "ORDER BY j.dead_at, j.number",
        *values,
    )
    return tuple(letter_from_row(row) for row in found)


def pending(db: Database, scope: Scope) -> int:
    """How many jobs of the scope are open."""
    whose, values = _covered(scope)
    found = one(db, f"SELECT count(*) {_FROM} WHERE j.dead_at IS NULL AND {whose}", *values)
    return int(found[0]) if found else 0


def open_jobs(db: Database, scope: Scope) -> tuple[Job, ...]:
    """The open jobs of the scope, by id."""
    whose, values = _covered(scope)
    found = rows(db, f"SELECT {JOB} {_FROM} WHERE j.dead_at IS NULL AND {whose} ORDER BY j.id", *values)
    return tuple(job_from_row(row) for row in found)


def unreadable(db: Database, user: int) -> list[tuple[int, str]]:
    """The numbers of the jobs of a user that cannot be read, and why."""
    found: list[tuple[int, str]] = []
    for (number,) in rows(db, "SELECT number FROM jobs WHERE user = ?", user):
        try:
            for row in rows(db, f"SELECT {JOB}, j.leased {_FROM} WHERE j.number = ?", number):
                job_from_row(row, attempts=row[8] + row[-1])
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
