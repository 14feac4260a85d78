"""Which rows belong to whom: a user as one number of fixed size, and what a scope may see."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import UUID

from loom.core.scope import Scope


def owner_of(scope: Scope) -> UUID:
    """The number of the scope's user: a digest of namespace and user id, so that no character of them has a meaning."""
    return UUID(bytes=_digest(scope)[:16])


def lock_of(scope: Scope) -> int:
    """The number of the lock that the user's writers take turns with."""
    return int.from_bytes(_digest(scope)[16:24], signed=True)


def seen(scope: Scope) -> tuple[str, tuple[Any, ...]]:
    """The condition on `records AS r` for what the scope sees; facts and blocks have no layer and no session."""
    if scope.session_id is None:
        return "r.owner = %s", (owner_of(scope),)
    return "r.owner = %s AND (r.layer IS NULL OR r.session_id = %s)", (owner_of(scope), scope.session_id)


def _digest(scope: Scope) -> bytes:
    return sha256(scope.for_user().key().encode()).digest()
