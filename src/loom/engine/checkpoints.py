"""Opening a checkpoint store: a URL becomes the store it names."""

from __future__ import annotations

from loom.errors import UsageError
from loom.protocols.checkpoint_store import CheckpointStore

_FORMS = "inmemory, files:FOLDER or sqlite:PATH"


def open_checkpoints(where: str | CheckpointStore = "inmemory") -> CheckpointStore:
    """A store of sessions; nothing is read or written before the first call.

    Args:
        where: `inmemory`, `files:FOLDER`, `sqlite:PATH`, or a store.
    """
    if not isinstance(where, str):
        return where
    backend, _, path = where.partition(":")
    path = path.removeprefix("//")
    if backend == "inmemory" and not path:
        from loom.stores.inmemory.checkpoints import MemoryCheckpointStore  # noqa: PLC0415  (only what is asked for)

        return MemoryCheckpointStore()
    if backend not in ("files", "sqlite"):
        raise UsageError(f"there is no checkpoint store {where!r}; write {_FORMS}")
    if not path:
        raise UsageError(f"{backend} needs a place; write {_FORMS}")
    if backend == "files":
        from loom.stores.files import FileCheckpointStore  # noqa: PLC0415

        return FileCheckpointStore(path)
    from loom.stores.sqlite.checkpoints import SqliteCheckpointStore  # noqa: PLC0415

    return SqliteCheckpointStore(path)
