"""Files that survive a crash: locks, durable writes, atomic replacement."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from loom.errors import StoreUnavailable, UsageError
from loom.stores.damage import damage_at

DEADLINE_SECONDS = 30.0
"""How long to wait for a lock before the store counts as unavailable."""


@contextmanager
def locked(path: Path, *, exclusive: bool) -> Generator[None]:
    """Hold the lock of a folder: one writer, or any number of readers, in all processes.

    The lock belongs to this one open file and ends with it, also when the process is killed. A writer makes the file;
    a reader that finds none reads without it, because nothing was ever written there.
    """
    try:
        import fcntl  # noqa: PLC0415 - not every system has it
    except ImportError as error:
        raise UsageError("files are locked with flock, which this system lacks; use SqliteCheckpointStore") from error
    if not exclusive and not path.exists():
        yield
        return
    handle = os.open(path, (os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY) | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{path} was held by another process for {DEADLINE_SECONDS:.0f} s; try again, or end that process"
                )
            time.sleep(0.002)
        yield
    finally:
        os.close(handle)


@contextmanager
def spoken_errors(folder: Path) -> Generator[None]:
    """Errors of the file system, and of reading what is damaged, as errors of Loom."""
    try:
        with damage_at(str(folder)):
            yield
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} cannot be read or written ({error}); check the folder, its rights and the free space"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each of them durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were added, changed or removed in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes, offset: int) -> None:
    """Write at a place, whatever number of bytes the system takes at once."""
    left = memoryview(data)
    while left:
        done = os.pwrite(handle, left, offset)
        left, offset = left[done:], offset + done


def replace_file(path: Path, data: bytes) -> None:
    """Give a file this content, so that a crash leaves the old one or the new one and never a mixture."""
    fresh = path.with_suffix(".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.replace(path)
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file and what an interrupted replacement of it left."""
    for name in (path, path.with_suffix(".new")):
        name.unlink(missing_ok=True)
    sync_folder(path.parent)
