"""A folder that one process has for itself: Chroma loses what two processes write to one folder at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Lock
from typing import TextIO

from loom.core.forks import renew_lock_after_fork
from loom.stores.folder_lock import locked

_NAME = "loom.lock"
_lock = Lock()
renew_lock_after_fork(sys.modules[__name__], "_lock")
_held: dict[tuple[int, str], tuple[TextIO, int]] = {}
"""By process and folder: what the parent holds, a forked child does not hold as well."""


def hold(folder: str) -> str:
    """Keep other processes out of a folder; returns the key to release it with. This process may hold it again."""
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    key = str(path)
    with _lock:
        mine = (os.getpid(), key)
        file, holders = _held.get(mine) or (locked(path / _NAME, f"the Chroma folder {key}", _instead(key)), 0)
        _held[mine] = (file, holders + 1)
    return key


def release(key: str) -> None:
    """Release the folder; other processes may use it once no store of this one does."""
    with _lock:
        mine = (os.getpid(), key)
        file, holders = _held.pop(mine)
        if holders > 1:
            _held[mine] = (file, holders - 1)
        else:
            file.close()


def _instead(folder: str) -> str:
    return f"close it there, or run `chroma run --path {folder}` and give the URL of that server"
