"""Opening a checkpoint store: a URL becomes the store it names."""

from __future__ import annotations

from collections.abc import Callable

from loom.engine.place_names import written_out
from loom.errors import UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.key_values import KeyValues

_FORMS = "inmemory, files:FOLDER, sqlite:PATH, postgres://USER@HOST/DATABASE or redis://HOST:6379/0"


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
        return _inmemory()
    opens = _OPENERS.get(backend)
    if opens is None:
        raise UsageError(f"there is no checkpoint store {where!r}; write {_FORMS}")
    if not path:
        raise UsageError(f"{backend} needs an address; write {_FORMS}")
    return opens(path if backend in {"files", "sqlite"} else where)


# Each store is imported when it is first opened: the drivers of the others may not be installed.


def _inmemory() -> CheckpointStore:
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore  # noqa: PLC0415

    return MemoryCheckpointStore()


def _files(path: str) -> CheckpointStore:
    from loom.stores.files import FileCheckpointStore  # noqa: PLC0415

    return FileCheckpointStore(path)


def _sqlite(path: str) -> CheckpointStore:
    from loom.stores.sqlite.checkpoints import SqliteCheckpointStore  # noqa: PLC0415

    return SqliteCheckpointStore(path)


def _postgres(url: str) -> CheckpointStore:
    from loom.stores.postgres.checkpoints import PostgresCheckpointStore  # noqa: PLC0415

    return PostgresCheckpointStore(url)


def _redis(url: str) -> CheckpointStore:
    from loom.stores.redis.checkpoints import RedisCheckpointStore  # noqa: PLC0415

    return RedisCheckpointStore(url)


_OPENERS: dict[str, Callable[[str], CheckpointStore]] = {
    "files": _files,
    "sqlite": _sqlite,
    **dict.fromkeys(("postgres", "postgresql"), _postgres),
    **dict.fromkeys(("redis", "rediss", "unix"), _redis),
}
