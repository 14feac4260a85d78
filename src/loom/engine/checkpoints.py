"""Opening a checkpoint store: a URL becomes the store it names."""

from __future__ import annotations

from importlib import import_module

from loom.engine.place_names import written_out
from loom.errors import UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.key_values import KeyValues

_FORMS = "inmemory, files:FOLDER, sqlite:PATH, postgres://USER@HOST/DATABASE or redis://HOST:6379/0"
_FILES = {
    "files": ("loom.stores.files", "FileCheckpointStore"),
    "sqlite": ("loom.stores.sqlite.checkpoints", "SqliteCheckpointStore"),
}
_POSTGRES = ("loom.stores.postgres.checkpoints", "PostgresCheckpointStore")
_REDIS = ("loom.stores.redis.checkpoints", "RedisCheckpointStore")
_SERVERS = {"postgres": _POSTGRES, "postgresql": _POSTGRES, "redis": _REDIS, "rediss": _REDIS, "unix": _REDIS}


def open_checkpoints(where: str | CheckpointStore | KeyValues = "inmemory") -> CheckpointStore:
    """A store of sessions; nothing is read or written before the first call, and no server is asked.

    Args:
        where: `inmemory`, `files:FOLDER`, `sqlite:PATH`, `postgres://...`, `redis://...`, `rediss://...`,
            `unix://...` (the socket of a Redis server), or a store; or anything that keeps values by key, such as a
            bucket: see KeyValueCheckpointStore.
    """
    if isinstance(where, CheckpointStore):
        return where
    if not isinstance(where, str):
        from loom.stores.key_value.checkpoints import KeyValueCheckpointStore  # noqa: PLC0415  (only where it is used)

        return KeyValueCheckpointStore(where)
    where = written_out(where)
    backend, _, path = where.partition(":")
    path = path.removeprefix("//")
    if backend == "inmemory" and not path:
        return _made("loom.stores.inmemory.checkpoints", "MemoryCheckpointStore")
    if backend not in _FILES and backend not in _SERVERS:
        raise UsageError(f"there is no checkpoint store {where!r}; write {_FORMS}")
    if not path:
        raise UsageError(f"{backend} needs a place; write {_FORMS}")
    return _made(*_SERVERS[backend], where) if backend in _SERVERS else _made(*_FILES[backend], path)


def _made(module: str, name: str, *place: str) -> CheckpointStore:
    """The store, from a module that is imported only now: nobody pays for those that were not asked for."""
    made: CheckpointStore = getattr(import_module(module), name)(*place)
    return made
