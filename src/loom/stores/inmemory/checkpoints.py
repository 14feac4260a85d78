"""Checkpoints in the process's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TypeAlias

from loom.core.clock import Clock
from loom.core.log import Checkpoint, LogEntry
from loom.core.scope import Scope
from loom.core.threads import run_here
from loom.errors import UsageError
from loom.stores import _packed as packing
from loom.stores._packed import ALL, LogSlice
from loom.stores.checkpoints import Action, BaseCheckpointStore, MemoryTree, T, TreeNode

_Piece: TypeAlias = tuple[bytes, tuple[bytes, ...]]
"""The packed entries of a save, and the hashes of their parts."""


class MemoryCheckpointStore(BaseCheckpointStore):
    """Keeps sessions until the process ends; forks and prunes. Safe to share between threads."""

    needs_loop = False

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._lock = Lock()
        self._users: dict[Scope, _MemorySaves] = {}
        self._is_closed = False

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:  # noqa: ARG002
        with self._lock:
            if self._is_closed:
                raise UsageError("this checkpoint store is closed; open another")
            user = scope.for_user()
            saves = self._users.pop(user, None) or _MemorySaves()
            try:
                return run_here(action(saves))
            finally:
                if saves.nodes:
                    self._users[user] = saves

    async def aclose(self) -> None:
        """Forget everything. Closing twice is allowed."""
        with self._lock:
            self._is_closed = True
            self._users.clear()


class _MemorySaves(MemoryTree[_Piece]):
    """The saves of one user, as bytes that a caller cannot change; equal parts once."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[bytes, bytes] = {}

    def read(self, nodes: Sequence[TreeNode[_Piece]], wanted: LogSlice = ALL) -> list[LogEntry]:
        """The entries of saves, in order, or those of them that are wanted."""
        pieces = [node.content for node in nodes]
        hashes = packing.needed_hashes(pieces, wanted) if wanted.is_partial else [h for _, all in pieces for h in all]
        return packing.unpack_entries(pieces, {hash: self._parts[hash] for hash in hashes}, wanted)

    def ids_of(self, node: TreeNode[_Piece]) -> list[str]:
        """The ids of the entries of a save."""
        return packing.ids_in(node.content[0])

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: int | None) -> None:
        packed = packing.pack_entries(entries)
        self._parts.update(packed.bodies)
        self.add(checkpoint, parent, len(entries), (packed.entries, packed.hashes))

    async def drop(self, bare: Sequence[int], gone: Sequence[int]) -> None:
        if self.cut(bare, gone):
            used = {hash for node in self.nodes.values() for hash in node.content[1]}
            self._parts = {hash: body for hash, body in self._parts.items() if hash in used}
