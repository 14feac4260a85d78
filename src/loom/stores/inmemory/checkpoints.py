"""Checkpoints in the process's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.message import Part
from loom.core.message_codec import (
    Data,
    entry_from_dict,
    entry_to_dict,
    from_bytes,
    part_from_dict,
    part_to_dict,
    to_bytes,
)
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.checkpoint_tree import CheckpointTree, Node


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries of the log. Their parts stand in them as bytes, which nobody can change from outside."""

    entries: tuple[Data, ...]
    parts: tuple[bytes, ...]


_Tree: TypeAlias = CheckpointTree[_Piece]
_Node: TypeAlias = Node[_Piece]


class MemoryCheckpointStore(CheckpointDoor):
    """Keeps sessions until the process ends, with every optional power. Safe to share between threads."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._lock = Lock()
        self._trees: dict[Scope, _Tree] = {}
        self._parts: dict[Scope, dict[bytes, bytes]] = {}
        self._is_closed = False

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)
        with self._lock:
            tree = self._tree(scope)
            saved = tree.find(checkpoint.session_id, checkpoint.id)
            if saved is not None and saved.checkpoint is not None:
                rules.check_same(checkpoint, entries, saved.checkpoint, _entries(saved))
                return
            parent = None if checkpoint.parent is None else tree.find(checkpoint.session_id, checkpoint.parent)
            position = None if parent is None or parent.checkpoint is None else parent.checkpoint.position
            newest = tree.newest_id(checkpoint.session_id)
            rules.check_continues(checkpoint, entries, head, newest=newest, parent=position)
            self._add(scope, tree, checkpoint, parent, entries)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        session_id = rules.session_of(scope)
        with self._lock:
            node = self._tree(scope).find(session_id, id)
            return None if node is None else node.checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        session_id = rules.session_of(scope)
        with self._lock:
            tree = self._tree(scope)
            node = tree.find(session_id, id)
            if node is None:
                raise rules.not_found(scope, id)
            return tuple(entry for piece in tree.chain(node) for entry in _entries(piece))

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)
        with self._lock:
            nodes = self._tree(scope).of(scope.session_id)[:limit]
            return tuple(node.checkpoint for node in nodes if node.checkpoint is not None)

    async def _delete(self, scope: Scope, id: str) -> bool:
        session_id = rules.session_of(scope)
        with self._lock:
            node = self._tree(scope).find(session_id, id)
            if node is not None:
                self._remove(scope, [node])
            return node is not None

    async def _forget(self, scope: Scope) -> Receipt:
        with self._lock:
            tree = self._tree(scope)
            nodes = tree.of(scope.session_id)
            gone = self._remove(scope, nodes)
            left = sum(len(node.content.entries) for node in tree.kept_for_others(nodes))
        return rules.receipt(checkpoints=len(nodes), entries=sum(len(n.content.entries) for n in gone), left=left)

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        origin, target = rules.session_of(scope), scope.for_session(session_id)
        with self._lock:
            tree = self._tree(scope)
            node = tree.find(origin, id)
            fork = rules.forked(
                None if node is None else node.checkpoint,
                id, new_id=self._ids.next_id(), session_id=session_id, at=self._clock.now(),
            )  # fmt: skip
            if tree.newest_id(session_id) is not None:
                raise rules.session_exists(session_id)
            self._add(target, tree, fork, node, ())
            return fork

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        session_id = rules.session_of(scope)
        with self._lock:
            nodes = self._tree(scope).of(session_id)[keep:][::-1]
            ids = tuple(node.checkpoint.id for node in nodes if node.checkpoint is not None)
            self._remove(scope, nodes)
            return ids

    async def aclose(self) -> None:
        """Forget everything. Closing twice is allowed."""
        with self._lock:
            self._is_closed = True
            self._trees.clear()
            self._parts.clear()

    def _tree(self, scope: Scope) -> _Tree:
        if self._is_closed:
            raise UsageError("this checkpoint store is closed; open another")
        return self._trees.get(scope.for_user()) or CheckpointTree()

    def _add(
        self, scope: Scope, tree: _Tree, checkpoint: Checkpoint, parent: _Node | None, entries: Sequence[LogEntry]
    ) -> None:
        held = self._parts.get(scope.for_user(), {})
        used: list[bytes] = []

        def keep(part: Part) -> bytes:
            data = to_bytes(part_to_dict(part))
            used.append(held.setdefault(data, data))
            return used[-1]

        piece = _Piece(tuple(entry_to_dict(entry, keep) for entry in entries), tuple(used))
        tree.add(checkpoint, parent, piece)
        self._trees[scope.for_user()], self._parts[scope.for_user()] = tree, held

    def _remove(self, scope: Scope, nodes: Sequence[_Node]) -> list[_Node]:
        """Remove checkpoints, and the parts that nobody uses any more."""
        tree, user = self._tree(scope), scope.for_user()
        gone = tree.remove(nodes)
        if not tree.nodes:
            self._trees.pop(user, None)
            self._parts.pop(user, None)
        elif gone:
            self._parts[user] = {part: part for node in tree.nodes.values() for part in node.content.parts}
        return gone


def _entries(node: _Node) -> list[LogEntry]:
    return [entry_from_dict(entry, lambda data: part_from_dict(from_bytes(data))) for entry in node.content.entries]
