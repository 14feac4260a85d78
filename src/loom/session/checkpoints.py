"""Saving a session to its checkpoint store."""

from __future__ import annotations

from collections.abc import Sequence

from loom.core.checkpoint import Checkpoint, LogEntry, end_of_turn, shown_of
from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.message import Message
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore, Forks
from loom.session.history import History


class Saver:
    """Knows how much of a log is durable, and writes the rest.

    `last` is the checkpoint that the history continues; `head` the one last saved in this session, which differs after
    going back. A write that failed or was cancelled may have arrived all the same. It is repeated before the next one:
    a store accepts the same write twice.
    """

    def __init__(self, store: CheckpointStore, scope: Scope, *, clock: Clock, ids: RecordIds) -> None:
        self.store = store
        self.scope = scope
        self.last: Checkpoint | None = None
        self.head: str | None = None
        self.is_discarded = False
        self._unsure: tuple[Checkpoint, tuple[LogEntry, ...], str | None] | None = None
        self._clock = clock
        self._ids = ids

    def discard(self) -> None:
        """The session was forgotten: nothing more of it is ever saved."""
        self.is_discarded = True

    def check_wanted(self) -> None:
        """Refuse to save anything of a session that was forgotten."""
        if self.is_discarded:
            raise NotFound(
                f"session {self.scope.session_id!r} of user {self.scope.user_id!r} was forgotten, and with it the turn "
                "that was running; begin another one"
            )

    def is_saved(self, history: History) -> bool:
        """Whether everything of a history is durable, its view included."""
        last = self.last
        if last is None or self._unsure is not None or last.position != len(history.log):
            return False
        return (last.compactions, last.usage, last.pins) == (history.applied, history.usage, tuple(history.pins))

    def is_durable(self, position: int) -> bool:
        """Whether the log is saved beyond a position."""
        return self.last is not None and self.last.position > position

    async def check_new(self) -> None:
        """Refuse to begin a session under a name that the store has already: nothing of it could be saved."""
        if self.head is not None or self._unsure is not None or await self.store.load(self.scope) is None:
            return
        raise StoreConflict(
            f"session {self.scope.session_id!r} already exists; restore() it to go on with it, or take another id"
        )

    async def save(self, history: History) -> Checkpoint:
        """Write the new entries, and a checkpoint at their end."""
        assert self.scope.session_id is not None
        if self._unsure is not None:
            await self._write(*self._unsure)
        done = self.last.position if self.last else 0
        checkpoint = Checkpoint(
            id=self._ids.next_id(),
            session_id=self.scope.session_id,
            at=self._clock.now(),
            position=len(history.log),
            turn=history.turn,
            parent=self.last.id if self.last else None,
            compactions=history.applied,
            pins=tuple(history.pins),
            usage=history.usage,
            unfinished=history.unfinished,
        )
        await self._write(checkpoint, tuple(history.log[done:]), self.head)
        return checkpoint

    async def _write(self, checkpoint: Checkpoint, entries: tuple[LogEntry, ...], head: str | None) -> None:
        self.check_wanted()
        self._unsure = (checkpoint, entries, head)
        try:
            await self.store.save(self.scope, checkpoint, entries=entries, head=head)
        except StoreConflict as error:
            self._unsure = None
            if head is not None and await self.store.load(self.scope) is None:
                self.discard()
                self.check_wanted()
            raise StoreConflict(
                f"session {self.scope.session_id!r} was continued somewhere else; call restore() to go on from "
                f"there, or fork() to go on from here ({error})"
            ) from error
        self.last, self.head, self._unsure = checkpoint, checkpoint.id, None

    async def load(self, at: int | str | None = None) -> tuple[Checkpoint, Sequence[LogEntry]]:
        """A checkpoint and the log up to it: the one named, the last of a turn, or the last of all."""
        newest = await self.store.load(self.scope)
        found = newest if at is None else await self._find(at)
        if newest is None or found is None:
            what = repr(at) if isinstance(at, str) else "yet" if at is None else f"of turn {at}"
            raise NotFound(f"session {self.scope.session_id!r} has no checkpoint {what}; checkpoints() lists them")
        log = await self.store.history(self.scope, found.id)
        self.last, self.head, self._unsure = found, newest.id, None
        return found, log

    async def find_same(self, messages: Sequence[Message]) -> str | None:
        """The id of the newest checkpoint, if it shows exactly these messages; None where nothing is saved.

        Raises:
            StoreConflict: the session is saved with other messages.
        """
        saved = await self.store.load(self.scope)
        if saved is None:
            return None
        log = await self.store.history(self.scope, saved.id)
        if tuple(item.message for item in shown_of(log, saved.compactions)) != tuple(messages):
            raise StoreConflict(
                f"session {self.scope.session_id!r} is saved with other messages; restore() brings those back, and a "
                "session with another id can go on with these"
            )
        return saved.id

    async def fork(self, at: int | str | None, *, session_id: str) -> Checkpoint:
        """Begin another session at a checkpoint of this one: the one named, the last of a turn, or the last."""
        if not isinstance(self.store, Forks):
            raise UsageError(f"{type(self.store).__name__} cannot fork; use a store that can, such as SQLite")
        found = self.last if at is None else await self._find(at)
        if found is None:
            what = "has no turn to fork at yet" if at is None else f"has no checkpoint {at!r}"
            raise NotFound(f"session {self.scope.session_id!r} {what}")
        return await self.store.fork(self.scope, found.id, session_id=session_id)

    async def _find(self, at: int | str) -> Checkpoint | None:
        if isinstance(at, str):
            return await self.store.load(self.scope, at)
        return end_of_turn(await self.store.list(self.scope), at)
