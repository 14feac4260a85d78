"""Checkpoints in a folder: one append-only file per user, synced to disk.

The first frame says the format and whose file it is. Each frame after it is one change:
    {"checkpoint": ..., "parent": 3, "entries": [...], "parts": [...]}   a save; parts are the new ones
    {"removed": [1, 2]}                                                  checkpoints that were deleted
Saves and parts are numbered from 0 in the order in which they stand in the file; `parent` and the parts of an entry
are such numbers, and so is the body of a recorded entry, which stands among the parts. A save without a checkpoint is
the log of one that was deleted, kept for those that continue it.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias
from zlib import crc32

from loom.core import codec
from loom.core.clock import Clock
from loom.core.codec import Data
from loom.core.log import Checkpoint, LogEntry
from loom.core.message import JSON, Part
from loom.core.scope import Scope
from loom.core.threads import in_thread, run_here
from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.stores._packed import ALL, LogSlice, no_body
from loom.stores.base import damage_at, lock_handle, reading, unlock_handle
from loom.stores.checkpoints import Action, BaseCheckpointStore, MemoryTree, Removed, T, TreeNode

# Records in an append-only file, each with its length and checksum, so that half a write is seen.

_MARK = b"\xffLM\n"
"""Begins each frame, and cannot stand inside one: the byte FF is never part of UTF-8."""
_HEADER = struct.Struct("<4sII")
HEADER_SIZE = _HEADER.size
MAX_PAYLOAD = 2**32 - 1


def framed(payload: bytes) -> bytes:
    """A frame: mark, length, checksum, payload."""
    return _HEADER.pack(_MARK, len(payload), _checksum(payload)) + payload


def frames_of(data: bytes, what: str) -> tuple[list[tuple[int, bytes]], int]:
    """The frames as (offset, payload), and where the last whole one ends.

    After it there may be a write that was cut short. Raises StoreError if a whole frame comes after a broken one:
    that is damage, and cutting there would lose acknowledged saves.
    """
    found: list[tuple[int, bytes]] = []
    end = 0
    while (payload := _payload_at(data, end)) is not None:
        found.append((end, payload))
        end += HEADER_SIZE + len(payload)
    later = data.find(_MARK, end + 1)
    while later != -1:
        if _payload_at(data, later) is not None:
            raise StoreError(f"{what} is damaged at byte {end} and sound again at {later}; restore it from a copy")
        later = data.find(_MARK, later + 1)
    return found, end


def _payload_at(data: bytes, offset: int) -> bytes | None:
    if len(data) - offset < HEADER_SIZE:
        return None
    mark, length, checksum = _HEADER.unpack_from(data, offset)
    payload = data[offset + HEADER_SIZE : offset + HEADER_SIZE + length]
    if mark != _MARK or len(payload) != length or _checksum(payload) != checksum:
        return None
    return payload


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(len(payload).to_bytes(4, "little")))


# Files that survive a crash: locks, durable writes, atomic replacement.

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened: child processes do not inherit them, and Windows changes no line ends."""
DEADLINE_SECONDS = 30.0
"""How long to wait for a lock before the store counts as unavailable."""


@contextmanager
def locked(path: Path, *, exclusive: bool) -> Generator[None]:
    """Hold the lock of a folder: one writer, or any number of readers, in all processes.

    The lock belongs to this one open file and ends with it, also when the process is killed. A writer makes the file;
    a reader that finds none reads without it, because nothing was ever written there.
    """
    if not exclusive and not path.exists():
        yield
        return
    handle = os.open(path, (os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY) | _FLAGS, 0o600)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            with suppress(BlockingIOError, PermissionError):
                lock_handle(handle, exclusive=exclusive)
                break
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{path} was held by another process for {DEADLINE_SECONDS:.0f} s; try again, or end that process"
                )
            time.sleep(0.002)
        try:
            yield
        finally:
            unlock_handle(handle)
    finally:
        os.close(handle)


