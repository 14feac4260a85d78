"""Removing a user, or one of their sessions, with a receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio

from loom.core.record import Episode, Receipt
from loom.core.scope import Scope
from loom.stores.redis import jobs
from loom.stores.redis.change import Transaction
from loom.stores.redis.link import RedisConnection
from loom.stores.redis.names import USER_KEYS, CheckpointNames, StoreNames, session_name
from loom.stores.redis.scripts import FORGET

_COUNTED = ("episode", "fact", "block", "job", "dead_letter")
FILES = (
    "Redis no longer holds any of it, but its files on disk do until they are written anew: run "
    "`loom store sweep URL`, or BGREWRITEAOF; snapshots and copies on other servers follow in their own time"
)
COPIES = "a snapshot or a copy on another server may hold it until the next one is taken; run BGSAVE, or let it run out"
_LOOK_AGAIN = 0.05


async def sweep(link: RedisConnection) -> tuple[str, ...]:
    """Have the server write its append-only file anew, and wait for it; returns what is pending, in words."""
    await link.call("BGREWRITEAOF")
    while True:
        state: dict[str, object] = await link.call("INFO", "persistence")
        if not state.get("aof_rewrite_in_progress") and not state.get("aof_rewrite_scheduled"):
            break
        await anyio.sleep(_LOOK_AGAIN)  # the server does not say when it is done
    if state.get("aof_last_bgrewrite_status", "ok") != "ok":
        return (FILES,)
    copies = (await link.call("INFO", "replication")).get("connected_slaves") or state.get("rdb_saves")
    return (COPIES,) if copies else ()


async def forget_user(link: RedisConnection, names: StoreNames, scope: Scope) -> Receipt:
    """Remove every key of a user, in one step."""
    user = names.user(scope)
    keys = (names.users, names.due, names.held, names.forgotten, *user.all)
    near = user.near("") if await link.searches() else ""
    counts: list[int] = await link.run(FORGET, keys, (user.digest, near))
    return _receipt(Counter(dict(zip(_COUNTED, counts, strict=True))))


async def forget_session(link: RedisConnection, change: Transaction, scope: Scope, ids: Sequence[str]) -> Receipt:
    """Remove these episodes, and the jobs and dead letters of the session."""
    user = await change.records(ids)
    planned = user.plan(scope, delete=ids)
    change.apply(user, planned)
    removed = Counter({Episode.kind: len(planned.deleted)})
    for data, held in await jobs.of_scope(link, change.user, scope):
        change.depends_on(change.user.jobs, held.job.id, data)
        jobs.close(change, held.job)
        removed["job"] += 1
    for data, _ in await jobs.letters(link, change.user, scope):
        change.do("LREM", change.user.dead, 1, data)
        removed["dead_letter"] += 1
    return _receipt(removed)


async def count_sessions(link: RedisConnection, prefix: str, scope: Scope) -> int:
    """How many conversations of the scope are saved under this prefix."""
    sessions = CheckpointNames(prefix).user(scope)[USER_KEYS.index("sessions")]
    if scope.session_id is None:
        return int(await link.call("ZCARD", sessions))
    return int(await link.call("ZSCORE", sessions, session_name(scope)) is not None)


def _receipt(removed: Counter[str]) -> Receipt:
    return Receipt(removed=removed, pending=(FILES,) if removed.total() else ())
