"""A folder that one process has for itself: Chroma loses what two processes write to one folder at a time."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import TextIO

from loom.stores.folder_lock import locked

_NAME = "loom.lock"
_lock = Lock()
_held: dict[str, tuple[TextIO, int]] = {}


def hold(folder: str) -> str:
    """Keep other processes out of a folder; returns the key to release it with. This process may hold it again."""
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    key = str(path)
    with _lock:
        file, holders = _held.get(key) or (locked(path / _NAME, f"the Chroma folder {key}", _instead(key)), 0)
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


def _instead(folder: str) -> str:
    return f"close it there, or run `chroma run --path {folder}` and give the URL of that server"
