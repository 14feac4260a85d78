"""A folder that one process has for itself, for engines that lose what two write to one folder at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TextIO

from loom.errors import StoreUnavailable


def locked(path: Path, what: str, instead: str) -> TextIO:
    """Lock `what` by the file at `path` until that is closed; refused with its holder, and what to do `instead`."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise StoreUnavailable(
            f"{what} is open in process {holder}, and one process may use it at a time; {instead}"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
