"""Reading and changing the records of a user, inside a transaction that the caller holds."""

# ruff: noqa: S608 - only names of columns and conditions of this package stand in SQL; every value is bound

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from loom.core.checks import check_text
from loom.core.filter import Filter
from loom.core.record import Layer, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import NotFound
from loom.stores.postgres import index
from loom.stores.postgres.connection import Row, one, rows, run, run_many
from loom.stores.postgres.owners import owner_of, seen
from loom.stores.postgres.where import condition
from loom.stores.record_rows import COLUMNS, SELECTED, from_row, to_micros, to_row
from loom.stores.record_rules import check_record, check_version
from loom.stores.sql_where import Condition

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

Keys: TypeAlias = Mapping[str, Mapping[str, str]]

_MAX_KIND_BYTES = 512
_INSERT = f"INSERT INTO records (owner, number, {', '.join(COLUMNS)}) VALUES (%s, %s{', %s' * len(COLUMNS)})"
_UPDATE = f"UPDATE records SET {', '.join(f'{name} = %s' for name in COLUMNS)} WHERE owner = %s AND number = %s"
_NUMBERS = (
    "INSERT INTO users (owner, namespace, user_id, next_number) VALUES (%s, %s, %s, %s) "
    "ON CONFLICT (owner) DO UPDATE SET next_number = users.next_number + excluded.next_number RETURNING next_number"
)


async def change(
    db: Database, scope: Scope, *, put: Sequence[Record] = (), delete: Sequence[str] = (), keys: Keys | None = None
) -> int:
    """Delete, put and set keys, in this order; returns how many records were deleted."""
    deleted = await _delete(db, scope, delete) if delete else 0
    if put:
        await _put(db, scope, put)
    if keys:
        await _set_keys(db, scope, keys)
    return deleted


async def take_numbers(db: Database, scope: Scope, amount: int) -> int:
    """Register the user and give him numbers that were never his before; returns the first."""
    found = await one(db, _NUMBERS, owner_of(scope), scope.namespace, scope.user_id, amount)
    assert found is not None
    return int(found[0]) - amount


async def _put(db: Database, scope: Scope, records: Sequence[Record]) -> None:
    for record in records:
        check_record(scope, record)
    owner = owner_of(scope)
    stored: dict[str, tuple[Record, int]] = {}
    for row in await rows(
        db,
        f"SELECT {SELECTED}, r.number FROM records AS r WHERE r.owner = %s AND r.id = ANY(%s)",
        owner,
        [record.id for record in records],
    ):
        record = from_row(row)
        stored[record.id] = (record, row[-1])
    wanted = _newest(records, {id: record for id, (record, _) in stored.items()})
    new = [record for id, record in wanted.items() if id not in stored]
    first = await take_numbers(db, scope, len(new))
    numbers = {record.id: first + place for place, record in enumerate(new)}
    await run_many(db, _INSERT, [(owner, numbers[record.id], *to_row(record)) for record in new])
    old = [(record, *stored[id]) for id, record in wanted.items() if id in stored]
    await run_many(db, _UPDATE, [(*to_row(record), owner, number) for record, _, number in old])
    changed = {number: record.text for record, before, number in old if record.text != before.text}
    if changed:
        await index.remove(db, owner, list(changed), index.OWN)
        # The vector of another text would find the record for words it no longer says.
        await run(db, "DELETE FROM vectors WHERE owner = %s AND number = ANY(%s)", owner, list(changed))
    texts = {numbers[record.id]: record.text for record in new} | changed
    await index.add(db, owner, {(number, index.OWN): text for number, text in texts.items()})


def _newest(records: Sequence[Record], stored: Mapping[str, Record]) -> dict[str, Record]:
    """What is to be written under each id: the last of the batch, if each could follow the one before it."""
    wanted: dict[str, Record] = {}
    for record in records:
        if isinstance(record, WorkingBlock):
            check_version(record, wanted.get(record.id) or stored.get(record.id))
        wanted[record.id] = record
    return wanted


async def numbers_of(db: Database, scope: Scope, ids: Iterable[str]) -> dict[str, int]:
    """The numbers of those of the records that the scope sees."""
    sql, values = seen(scope)
    found = await rows(
        db, f"SELECT r.id, r.number FROM records AS r WHERE {sql} AND r.id = ANY(%s)", *values, list(ids)
    )
    return dict(found)


async def _delete(db: Database, scope: Scope, ids: Iterable[str]) -> int:
    owner = owner_of(scope)
    numbers = list((await numbers_of(db, scope, ids)).values())
    await index.remove(db, owner, numbers)
    # Keys and vectors go with their record.
    return await run(db, "DELETE FROM records WHERE owner = %s AND number = ANY(%s)", owner, numbers)


