"""The file of one user: every session of his, appended save by save, each part once.

The first frame says the format and whose file it is. Each frame after it is one change:
    {"checkpoint": ..., "parent": 3, "entries": [...], "parts": [...]}   a save; parts are the new ones
    {"removed": [1, 2]}                                                  checkpoints that were deleted
Saves and parts are numbered from 0 in the order in which they stand in the file; `parent` and the parts of an entry
are such numbers. A save without a checkpoint is the log of one that was deleted, kept for those that continue it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.message import JSON, Part
from loom.core.message_codec import (
    Data,
    check_format,
    checkpoint_from_dict,
    checkpoint_to_dict,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    part_from_dict,
    part_to_dict,
    to_bytes,
)
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.stores.checkpoint_tree import CheckpointTree, Node
from loom.stores.damage import reading
from loom.stores.files.disk import remove_file, replace_file, write_all
from loom.stores.files.frames import HEADER_SIZE, MAX_PAYLOAD, framed, frames_of

FORMAT = 1
_SMALLEST_REWRITE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where a save stands in the file, and how many entries it brought."""

    offset: int
    size: int
    entries: int


LogNode: TypeAlias = Node[Place]


class UserLog:
    """A user's file and what it holds; the caller holds the folder's lock during every call."""

    def __init__(self, path: Path, scope: Scope) -> None:
        self._path, self._scope = path, scope.for_user()
        self._handle: int | None = None
        self._clear()

    def _clear(self) -> None:
        self.tree: CheckpointTree[Place] = CheckpointTree()
        self._parts: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {}
        self._end = self._dead = 0

    def refresh(self, *, repair: bool) -> None:
        """Take in what others wrote. `repair` cuts off a write that a crash left unfinished."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self.close()
            return
        held = None if self._handle is None else os.fstat(self._handle)
        # An open file keeps its number, so the same number is the same file.
        if held is None or (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino) or found.st_size < self._end:
            self.close()
            self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
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
        frames, end = frames_of(self._read(start, size - start), str(self._path))
        if start + end == 0:  # the first frame came with the file's name, and so cannot be half written
            raise StoreError(f"{self._path} is no log of Loom, or is damaged at its beginning; restore it from a copy")
        with reading(str(self._path)):
            for offset, payload in frames:
                self._replay(start + offset, HEADER_SIZE + len(payload), from_bytes(payload))
        self._end = start + end

    def close(self) -> None:
        """Release the file; what it holds is read again when it is needed."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._clear()

    def add(self, checkpoint: Checkpoint, parent: LogNode | None, entries: Sequence[LogEntry]) -> None:
        """Append a save, durably."""
        self._append(self._packed(checkpoint, parent, entries))

    def remove(self, nodes: Sequence[LogNode]) -> None:
        """Delete checkpoints, durably; their bytes go when half of the file is of no use.

        forget() is for those that must go at once.
        """
        if nodes:
            self._append({"removed": [node.number for node in nodes]})
        if self._dead > max(_SMALLEST_REWRITE, self._end // 2):
            self._rewrite()

    def forget(self, nodes: Sequence[LogNode]) -> tuple[list[LogNode], list[LogNode]]:
        """Delete checkpoints and every byte that nobody needs; returns what went, and what is left to others."""
        try:
            gone = self.tree.remove(nodes)
            left = self.tree.kept_for_others(nodes)
            if nodes or self._dead:
                self._rewrite()
        except BaseException:
            self.close()  # nothing was removed from the file, so it is read again
            raise
        return gone, left

    def entries(self, nodes: Sequence[LogNode]) -> list[LogEntry]:
        """The entries of saves, in order."""
        frames: dict[int, Data] = {}

        def frame(offset: int) -> Data:
            if offset not in frames:
                frames[offset] = self._frame(offset)
            return frames[offset]

        def get(number: JSON) -> Part:
            offset, index = self._parts[int(number)]
            return part_from_dict(frame(offset)["parts"][index])

        with reading(str(self._path), but=(OSError,)):
            return [entry_from_dict(entry, get) for node in nodes for entry in frame(node.content.offset)["entries"]]

    def _packed(self, checkpoint: Checkpoint | None, parent: LogNode | None, entries: Sequence[LogEntry]) -> Data:
        """A save as it is written, parts replaced by their numbers."""
        fresh: list[Data] = []
        numbers: dict[bytes, int] = {}

        def put(part: Part) -> int:
            data = part_to_dict(part)
            digest = _digest(data)
            number = self._numbers.get(digest, numbers.get(digest))
            if number is None:
                number = numbers[digest] = len(self._parts) + len(fresh)
                fresh.append(data)
            return number

        packed: Data = {} if checkpoint is None else {"checkpoint": checkpoint_to_dict(checkpoint)}
        if parent is not None:
            packed["parent"] = parent.number
        packed["entries"] = [entry_to_dict(entry, put) for entry in entries]
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
        if not self.tree.nodes:
            remove_file(self._path)
            self.close()
            return
        fresh = UserLog(self._path, self._scope)
        data = bytearray(self._first_frame())
        twins: dict[int, LogNode] = {}
        for number, node in self.tree.nodes.items():
            parent = None if node.parent is None else twins[node.parent.number]
            change = fresh._packed(node.checkpoint, parent, self.entries([node]))
            frame = _frame_of(change)
            fresh._replay(len(data), len(frame), change)
            twins[number] = fresh.tree.nodes[len(twins)]
            data += frame
        replace_file(self._path, bytes(data))
        self.close()
        self.refresh(repair=False)

    def _first_frame(self) -> bytes:
        return _frame_of({"format": FORMAT, "namespace": self._scope.namespace, "user_id": self._scope.user_id})

    def _replay(self, offset: int, size: int, change: Data) -> None:
        """Take one frame in."""
        if "format" in change:
            check_format(int(change["format"]), str(self._path))
            if (change["namespace"], change["user_id"]) != (self._scope.namespace, self._scope.user_id):
                raise StoreError(f"{self._path} belongs to another user; put it back under its own name")
        elif "removed" in change:
            gone = self.tree.remove([self.tree.nodes[number] for number in change["removed"]])
            self._dead += size + sum(node.content.size for node in gone)
        else:
            self._replay_save(offset, size, change)

    def _replay_save(self, offset: int, size: int, change: Data) -> None:
        for index, part in enumerate(change.get("parts", ())):
            self._numbers[_digest(part)] = len(self._parts)
            self._parts.append((offset, index))
        checkpoint = checkpoint_from_dict(change["checkpoint"]) if "checkpoint" in change else None
        parent = self.tree.nodes[change["parent"]] if "parent" in change else None
        self.tree.add(checkpoint, parent, Place(offset, size, len(change["entries"])))

    def _frame(self, offset: int) -> Data:
        header = self._read(offset, HEADER_SIZE)
        size = int.from_bytes(header[4:8], "little")
        return from_bytes(self._read(offset + HEADER_SIZE, size))

    def _read(self, offset: int, size: int) -> bytes:
        if self._handle is None:
            raise StoreError(f"{self._path} is closed")
        data = os.pread(self._handle, size, offset)
        while len(data) < size and (more := os.pread(self._handle, size - len(data), offset + len(data))):
            data += more
        return data


def _digest(part: Data) -> bytes:
    return sha256(to_bytes(part)).digest()


def _frame_of(change: Data) -> bytes:
    payload = to_bytes(change)
    if len(payload) > MAX_PAYLOAD:
        raise StoreError(f"one save takes {len(payload):,} bytes; at most {MAX_PAYLOAD:,} fit: save in smaller steps")
    return framed(payload)
