"""Which rows belong to whom: a user as one number of fixed size, and what a scope may see."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from loom.core.scope import Scope

if TYPE_CHECKING:
    from loom.stores.postgres.connection import Database

_AFTER = "SELECT namespace, user_id FROM users WHERE (namespace, user_id) > (%s, %s) ORDER BY 1, 2 LIMIT %s"


def owner_of(scope: Scope) -> UUID:
    """The number of the scope's user: a digest of namespace and user id, so that no character of them has a meaning."""
    return UUID(bytes=_digest(scope)[:16])


def lock_of(scope: Scope) -> int:
    """The number of the lock that the user's writers take turns with."""
    return int.from_bytes(_digest(scope)[16:24], signed=True)


async def all_users(db: Database, after: Scope | None, limit: int) -> tuple[Scope, ...]:
    """Users of whom something was written, by namespace and user, from behind `after`."""
    last = ("", "") if after is None else (after.namespace, after.user_id)
    found = await (await db.execute(_AFTER, (*last, limit))).fetchall()
    return tuple(Scope(namespace, user_id) for namespace, user_id in found)


def seen(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """The condition on `records AS r` for what the scope sees; facts and blocks have no layer and no session."""
    if scope.session_id is None:
        return "r.owner = %s", (owner_of(scope),)
    return "r.owner = %s AND (r.layer IS NULL OR r.session_id = %s)", (owner_of(scope), scope.session_id)


def _digest(scope: Scope) -> bytes:
    return sha256(scope.for_user().key().encode()).digest()
