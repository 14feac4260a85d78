"""Checkpoints on a Redis server: each call of the port is one script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.checks import check_text
from loom.core.clock import Clock
from loom.core.message_codec import checkpoint_from_dict, checkpoint_to_dict, from_bytes, to_bytes
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores.checkpoints import (
    HASH,
    Action,
    BaseCheckpointStore,
    CheckpointPort,
    Removed,
    Saved,
    T,
    pack_entries,
    unpack_entries,
)
from loom.stores.damage import reading
from loom.stores.redis import checkpoint_scripts as scripts
from loom.stores.redis.codec import id_bytes, micros
from loom.stores.redis.describing import server_labels
from loom.stores.redis.forgetting import FILES
from loom.stores.redis.link import Argument, Guarantees, RedisConnection
from loom.stores.redis.names import CheckpointNames, session_name

_NEWEST = b"-"
_NONE = b""


class RedisCheckpointStore(BaseCheckpointStore):
    """Keeps sessions on a Redis server; forks and prunes. Any number of stores and processes may share it.

    With `ttl`, a session expires that long after its last save: from then on no call sees it. Its data goes with the
    next change of its user, and Redis drops everything of a user by itself when their last session expires. A log that
    a fork begins with stays as long as the fork. A save with another `ttl`, or none, sets the end anew.

    `prefix`, `durable` and `timeout` are those of a RedisStore, which may have the same prefix. The URL may say
    `?durable=true&ttl=30d` as well; what it says of layers is for memories.
    """

    _after_forgetting = FILES

    def __init__(
        self,
        url: str,
        *,
        ttl: timedelta | None = None,
        clock: Clock | None = None,
        prefix: str = "loom",
        durable: bool | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(clock)
        check_text(prefix, "the prefix of a Redis store")
        if ttl is not None and ttl < timedelta(milliseconds=1):
            raise UsageError(f"sessions with ttl={ttl} are over at once; give at least a millisecond, or None")
        names = CheckpointNames(prefix)
        self._link = RedisConnection(url, durable=durable, format_key=names.format, timeout=timeout)
        ttl = self._link.said.ttl.get(None) if ttl is None else ttl
        self._prefix, self._ttl = prefix, ttl
        self._rows = _Scripts(self._link, names, self._clock, ttl)

    async def __aenter__(self) -> Self:
        await self._link.guarantees()
        return self

    async def guarantees(self) -> Guarantees:
        """The durability of acknowledged saves, as the server is set up now."""
        return await self._link.guarantees()

    async def describe(self) -> dict[str, str]:
        """The store and its guarantees, by label."""
        kept = "for ever" if self._ttl is None else f"for {self._ttl} after their last save"
        found = await self._link.guarantees()
        return {**server_labels(found, self._prefix), "retention": f"sessions are kept {kept}"}

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:  # noqa: ARG002 - a script is a step
        return await action(_RedisSaves(self._rows, scope))

    async def aclose(self) -> None:
        """Close the connections. Closing twice is allowed."""
        await self._link.aclose()


@dataclass(frozen=True, slots=True)
class _Scripts:
    """The checkpoints of all users; a session is over `ttl` after its last save."""

    _link: RedisConnection
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


class _RedisSaves(CheckpointPort[bytes]):
    """The saves of one user. Scripts see nothing of each other, so that append() compares what was read before."""

    def __init__(self, rows: _Scripts, scope: Scope) -> None:
        self._rows, self._scope = rows, scope

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[bytes] | None]:
        found = await self._run(scripts.FIND, self._name(session_id), *map(_wanted, ids))
        return [None if one is None else Saved(one[0], _checkpoint(one[1])) for one in found]

    async def checkpoints(self, session_id: str | None, limit: int | None) -> list[Checkpoint]:
        found = await self._run(scripts.LIST, -1 if limit is None else limit, *self._names(session_id))
        return [_checkpoint(data) for data in found]

    async def log(self, session_id: str, id: str, *, whole: bool) -> list[LogEntry] | None:
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
