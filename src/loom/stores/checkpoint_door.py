"""The verbs of every checkpoint store, where a session id alone names a session of the default user."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loom.core.checkpoint import Checkpoint, LogEntry, shown_of
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import NotFound, UsageError
from loom.stores import checkpoint_rules as rules

DEFAULT_USER: Final = Scope("default", "default")
"""Whose session it is where nobody says so: that of a Session or an Agent that was given no user."""


def scope_of(given: Scope | str) -> Scope:
    """The scope itself, or that of a session of the default user."""
    if isinstance(given, str):
        return DEFAULT_USER.for_session(given)
    if not isinstance(given, Scope):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a checkpoint store was given {given!r:.200}; give a Scope, or the id of a session as text")
    return given


class CheckpointDoor(ABC):
    """What a user calls; a store gives the hooks with an underscore, which take a Scope.

    A session id in place of a Scope means that session of the user `default` in the namespace `default`, which is where
    a Session saves that was told neither.
    """

    async def save(
        self, scope: Scope | str, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        """Append the entries and keep the checkpoint, in one step."""
        await self._save(scope_of(scope), checkpoint, entries=entries, head=head)

    async def load(self, scope: Scope | str, id: str | None = None) -> Checkpoint | None:
        """The checkpoint with this id, or the one last saved; None where there is none.

        By a session id it comes with its `messages`; by a Scope without, which costs the same however long the
        conversation is.
        """
        found = await self._load(scope_of(scope), id)
        if found is None or not isinstance(scope, str):
            return found
        try:
            log = await self._history(scope_of(scope), found.id)
        except NotFound:  # it was removed this very moment
            return None
        return replace(found, shown=tuple(item.message for item in shown_of(log, found.compactions)))

    async def history(self, scope: Scope | str, id: str) -> tuple[LogEntry, ...]:
        """The log up to a checkpoint."""
        return await self._history(scope_of(scope), id)

    async def list(self, scope: Scope | str | None = None, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        """Checkpoints, last saved first; without a scope, the last one of each session of the default user."""
        if scope is not None:
            return await self._list(scope_of(scope), limit=limit)
        rules.check_limit(limit)
        newest: dict[str, Checkpoint] = {}
        for checkpoint in await self._list(DEFAULT_USER):
            newest.setdefault(checkpoint.session_id, checkpoint)
        return tuple(newest.values())[:limit]

    async def delete(self, scope: Scope | str, id: str | None = None) -> bool:
        """Remove one checkpoint, or without an id the whole session; False where it was not there."""
        scope = scope_of(scope)
        if id is not None:
            return await self._delete(scope, id)
        rules.session_of(scope)
        return bool((await self._forget(scope)).removed)

    async def forget(self, scope: Scope | str) -> Receipt:
        """Remove the session, or all sessions of the user: checkpoints, entries and parts."""
        return await self._forget(scope_of(scope))

    @abstractmethod
    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None: ...

    @abstractmethod
    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None: ...

    @abstractmethod
    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]: ...

    @abstractmethod
    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]: ...

    @abstractmethod
    async def _delete(self, scope: Scope, id: str) -> bool: ...

    @abstractmethod
    async def _forget(self, scope: Scope) -> Receipt: ...
