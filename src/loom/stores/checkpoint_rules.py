"""What every checkpoint store checks before it writes, in one place so that all of them refuse the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError


def session_of(scope: Scope) -> str:
    """The session that the scope names; raises ScopeRequired where it names none."""
    if scope.session_id is None:
        raise ScopeRequired(f"the scope of {scope.user_id!r} names no session; use scope.for_session(id)")
    return scope.session_id


def check_session(scope: Scope, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of another session."""
    if checkpoint.session_id != session_of(scope):
        raise UsageError(
            f"checkpoint {checkpoint.id} belongs to session {checkpoint.session_id!r}, not to {scope.session_id!r}; "
            f"save it under its own scope"
        )


def check_same(
    checkpoint: Checkpoint, entries: Sequence[LogEntry], saved: Checkpoint, saved_entries: Sequence[LogEntry]
) -> None:
    """Refuse other content under an id that is taken; the same content again is welcome."""
    if (checkpoint, tuple(entries)) != (saved, tuple(saved_entries)):
        raise StoreConflict(f"checkpoint {saved.id} is already saved with other content; give the new one its own id")


def check_continues(
    checkpoint: Checkpoint, entries: Sequence[LogEntry], head: str | None, *, newest: str | None, parent: int | None
) -> None:
    """Refuse what does not continue the log.

    `newest` is the id of the checkpoint last saved, `parent` the position of the parent; None where there is none.
    """
    if head != newest:
        raise StoreConflict(
            f"session {checkpoint.session_id!r} was last saved as {newest!r}, not as {head!r}; "
            f"load it again before going on"
        )
    if checkpoint.parent is not None and parent is None:
        raise UsageError(
            f"checkpoint {checkpoint.id} continues {checkpoint.parent!r}, which session {checkpoint.session_id!r} "
            f"does not hold; save the parent first"
        )
    due = (parent or 0) + len(entries)
    if checkpoint.position != due:
        raise UsageError(
            f"checkpoint {checkpoint.id} has position {checkpoint.position}, but its parent stands at {parent or 0} "
            f"and {len(entries)} entries came; give position={due}"
        )


def forked(source: Checkpoint | None, id: str, *, new_id: str, session_id: str, at: datetime) -> Checkpoint:
    """The first checkpoint of a session that begins at `source`."""
    if source is None:
        raise NotFound(f"there is no checkpoint {id!r} to fork from; list() says which there are")
    return replace(source, id=new_id, session_id=session_id, parent=source.id, at=at)


def session_exists(session_id: str) -> StoreConflict:
    """The error of a fork into a session that is already there."""
    return StoreConflict(f"session {session_id!r} already exists; fork into a new one")


def not_found(scope: Scope, id: str) -> NotFound:
    """The error of a history that is not there."""
    return NotFound(f"session {scope.session_id!r} holds no checkpoint {id!r}; list() says which there are")


def check_keep(keep: int) -> None:
    """Refuse to prune everything."""
    if keep < 1:
        raise UsageError(f"prune() was given keep={keep}; keep at least the newest, or use forget()")


def check_limit(limit: int | None) -> None:
    """Refuse a limit that asks for nothing."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} asks for nothing; ask for at least one, or None for all")


def receipt(*, checkpoints: int, entries: int, left: int, pending: tuple[str, ...] = ()) -> Receipt:
    """What a forget removed; `left` entries stay, being the history of other sessions too."""
    if left:
        pending = (
            f"{left} log entries stay, because sessions forked from here begin with them; forget those sessions too",
            *pending,
        )
    removed = {"checkpoint": checkpoints, "entry": entries}
    return Receipt(removed={kind: count for kind, count in removed.items() if count}, pending=pending)
