"""Checkpoint stores, and the key-value stores they can stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from loom.core.log import Checkpoint, LogEntry, Recorded, SavedSession
from loom.core.record import Receipt
from loom.core.scope import Scope


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps one append-only log per session, and the checkpoints that point into it.

    The scope names the session; list(), sessions() and forget() also take a user's scope, for all of its sessions.

    Laws:
    - save() is atomic and durable: a reader sees the entries and the checkpoint, or neither;
    - `entries` continue the log of `checkpoint.parent`, whose position plus their number is the new position;
      anything else is refused with UsageError;
    - `head` is the checkpoint last saved in this session, as the writer knows it; if it is another one,
      another process wrote first: StoreConflict, and nothing is written;
    - nothing is overwritten: going on from an older checkpoint leaves the later ones loadable;
    - saving the same checkpoint again is a no-op; its id with other content is StoreConflict;
    - saving costs what is new: no earlier entry is written again, and equal parts are stored once;
    - load() gives a value equal to the saved one; an unknown id, or a session without any, gives None;
    - append() continues the newest checkpoint, also one of another process, and never conflicts with another writer: of
      two that append at one moment, both succeed, one behind the other. The new checkpoint has the view of the one it
      continues (compactions, pins, turn, usage) and its own attributes;
    - with `once`, entries whose id the log already holds are left out; where none is new, nothing is written and the
      newest checkpoint is returned. It is answered by an index, not by reading the log;
    - history() gives the whole log up to the checkpoint, through forks, equal to what was saved; with `after` only the
      entries behind that position, at the cost of those. Without `bodies`, that of a recorded entry is None and is not
      read. recorded() gives only recorded entries, without reading the messages between them;
    - list() is last saved first; `before` is a checkpoint of the session, and only those saved before it come;
      `attributes` have to be equal, others may be there too, and `limit` counts what fits;
    - sessions() is last saved first, and costs the same however long the logs are;
    - delete() never removes an entry that another checkpoint needs;
    - a checkpoint written by any earlier format loads; a newer one raises FormatTooNew;
    - scopes never meet; an id is data and cannot name a file outside the store.
    """

    async def save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        """Append the entries and keep the checkpoint, in one step."""
        ...

    async def load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        """The checkpoint with this id, or the one last saved."""
        ...

    async def append(
        self,
        scope: Scope,
        entries: Sequence[LogEntry],
        *,
        attributes: Mapping[str, str] | None = None,
        once: bool = False,
        parent: str | None = None,
        id: str | None = None,
    ) -> Checkpoint:
        """Append the entries behind the newest checkpoint, and return the new one.

        `parent` names an older checkpoint to continue instead. `id` is the id of the new one, which is otherwise made
        here; one that the session already has is StoreConflict. An unknown parent is NotFound.
        """
        ...

    async def history(self, scope: Scope, id: str, *, after: int = 0, bodies: bool = True) -> tuple[LogEntry, ...]:
        """The log up to a checkpoint, behind a position; raises NotFound where there is none with this id."""
        ...

    async def recorded(
        self, scope: Scope, id: str | None = None, *, kind: str | None = None, after: int = 0
    ) -> tuple[Recorded, ...]:
        """The recorded entries of a log, of one kind or of all, up to a checkpoint or up to the newest.

        Raises NotFound where there is no checkpoint with this id; a session without any has no entries.
        """
        ...

    async def list(
        self,
        scope: Scope,
        *,
        limit: int | None = None,
        attributes: Mapping[str, str] | None = None,
        before: str | None = None,
    ) -> tuple[Checkpoint, ...]:
        """Checkpoints, last saved first; raises NotFound where `before` is not one of the session."""
        ...

    async def sessions(self, scope: Scope, *, limit: int | None = None) -> tuple[SavedSession, ...]:
        """The sessions of a user, or the one that the scope names, last saved first."""
        ...

    async def delete(self, scope: Scope, id: str) -> bool:
        """Remove one checkpoint; False where it was not there."""
        ...

    async def forget(self, scope: Scope) -> Receipt:
        """Remove the session, or all sessions of the user: checkpoints, entries and parts."""
        ...

    async def aclose(self) -> None:
        """Release the store. Closing twice is allowed."""
        ...


@runtime_checkable
class Forks(Protocol):
    """A store that can begin a session at a checkpoint of another.

    Laws: nothing is copied; both sessions go on alone; deleting either leaves the other whole.
    """

    async def fork(self, scope: Scope, id: str, *, session_id: str, at: datetime | None = None) -> Checkpoint:
        """The first checkpoint of the new session, with `parent=id`; StoreConflict if the session exists.

        It is stamped with `at`, or with the clock of the store.
        """
        ...


@runtime_checkable
class PrunesCheckpoints(Protocol):
    """A store that can drop old checkpoints.

    Laws: the newest `keep` stay, with the chain of parents between them and their whole history; so do forks.
    """

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed."""
        ...


# The protocol of key-value stores: the four verbs of a bucket or a key-value server.


@runtime_checkable
class KeyValues(Protocol):
    """Four verbs, each a coroutine or a plain function; a plain one runs in a thread, so it may block.

    Laws:
    - save() is atomic and durable: a reader sees the whole value or none, and what was acknowledged is there;
    - load() gives what was saved last under the key, as bytes or as text; None, or a KeyError, where there is nothing;
    - list() gives every key that starts with the prefix, in any order, a key that was just saved included; one that
      takes no argument gives every key there is;
    - delete() removes a key; one that is not there does not matter.
    """

    def save(self, key: str, value: bytes) -> Awaitable[object] | object:
        """Keep a value, in place of any that the key has."""
        ...

    def load(self, key: str) -> Awaitable[bytes | str | None] | bytes | str | None:
        """The value of a key."""
        ...

    def list(self, prefix: str) -> Awaitable[Iterable[str]] | Iterable[str]:
        """The keys that start with a prefix."""
        ...

    def delete(self, key: str) -> Awaitable[object] | object:
        """Remove a key."""
        ...
