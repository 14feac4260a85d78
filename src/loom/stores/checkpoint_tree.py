"""The checkpoints of one user in memory: which continues which, and which are still needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from loom.core.checkpoint import Checkpoint

_C = TypeVar("_C")


@dataclass(slots=True, eq=False)
class Node(Generic[_C]):
    """A piece of the log, and the checkpoint behind it; None: it was removed, and others continue its log.

    `content` is where the entries are, in whatever form a store keeps them.
    """

    number: int
    parent: Node[_C] | None
    checkpoint: Checkpoint | None
    content: _C
    children: int = 0


class CheckpointTree(Generic[_C]):
    """Nodes by session and id, in the order in which they were saved. Numbers rise and are never used again."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node[_C]] = {}
        self._sessions: dict[str, dict[str, Node[_C]]] = {}
        self._next = 0

    def find(self, session_id: str, id: str | None) -> Node[_C] | None:
        """The node of a checkpoint; without an id, of the one last saved."""
        held = self._sessions.get(session_id, {})
        return held.get(id) if id is not None else next(reversed(held.values()), None)

    def newest_id(self, session_id: str) -> str | None:
        """The id of the checkpoint last saved in a session."""
        return next(reversed(self._sessions.get(session_id, {})), None)

    def of(self, session_id: str | None) -> list[Node[_C]]:
        """The nodes with a checkpoint, of one session or of all, last saved first."""
        if session_id is not None:
            return list(reversed(self._sessions.get(session_id, {}).values()))
        return [node for node in reversed(self.nodes.values()) if node.checkpoint is not None]

    def chain(self, node: Node[_C]) -> list[Node[_C]]:
        """The nodes from the beginning of the log to this one."""
        found = [node]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found[::-1]

    def add(self, checkpoint: Checkpoint | None, parent: Node[_C] | None, content: _C) -> Node[_C]:
        """A new node, the last one of its session."""
        node = Node(self._next, parent, checkpoint, content)
        self._next += 1
        self.nodes[node.number] = node
        if parent is not None:
            parent.children += 1
        if checkpoint is not None:
            self._sessions.setdefault(checkpoint.session_id, {})[checkpoint.id] = node
        return node

    def remove(self, nodes: Iterable[Node[_C]]) -> list[Node[_C]]:
        """Take the checkpoints of these nodes away; returns the nodes whose log nobody needs any more."""
        gone: list[Node[_C]] = []
        for node in nodes:
            if node.checkpoint is not None:
                self._take(node.checkpoint)
                node.checkpoint = None
            unneeded: Node[_C] | None = node
            while unneeded is not None and self._is_unneeded(unneeded):
                del self.nodes[unneeded.number]
                gone.append(unneeded)
                unneeded = unneeded.parent
                if unneeded is not None:
                    unneeded.children -= 1
        return gone

    def kept_for_others(self, nodes: Iterable[Node[_C]]) -> list[Node[_C]]:
        """Of the logs of removed nodes, what stays because others continue it."""
        seen: dict[int, Node[_C]] = {}
        for start in nodes:
            node: Node[_C] | None = start
            while node is not None and node.number not in seen:
                seen[node.number] = node
                node = node.parent
        return [node for number, node in seen.items() if number in self.nodes and node.checkpoint is None]

    def _is_unneeded(self, node: Node[_C]) -> bool:
        return node.checkpoint is None and not node.children and node.number in self.nodes

    def _take(self, checkpoint: Checkpoint) -> None:
        held = self._sessions[checkpoint.session_id]
        del held[checkpoint.id]
        if not held:
            del self._sessions[checkpoint.session_id]
