"""What every store of records checks of what it is given, so that all refuse the same with the same words."""

from __future__ import annotations

from datetime import datetime

from loom.core.checks import as_utc, check_text
from loom.core.record import Episode, Fact, Record, WorkingBlock
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.protocols.embedder import Vector
from loom.protocols.memory_store import Query


def check_record(scope: Scope, record: Record) -> None:
    """Refuse what is no record, and an episode that the scope would not see."""
    if not isinstance(record, Episode | Fact | WorkingBlock):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{record!r} is not a record; put an Episode, a Fact or a WorkingBlock")
    if isinstance(record, Episode) and scope.session_id not in {None, record.session_id}:
        raise UsageError(
            f"episode {record.id} is of session {record.session_id!r}, but the scope names session "
            f"{scope.session_id!r}; use scope.for_user() or the episode's own session"
        )


def check_version(block: WorkingBlock, stored: Record | None) -> None:
    """Refuse a block that does not follow the stored one."""
    if block == stored:
        return
    held = stored.version if isinstance(stored, WorkingBlock) else 0
    if block.version != held + 1:
        raise StoreConflict(
            f"block {block.name!r} is stored with version {held}, so version {block.version} cannot follow; "
            f"read it again and write version {held + 1}"
        )


def vector_apart(query: Query, near: int) -> Vector:
    """The vector of a query that is to be searched apart from its words; refuses one that lacks either."""
    if query.vector is None or not query.text.strip():
        raise UsageError("search_apart() was given no words or no vector; use search()")
    if near < 1:
        raise UsageError(f"search_apart() was given near={near}; ask for at least one")
    return query.vector


def check_limit(limit: int) -> None:
    """Refuse to be asked for nothing."""
    if limit < 1:
        raise UsageError(f"limit={limit} asks for nothing; ask for at least one")


def check_keep(keep: int | None) -> None:
    """Refuse to keep fewer records than none."""
    if keep is not None and keep < 0:
        raise UsageError(f"prune() was given keep={keep}; keep 0 or more, or None for no limit")


def check_embedder(call: str, identity: str, dimension: int) -> None:
    """Refuse an embedder without a name or without numbers."""
    if dimension < 1:
        raise UsageError(f"{call}() was given dimension={dimension}; a vector has at least one number")
    check_text(identity, "the identity of an embedder")


def lease_times(now: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The times of a lease in UTC; refuses one that is over at once."""
    now, until = as_utc(now, "now of a lease"), as_utc(until, "until of a lease")
    if until <= now:
        raise UsageError(f"a lease from {now} until {until} is over at once; give a later `until`")
    return now, until