async def _set_keys(db: Database, scope: Scope, keys: Keys) -> None:
    owner = owner_of(scope)
    numbers = await numbers_of(db, scope, keys)
    texts: dict[tuple[int, str], str] = {}
    for id, of_record in keys.items():
        if id not in numbers:
            raise NotFound(f"there is no record {id!r} to give keys to; put it first")
        for kind, text in of_record.items():
            check_text(kind, f"the kind of a key of {id}", max_bytes=_MAX_KIND_BYTES)
            check_text(text, f"the key {kind} of {id}", may_be_empty=True)
            texts[numbers[id], kind] = text
    for kind in {kind for _, kind in texts}:
        of_kind = [number for number, other in texts if other == kind]
        await index.remove(db, owner, of_kind, f"{index.OWN}.{kind}")
        await run(db, "DELETE FROM keys WHERE owner = %s AND kind = %s AND number = ANY(%s)", owner, kind, of_kind)
    kept = {place: text for place, text in texts.items() if text.strip()}
    await run_many(
        db,
        "INSERT INTO keys (owner, number, kind, text) VALUES (%s, %s, %s, %s)",
        [(owner, *place, text) for place, text in kept.items()],
    )
    await index.add(db, owner, {(number, f"{index.OWN}.{kind}"): text for (number, kind), text in kept.items()})


async def get(db: Database, scope: Scope, id: str) -> Record | None:
    """The record, if the scope sees it."""
    sql, values = seen(scope)
    stored = await one(db, f"SELECT {SELECTED} FROM records AS r WHERE {sql} AND r.id = %s", *values, id)
    return None if stored is None else from_row(stored)


async def fitting(
    db: Database, sql: str, values: Sequence[Any], *, where: Filter | None, fits: Condition, limit: int | None
) -> AsyncGenerator[tuple[Record, Row]]:
    """The records that rows of this query start with and the filter fits, at most `limit`, each with its row."""
    if where is None or fits.exact:
        for row in await rows(db, f"{sql} LIMIT %s", *values, limit):
            yield from_row(row), row
        return
    amount = 0
    async with db.cursor("fitting") as cursor:
        async for row in await cursor.execute(sql.encode(), values):
            record = from_row(row)
            if where.matches(record):
                yield record, row
                amount += 1
                if amount == limit:
                    break


async def select(
    db: Database, scope: Scope, *, where: Filter | None, after: str | None, limit: int | None
) -> list[Record]:
    """The records that fit, by id."""
    sql, values = seen(scope)
    fits = condition(where)
    query = f"SELECT {SELECTED} FROM records AS r WHERE {sql} AND r.id > %s AND {fits.sql} ORDER BY r.id"
    found = fitting(db, query, (*values, after or "", *fits.values), where=where, fits=fits, limit=limit)
    return [record async for record, _ in found]


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
    micros = to_micros(at)
    await run_many(
        db,
        "UPDATE records AS r SET accesses = accesses + 1, accessed_at = greatest(accessed_at, %s) "
        f"WHERE {sql} AND r.id = %s AND r.kind = 'episode'",
        [(micros, *values, id) for id in ids],
    )


async def prune(
    db: Database, scope: Scope, layer: Layer, *, keep: int | None, before: datetime | None, now: datetime
) -> tuple[str, ...]:
    """Archive what is too much or too old, least recently accessed first."""
    sql, values = seen(scope)
    live = f"FROM records AS r WHERE {sql} AND r.layer = %s AND r.archived_at IS NULL"
    values = (*values, int(layer))
    start = None if before is None else to_micros(before)
    is_old = "coalesce(r.recorded_at < %s::bigint, false)"
    found = await one(db, f"SELECT count(*), count(*) FILTER (WHERE {is_old}) {live}", start, *values)
    amount, old = found or (0, 0)
    excess = 0 if keep is None else max(0, amount - old - keep)
    if not old and not excess:
        return ()
    # What was never accessed counts as accessed when it came, or every new record would be the first to go.
    order = "ORDER BY coalesce(r.accessed_at, r.recorded_at), r.recorded_at, r.id"
    gone: list[tuple[int, str]] = []
    for number, id, too_old in await rows(db, f"SELECT r.number, r.id, {is_old} {live} {order}", start, *values):
        if too_old or excess > 0:
            gone.append((number, id))
            excess -= not too_old
    await run(
        db,
        "UPDATE records SET archived_at = %s WHERE owner = %s AND number = ANY(%s)",
        to_micros(now),
        owner_of(scope),
        [number for number, _ in gone],
    )
    return tuple(id for _, id in gone)


async def forget_session(db: Database, scope: Scope) -> dict[str, int]:
    """Remove the episodes of a session; returns how many."""
    found = await rows(
        db, "SELECT id FROM records WHERE owner = %s AND session_id = %s", owner_of(scope), scope.session_id
    )
    return {"episode": await _delete(db, scope, [id for (id,) in found])}


async def forget_user(db: Database, scope: Scope) -> dict[str, int]:
    """Remove all records of a user with their keys, vectors and index, and his name; returns how many of each kind."""
    owner = owner_of(scope)
    removed = dict(await rows(db, "SELECT kind, count(*) FROM records WHERE owner = %s GROUP BY kind", owner))
    for table in ("postings", "keys", "vectors", "records", "lengths", "users"):
        await run(db, f"DELETE FROM {table} WHERE owner = %s", owner)
    return removed