@contextmanager
def translate_errors(folder: Path) -> Generator[None]:
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
    """Make names that were added, changed or removed in a folder durable. Windows does so by itself, in its journal."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


if sys.platform == "win32":  # a handle has one place there; the lock of the store keeps other threads away

    def _read_at(handle: int, size: int, offset: int) -> bytes:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)

    def _write_at(handle: int, data: memoryview, offset: int) -> int:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)

else:

    def _read_at(handle: int, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    def _write_at(handle: int, data: memoryview, offset: int) -> int:
        return os.pwrite(handle, data, offset)


def write_all(handle: int, data: bytes, offset: int) -> None:
    """Write at a place, whatever number of bytes the system takes at once."""
    left = memoryview(data)
    while left:
        done = _write_at(handle, left, offset)
        left, offset = left[done:], offset + done


def replace_file(path: Path, data: bytes) -> None:
    """Give a file this content, so that a crash leaves the old one or the new one and never a mixture."""
    fresh = path.with_suffix(".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.replace(path)
    sync_folder(path.parent)


_MOST_OPEN = 32
"""Files of users that stay open, because a process may open only so many."""
FORMAT = 2
_SMALLEST_REWRITE = 64 * 1024
"""A smaller file is not worth a rewrite, whatever part of it is of no use."""


class FileCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in a folder; forks and prunes. Several stores and processes may share it.

    An acknowledged save survives the end of the process and a power cut; what a crash left unfinished is cut off.
    The name of a file is a hash of the user's scope, so that no id can name another file. On Windows a file is read
    anew for every call.
    """

    needs_loop = False

    def __init__(self, folder: str | PathLike[str], *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._folder = Path(folder)
        self._lock = Lock()
        self._logs: OrderedDict[Scope, _UserLog] = OrderedDict()
        self._is_closed = False

    async def aclose(self) -> None:
        """Release the files. Closing twice is allowed."""
        await in_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            for log in self._logs.values():
                log.close()
            self._logs.clear()

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        return await in_thread(partial(self._run, scope, action, writes))

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        return await in_thread(partial(self._run, scope, action, True, True)), ()

    def _run(self, scope: Scope, action: Action[T], exclusive: bool, erases: bool = False) -> T:
        """The result of an action on the user's log as it is now, while no other process changes it."""
        with self._lock, translate_errors(self._folder):
            if self._is_closed:
                raise UsageError(f"the checkpoint store {self._folder} is closed; open another")
            if exclusive:
                make_folder(self._folder)
            with locked(self._folder / "lock", exclusive=exclusive):
                log = self._log(scope.for_user())
                try:
                    log.refresh(repair=exclusive)
                    log.erases = erases
                    return run_here(action(log))
                finally:
                    if sys.platform == "win32":  # a file that is open cannot be replaced by another process
                        log.close()

    def _log(self, user: Scope) -> _UserLog:
        log = self._logs.pop(user, None)
        if log is None:
            log = _UserLog(self._folder / f"{sha256(user.key().encode()).hexdigest()}.log", user)
        self._logs[user] = log
        while len(self._logs) > _MOST_OPEN:
            self._logs.popitem(last=False)[1].close()
        return log


class _FramePlace(NamedTuple):
    """Where the frame of a save is in the file."""

    offset: int
    size: int


_LogNode: TypeAlias = TreeNode[_FramePlace]


class _UserLog(MemoryTree[_FramePlace]):
    """A user's file and the saves in it; the caller holds the folder's lock during every call."""

    def __init__(self, path: Path, scope: Scope) -> None:
        super().__init__()
        self._path, self._scope = path, scope.for_user()
        self._handle: int | None = None
        self.erases = False
        """Whether removed bytes have to go at once, and not only when half of the file is of no use."""

    def clear(self) -> None:
        """Forget all that was read."""
        super().clear()
        self._parts: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._end = self._dead = 0

    def refresh(self, *, repair: bool) -> None:
        """Read what other processes wrote. `repair` cuts off a write that a crash left unfinished."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self.close()
            return
        held = None if self._handle is None else os.fstat(self._handle)
        # An open file keeps its number, so the same number is the same file.
        if held is None or (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino) or found.st_size < self._end:
            self.close()
            self._handle = os.open(self._path, os.O_RDWR | _FLAGS)
        if self._end and found.st_size == self._end:
            return
        try:
            self._take_in(found.st_size)
        except BaseException:
            self.close()
            raise
        if repair and self._handle is not None:
            os.ftruncate(self._handle, self._end)
            # A process that was killed may have written without making it durable; what is built on it must be.
            os.fsync(self._handle)

    def _take_in(self, size: int) -> None:
        """Replay the frames from where the last reading ended."""
        start = self._end
        frames, end = frames_of(self._bytes(start, size - start), str(self._path))
        if start + end == 0:  # the first frame came with the file's name, and so cannot be half written
            raise StoreError(
                f"{self._path} is not a log of Loom, or is damaged at its beginning; restore it from a copy"
            )
        with reading(str(self._path)):
            for offset, payload in frames:
                self._replay(start + offset, HEADER_SIZE + len(payload), codec.from_bytes(payload))
        self._end = start + end

    def close(self) -> None:
        """Release the file; what it holds is read again when it is needed."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self.clear()

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: int | None) -> None:
        self._append(self._packed(checkpoint, parent, entries))

    async def drop(self, bare: Sequence[int], gone: Sequence[int]) -> None:
        if self.erases:
            self._erase(bare, gone)
            return
        with_checkpoint = (number for number in (*bare, *gone) if self.nodes[number].checkpoint is not None)
        self._append({"removed": sorted(with_checkpoint)})
        if self._dead > max(_SMALLEST_REWRITE, self._end // 2):
            self._rewrite()

    def _erase(self, bare: Sequence[int], gone: Sequence[int]) -> None:
        try:
            self.cut(bare, gone)
            if bare or gone or self._dead:
                self._rewrite()
        except BaseException:
            self.close()  # nothing was removed from the file, so it is read again
            raise

    def read(self, nodes: Sequence[_LogNode], wanted: LogSlice = ALL) -> list[LogEntry]:
        """The entries of saves, in order, or those of them that are wanted."""
        frames: dict[int, Data] = {}

        def frame(offset: int) -> Data:
            if offset not in frames:
                frames[offset] = self._frame(offset)
            return frames[offset]

        def piece(number: JSON) -> JSON:
            offset, index = self._parts[int(number)]
            return frame(offset)["parts"][index]

        def get(number: JSON) -> Part:
            return codec.part_from_dict(piece(number))

        def get_body(entry: Data) -> JSON | bytes:
            return codec.body_from_dict(piece(entry["json"]))

        with reading(str(self._path), but=(OSError,)):
            found = wanted.chosen([entry for node in nodes for entry in frame(node.content.offset)["entries"]])
            bodies = get_body if wanted.bodies else no_body
            return [codec.entry_from_dict(entry, get, bodies) for entry in found]

    def ids_of(self, node: _LogNode) -> list[str]:
        """The ids of the entries of a save."""
        with reading(str(self._path), but=(OSError,)):
            return [entry["id"] for entry in self._frame(node.content.offset)["entries"]]

    def _packed(self, checkpoint: Checkpoint | None, parent: int | None, entries: Sequence[LogEntry]) -> Data:
        """A save as it is written, parts replaced by their numbers."""
        fresh: list[Data] = []
        numbers: dict[bytes, int] = {}

        def keep(data: Data) -> int:
            digest = _digest(data)
            number = self._numbers.get(digest, numbers.get(digest))
            if number is None:
                number = numbers[digest] = len(self._parts) + len(fresh)
                fresh.append(data)
            return number

        def put(part: Part) -> int:
            return keep(codec.part_to_dict(part))

        def put_body(body: JSON | bytes) -> Data:
            return {"json": keep(codec.body_to_dict(body))}

        packed: Data = {} if checkpoint is None else {"checkpoint": codec.checkpoint_to_dict(checkpoint)}
        if parent is not None:
            packed["parent"] = parent
        packed["entries"] = [codec.entry_to_dict(entry, put, put_body) for entry in entries]
        return packed | ({"parts": fresh} if fresh else {})

    def _append(self, change: Data) -> None:
        if self._handle is None:
            replace_file(self._path, self._first_frame() + _frame_of(change))
            self.refresh(repair=False)
            return
        data = _frame_of(change)
        try:
            write_all(self._handle, data, self._end)
            os.fsync(self._handle)
        except OSError:
            # Whether the bytes are on the disk is unknown: take them back, and read the file again at the next call.
            with suppress(OSError):
                os.ftruncate(self._handle, self._end)
            self.close()
            raise
        self._replay(self._end, len(data), change)
        self._end += len(data)

    def _rewrite(self) -> None:
        """Write a new file of what is still needed, in place of the old one."""
        if not self.nodes:
            self.close()  # Windows removes and replaces no open file
            for path in (self._path, self._path.with_suffix(".new")):  # also what an interrupted replacement left
                path.unlink(missing_ok=True)
            sync_folder(self._path.parent)
            return
        fresh = _UserLog(self._path, self._scope)
        data = bytearray(self._first_frame())
        numbers: dict[int | None, int | None] = {None: None}
        for place, (number, node) in enumerate(self.nodes.items()):
            numbers[number] = place
            change = fresh._packed(node.checkpoint, numbers[node.parent], self.read([node]))
            frame = _frame_of(change)
            fresh._replay(len(data), len(frame), change)
            data += frame
        self.close()
        replace_file(self._path, bytes(data))
        self.refresh(repair=False)

    def _first_frame(self) -> bytes:
        return _frame_of({"format": FORMAT, "namespace": self._scope.namespace, "user_id": self._scope.user_id})

    def _replay(self, offset: int, size: int, change: Data) -> None:
        """Take one frame in."""
        if "format" in change:
            codec.check_format(int(change["format"]), str(self._path))
            if (change["namespace"], change["user_id"]) != (self._scope.namespace, self._scope.user_id):
                raise StoreError(f"{self._path} belongs to another user; put it back under its own name")
        elif "removed" in change:
            removed: list[int] = change["removed"]
            gone, _ = run_here(self.unneeded(removed, thorough=False))
            cut = self.cut([number for number in removed if number not in gone], list(gone))
            self._dead += size + sum(node.content.size for node in cut)
        else:
            for index, part in enumerate(change.get("parts", ())):
                self._numbers[_digest(part)] = len(self._parts)
                self._parts.append((offset, index))
            checkpoint = codec.checkpoint_from_dict(change["checkpoint"]) if "checkpoint" in change else None
            self.add(checkpoint, change.get("parent"), len(change["entries"]), _FramePlace(offset, size))

    def _frame(self, offset: int) -> Data:
        header = self._bytes(offset, HEADER_SIZE)
        size = int.from_bytes(header[4:8], "little")
        return codec.from_bytes(self._bytes(offset + HEADER_SIZE, size))

    def _bytes(self, offset: int, size: int) -> bytes:
        if self._handle is None:
            raise StoreError(f"{self._path} is closed")
        data = _read_at(self._handle, size, offset)
        while len(data) < size and (more := _read_at(self._handle, size - len(data), offset + len(data))):
            data += more
        return data


def _digest(part: Data) -> bytes:
    return sha256(codec.to_bytes(part)).digest()


def _frame_of(change: Data) -> bytes:
    payload = codec.to_bytes(change)
    if len(payload) > MAX_PAYLOAD:
        raise StoreError(f"one save takes {len(payload):,} bytes; at most {MAX_PAYLOAD:,} fit: save in smaller steps")
    return framed(payload)
