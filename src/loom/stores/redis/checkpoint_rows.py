"""Checkpoints on the server: each call is one script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock
from loom.core.message_codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.scope import Scope
from loom.stores.checkpoints import HASH, CheckpointPort, Removed, Saved, pack_entries, unpack_entries
from loom.stores.damage import reading
from loom.stores.redis import checkpoint_scripts as scripts
from loom.stores.redis.codec import id_bytes, micros
from loom.stores.redis.link import Argument, Link
from loom.stores.redis.names import CheckpointNames, session_name

_NEWEST = b"-"
_NONE = b""


@dataclass(frozen=True, slots=True)
class CheckpointRows:
    """The checkpoints of all users; a session is over `ttl` after its last save."""

    _link: Link
    _names: CheckpointNames
    _clock: Clock
    _ttl: timedelta | None

    async def run(self, script: str, scope: Scope, *arguments: Argument) -> Any:
        """Run a script on the keys of the scope's user."""
        keys = (self._names.number, *self._names.user(scope))
        return await self._link.run(script, keys, (micros(self._clock.now()), *arguments))

    def end(self) -> Argument:
        """When a session is over that is saved now."""
        return "+inf" if self._ttl is None else micros(self._clock.now() + self._ttl)


class UserRows(CheckpointPort[bytes]):
    """The saves of one user. Scripts see nothing of each other, so that append() compares what was read before."""

    def __init__(self, rows: CheckpointRows, scope: Scope) -> None:
        self._rows, self._scope = rows, scope

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[bytes] | None]:
        """The checkpoints with these ids, all at one moment; None asks for the newest."""
        found = await self._run(scripts.FIND, self._name(session_id), *map(_wanted, ids))
        return [None if one is None else Saved(one[0], _checkpoint(one[1])) for one in found]

    async def checkpoints(self, session_id: str | None, limit: int | None) -> list[Checkpoint]:
        """The checkpoints of a session, or of all, last saved first."""
        found = await self._run(scripts.LIST, -1 if limit is None else limit, *self._names(session_id))
        return [_checkpoint(data) for data in found]

    async def log(self, session_id: str, id: str, *, whole: bool) -> list[LogEntry] | None:
        """The log up to a checkpoint, or only what its save added."""
        found = await self._run(scripts.LOG, self._name(session_id), _wanted(id), -1 if whole else 1)
        if found is None:
            return None
        saves, bodies = found
        pieces = [(entries, _split(hashes)) for entries, hashes in reversed(saves)]
        return unpack_entries(pieces, dict(zip(bodies[::2], bodies[1::2], strict=True)))

    async def append(
        self,
        checkpoint: Checkpoint,
        entries: Sequence[LogEntry],
        *,
        parent: Saved[bytes] | None,
        newest: Saved[bytes] | None,
    ) -> bool:
        """Write a save; False, and nothing is written, if `newest` or `parent` changed since they were read."""
        packed = pack_entries(entries)
        arguments: list[Argument] = [self._rows.end(), self._name(checkpoint.session_id), id_bytes(checkpoint.id)]
        arguments += [_NONE if newest is None else newest.key]
        arguments += [_NONE, _NONE] if parent is None else [self._place(parent.checkpoint), parent.key]
        arguments += [to_bytes(checkpoint_to_dict(checkpoint)), packed.entries, len(entries), b"".join(packed.hashes)]
        for hash, body in packed.bodies.items():
            arguments += [hash, body]
        return bool(await self._run(scripts.ADD, *arguments))

    async def remove(
        self, session_id: str | None, *, id: str | None = None, keep: int = 0, erase: bool = False
    ) -> Removed:
        """Remove one checkpoint, all but the newest `keep`, or all."""
        if erase or session_id is None:
            checkpoints, entries, left = await self._run(scripts.FORGET, *self._names(session_id))
            return Removed(checkpoints, entries=entries, left=left)
        if id is not None:
            return Removed(await self._run(scripts.DELETE, self._name(session_id), id_bytes(id)))
        found = await self._run(scripts.PRUNE, self._name(session_id), keep)
        return Removed(len(found), tuple(id.decode(errors="surrogatepass") for id in reversed(found)))

    async def _run(self, script: str, *arguments: Argument) -> Any:
        return await self._rows.run(script, self._scope, *arguments)

    def _name(self, session_id: str) -> str:
        return session_name(self._scope.for_session(session_id))

    def _names(self, session_id: str | None) -> tuple[str, ...]:
        return () if session_id is None else (self._name(session_id),)

    def _place(self, checkpoint: Checkpoint) -> bytes:
        return self._name(checkpoint.session_id).encode() + id_bytes(checkpoint.id)


def _wanted(id: str | None) -> bytes:
    return _NEWEST if id is None else b"=" + id_bytes(id)


def _checkpoint(data: bytes) -> Checkpoint:
    with reading("a checkpoint"):
        return checkpoint_from_dict(from_bytes(data))


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + HASH] for start in range(0, len(hashes), HASH)]
