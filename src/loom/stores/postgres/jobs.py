"""The jobs of all users: who holds each, and which were given up.

Workers take jobs with SKIP LOCKED, so that any number of them share the work and none waits for another. A lease is
told from every other by a token that the server makes for it.
"""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loom.core.scope import Scope
from loom.protocols.jobs import DeadLetter, Job, Lease
from loom.stores.postgres.connection import one, rows, run, run_many
from loom.stores.postgres.owners import owner_of
from loom.stores.postgres.records import take_numbers
from loom.stores.record_rows import JOB, job_from_row, job_to_row, letter_from_row, to_micros
from loom.stores.user_records import jobs_without, lease_lost

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_FROM = "FROM jobs AS j JOIN users AS u ON u.owner = j.owner"
_TAKE = f"""
WITH due AS (
    SELECT j.owner, j.number FROM jobs AS j WHERE j.dead_at IS NULL AND j.run_at <= %s
    AND (j.until IS NULL OR j.until <= %s) AND {{whose}} ORDER BY j.run_at, j.id LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE jobs AS j SET attempts = attempts + 1, token = gen_random_uuid()::text, until = %s
FROM due JOIN users AS u ON u.owner = due.owner WHERE j.owner = due.owner AND j.number = due.number
RETURNING {JOB}, j.token
"""
_HELD = "owner = %s AND id = %s AND token = %s"


async def enqueue(db: Database, scope: Scope, jobs: Sequence[Job]) -> int:
    """Queue the jobs whose key is not open yet; returns how many."""
    if not jobs:
        return 0
    owner = owner_of(scope)
    found = await rows(db, "SELECT key, id FROM jobs WHERE owner = %s AND dead_at IS NULL AND (key = ANY(%s) "
                           "OR id = ANY(%s))", owner, [job.key for job in jobs], [job.id for job in jobs])  # fmt: skip
    new = jobs_without(jobs, {key for key, _ in found}, {id for _, id in found})
    first = await take_numbers(db, scope, len(new), "next_job")
    await run_many(
        db,
        "INSERT INTO jobs (owner, number, session_id, id, kind, key, run_at, payload, attempts) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [(owner, first + place, *job_to_row(job)) for place, job in enumerate(new)],
    )
    return len(new)


async def lease(
    db: Database, now: datetime, until: datetime, limit: int, *, scope: Scope | None, kinds: Sequence[str] | None
) -> tuple[Lease, ...]:
    """Take due jobs, oldest first."""
    whose, values = ("true", ()) if scope is None else _covered(scope)
    if kinds is not None:
        whose, values = f"{whose} AND j.kind = ANY(%s)", (*values, list(kinds))
    micros = to_micros(now)
    taken = await rows(db, _TAKE.format(whose=whose), micros, micros, *values, limit, to_micros(until))
    taken.sort(key=lambda row: (row[6], row[3]))
    return tuple(Lease(job=job_from_row(row), token=row[-1], until=until) for row in taken)


async def close(db: Database, held: Lease) -> None:
    """The job is done."""
    _check_held(held, await run(db, f"DELETE FROM jobs WHERE {_HELD}", *_place(held)))


async def fail(db: Database, held: Lease, reason: str, now: datetime, retry_at: datetime | None) -> None:
    """Put the job back, or give it up."""
    if retry_at is None:
        what, values = "reason = %s, dead_at = %s", (_storable(reason), to_micros(now))
    else:
        what, values = "run_at = %s", (to_micros(retry_at),)
    sql = f"UPDATE jobs SET token = NULL, until = NULL, {what} WHERE {_HELD}"
    _check_held(held, await run(db, sql, *values, *_place(held)))


async def dead_letters(db: Database, scope: Scope) -> tuple[DeadLetter, ...]:
    """The jobs of the scope that were given up, the earliest first."""
    whose, values = _covered(scope)
    found = await rows(
        db,
        f"SELECT {JOB}, j.reason, j.dead_at {_FROM} WHERE j.dead_at IS NOT NULL AND {whose} "
        "ORDER BY j.dead_at, j.number",
        *values,
    )
    return tuple(letter_from_row(row) for row in found)


async def pending(db: Database, scope: Scope) -> int:
    """How many jobs of the scope are open."""
    whose, values = _covered(scope)
    found = await one(db, f"SELECT count(*) FROM jobs AS j WHERE j.dead_at IS NULL AND {whose}", *values)
    return int(found[0]) if found else 0


async def open_jobs(db: Database, scope: Scope) -> tuple[Job, ...]:
    """The open jobs of the scope, by id."""
    whose, values = _covered(scope)
    found = await rows(db, f"SELECT {JOB} {_FROM} WHERE j.dead_at IS NULL AND {whose} ORDER BY j.id", *values)
    return tuple(job_from_row(row) for row in found)


async def forget(db: Database, scope: Scope) -> dict[str, int]:
    """Remove the jobs and dead letters of the scope; returns how many of each."""
    whose, values = _covered(scope)
    found = await rows(db, f"DELETE FROM jobs AS j WHERE {whose} RETURNING j.dead_at IS NOT NULL", *values)
    dead = sum(is_dead for (is_dead,) in found)
    return {"job": len(found) - dead, "dead_letter": dead}


def _check_held(held: Lease, changed: int) -> None:
    if not changed:
        raise lease_lost(held)


def _storable(reason: str) -> str:
    """The reason without what Postgres cannot hold: why a job was given up must not get lost over a character."""
    return reason.encode(errors="replace").decode().replace("\0", "\ufffd")


def _place(held: Lease) -> tuple[Any, ...]:
    return (owner_of(held.job.scope), held.job.id, held.token)


def _covered(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    if scope.session_id is None:
        return "j.owner = %s", (owner_of(scope),)
    return "j.owner = %s AND j.session_id = %s", (owner_of(scope), scope.session_id)
