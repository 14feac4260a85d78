"""Checkpoints on the server: what is read and changed, each call one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock
from loom.core.message_codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.scope import Scope
from loom.stores.checkpoint_parts import HASH, pack_entries, unpack_entries
from loom.stores.damage import reading
from loom.stores.redis import checkpoint_scripts as scripts
from loom.stores.redis.codec import id_bytes, micros
from loom.stores.redis.link import Argument, Link
from loom.stores.redis.names import CheckpointNames, session_name

_NEWEST = b"-"
_NONE = b""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, its session and its node."""

    scope: Scope
    node: bytes
    checkpoint: Checkpoint


class CheckpointRows:
    """The checkpoints of all users; a session is over `ttl` after its last save."""

    def __init__(self, link: Link, names: CheckpointNames, clock: Clock, ttl: timedelta | None) -> None:
        self._link, self._names, self._clock, self._ttl = link, names, clock, ttl

    async def find(self, scope: Scope, *ids: str | None) -> list[Found | None]:
        """Checkpoints of the scope's session, as they are at one moment; None asks for the one last saved."""
        found = await self._run(scripts.FIND, scope, session_name(scope), *map(_wanted, ids))
        return [None if one is None else Found(scope, one[0], _checkpoint(one[1])) for one in found]

    async def list(self, scope: Scope, limit: int | None) -> list[Checkpoint]:
        """The checkpoints that the scope covers, last saved first."""
        found = await self._run(scripts.LIST, scope, -1 if limit is None else limit, *_sessions(scope))
        return [_checkpoint(data) for data in found]

    async def log(self, scope: Scope, id: str, *, last: int | None = None) -> list[LogEntry] | None:
        """The entries up to a checkpoint, or of its `last` saves; None where it is not there."""
        most = -1 if last is None else last
        found = await self._run(scripts.LOG, scope, session_name(scope), _wanted(id), most)
        if found is None:
            return None
        saves, bodies = found
        pieces = [(entries, _split(hashes)) for entries, hashes in reversed(saves)]
        return unpack_entries(pieces, dict(zip(bodies[::2], bodies[1::2], strict=True)))

    async def add(
        self,
        scope: Scope,
        checkpoint: Checkpoint,
        entries: Sequence[LogEntry],
        *,
        newest: Found | None,
        parent: Found | None,
    ) -> bool:
        """Save behind `newest`, continuing `parent`; False, and nothing is saved, if they are no longer so."""
        packed = pack_entries(entries)
        ends = "+inf" if self._ttl is None else micros(self._clock.now() + self._ttl)
        arguments: list[Argument] = [ends, session_name(scope), id_bytes(checkpoint.id)]
        arguments += [_NONE if newest is None else newest.node]
        arguments += [_NONE, _NONE] if parent is None else [_place(parent), parent.node]
        arguments += [to_bytes(checkpoint_to_dict(checkpoint)), packed.entries, len(entries), b"".join(packed.hashes)]
        for hash, body in packed.bodies.items():
            arguments += [hash, body]
        return bool(await self._run(scripts.ADD, scope, *arguments))

    async def delete(self, scope: Scope, id: str) -> bool:
        """Remove one checkpoint; False where it was not there."""
        return bool(await self._run(scripts.DELETE, scope, session_name(scope), id_bytes(id)))

    async def prune(self, scope: Scope, keep: int) -> list[str]:
        """Remove all but the newest of a session; returns the ids removed, oldest first."""
        found = await self._run(scripts.PRUNE, scope, session_name(scope), keep)
        return [id.decode(errors="surrogatepass") for id in reversed(found)]

    async def forget(self, scope: Scope) -> tuple[int, int, int]:
        """Remove what the scope covers; returns how many checkpoints and entries went, and entries that stay."""
        checkpoints, entries, left = await self._run(scripts.FORGET, scope, *_sessions(scope))
        return checkpoints, entries, left

    async def _run(self, script: str, scope: Scope, *arguments: Argument) -> Any:
        keys = (self._names.number, *self._names.user(scope))
        return await self._link.run(script, keys, (micros(self._clock.now()), *arguments))


def _wanted(id: str | None) -> bytes:
    return _NEWEST if id is None else b"=" + id_bytes(id)


def _sessions(scope: Scope) -> tuple[str, ...]:
    return () if scope.session_id is None else (session_name(scope),)


def _place(found: Found) -> bytes:
    return session_name(found.scope).encode() + id_bytes(found.checkpoint.id)


def _checkpoint(data: bytes) -> Checkpoint:
    with reading("a checkpoint"):
        return checkpoint_from_dict(from_bytes(data))


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[start : start + HASH] for start in range(0, len(hashes), HASH)]
