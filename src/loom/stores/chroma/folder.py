"""A folder that one process has for itself: Chroma loses what two processes write to one folder at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Lock
from typing import TextIO

from loom.errors import StoreUnavailable

_NAME = "loom.lock"
_lock = Lock()
_held: dict[str, tuple[TextIO, int]] = {}


def hold(folder: str) -> str:
    """Keep other processes out of a folder; returns the key to release it with. This process may hold it again."""
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    key = str(path)
    with _lock:
        file, holders = _held.get(key) or (_locked(path / _NAME, key), 0)
        _held[key] = (file, holders + 1)
    return key


def release(key: str) -> None:
    """Let the folder go; other processes may have it when nobody of this one holds it any longer."""
    with _lock:
        file, holders = _held.pop(key)
        if holders > 1:
            _held[key] = (file, holders - 1)
        else:
            file.close()


def _locked(path: Path, folder: str) -> TextIO:
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise StoreUnavailable(
            f"the Chroma folder {folder} is open in process {holder}, and one process may use it at a time; "
            f"close it there, or run `chroma run --path {folder}` and give the URL of that server"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
