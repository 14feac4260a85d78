"""Checkpoints in a key-value store: one value for each save, written once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from anyio import Lock

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.checks import check_text
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import StoreConflict, UsageError
from loom.protocols.key_values import KeyValues
from loom.stores import checkpoint_rules as rules
from loom.stores.checkpoint_door import CheckpointDoor
from loom.stores.damage import DamagedData, damage_at
from loom.stores.key_value.nodes import KeyNode, KeyTree, Save, dead, user_prefix
from loom.stores.key_value.verbs import Verbs

_KEPT: Final = 512
"""Values that are remembered: they never change."""

_TRIES: Final = 3
"""How often a log is read that another process changes under the reading."""


class KeyValueCheckpointStore(CheckpointDoor):
    """Keeps sessions in anything with save, load, list and delete by key, such as a bucket, with every optional power.

    Each save is one value under a key of its own, so it is there or not, and costs what is new; parts that come again
    in a later save are stored again. After a save the keys are listed once more: where another process continued the
    session in the meantime, both take back what they wrote or one of them does, and StoreConflict is raised. That
    needs a store whose list() shows what was just saved.

    What was given stays open when the store is closed.
    """

    def __init__(
        self, values: KeyValues, *, prefix: str = "loom/checkpoints/", text: bool = False, clock: Clock | None = None
    ) -> None:
        """Keep checkpoints in `values`.

        Args:
            values: what has the four verbs; see KeyValues.
            prefix: what every key begins with; stores with other prefixes share nothing.
            text: give values to save() as text, for what cannot keep bytes; they are JSON either way.
            clock: what time it is.
        """
        check_text(prefix, "the prefix of a key-value store")
        self._verbs = Verbs(values, text=text)
        self._place = f"the key-value store {type(values).__name__} at {prefix!r}"
        self._prefix = prefix
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._lock = Lock()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._is_closed = False

    async def _save(
        self, scope: Scope, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        rules.check_session(scope, checkpoint)
        session_id = checkpoint.session_id
        async with self._lock:
            tree = await self._tree(scope)
            if (saved := tree.find(session_id, checkpoint.id)) is not None:
                held = await self._read(scope, saved)
                if held.checkpoint is not None:
                    rules.check_same(checkpoint, entries, held.checkpoint, held.entries)
                    return
            parent = None if checkpoint.parent is None else tree.find(session_id, checkpoint.parent)
            position = None if parent is None else await self._position(scope, parent)
            newest = tree.find(session_id, None)
            last = None if newest is None else (await self._read(scope, newest)).checkpoint
            rules.check_continues(checkpoint, entries, head, newest=last.id if last else None, parent=position)
            await self._write(scope, tree, checkpoint, parent, entries)

    async def _load(self, scope: Scope, id: str | None = None) -> Checkpoint | None:
        session_id = rules.session_of(scope)
        node = (await self._tree(scope)).find(session_id, id)
        return None if node is None else (await self._read(scope, node)).checkpoint

    async def _history(self, scope: Scope, id: str) -> tuple[LogEntry, ...]:
        session_id = rules.session_of(scope)
        with damage_at(self._place):
            for _ in range(_TRIES):
                tree = await self._tree(scope)
                node = tree.find(session_id, id)
                if node is None:
                    raise rules.not_found(scope, id)
                pieces = [(one, (await self._read(scope, one)).entries) for one in tree.chain(node)]
                if all(one.entries == len(entries) for one, entries in pieces):
                    return tuple(entry for _, entries in pieces for entry in entries)
            raise DamagedData(f"a part of the log of session {session_id!r} is missing")

    async def _list(self, scope: Scope, *, limit: int | None = None) -> tuple[Checkpoint, ...]:
        rules.check_limit(limit)
        nodes = (await self._tree(scope)).of(scope.session_id)[:limit]
        found = [(await self._read(scope, node)).checkpoint for node in nodes]
        return tuple(checkpoint for checkpoint in found if checkpoint is not None)

    async def _delete(self, scope: Scope, id: str) -> bool:
        session_id = rules.session_of(scope)
        async with self._lock:
            tree = await self._tree(scope)
            node = tree.find(session_id, id)
            if node is not None:
                await self._remove(scope, tree, [node])
            return node is not None

    async def _forget(self, scope: Scope) -> Receipt:
        async with self._lock:
            tree = await self._tree(scope)
            nodes = tree.of(scope.session_id)
            gone = await self._remove(scope, tree, nodes)
            removed = {node.name for node in gone}
            left = [n for n in tree.behind(nodes) if n.name not in removed and (n in nodes or not n.live)]
            if scope.session_id is None:  # whatever a crash left goes too
                self._known.clear()
                for key in await self._verbs.keys(user_prefix(self._prefix, scope)):
                    await self._verbs.delete(key)
        entries = sum(node.entries for node in gone)
        return rules.receipt(checkpoints=len(nodes), entries=entries, left=sum(node.entries for node in left))

    async def fork(self, scope: Scope, id: str, *, session_id: str) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        origin, target = rules.session_of(scope), scope.for_session(session_id)
        async with self._lock:
            tree = await self._tree(scope)
            node = tree.find(origin, id)
            source = None if node is None else (await self._read(scope, node)).checkpoint
            fork = rules.forked(source, id, new_id=self._ids.next_id(), session_id=session_id, at=self._clock.now())
            if tree.find(session_id, None) is not None:
                raise rules.session_exists(session_id)
            await self._write(target, tree, fork, node, ())
            return fork

    async def prune(self, scope: Scope, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        rules.check_keep(keep)
        session_id = rules.session_of(scope)
        async with self._lock:
            tree = await self._tree(scope)
            nodes = tree.of(session_id)[keep:][::-1]
            found = [(await self._read(scope, node)).checkpoint for node in nodes]
            await self._remove(scope, tree, nodes)
            return tuple(checkpoint.id for checkpoint in found if checkpoint is not None)

    async def aclose(self) -> None:
        """Let go of the key-value store, which stays open. Closing twice is allowed."""
        self._is_closed = True
        self._known.clear()

    async def _tree(self, scope: Scope) -> KeyTree:
        if self._is_closed:
            raise UsageError(f"{self._place} is closed; open another")
        prefix = user_prefix(self._prefix, scope)
        return KeyTree(key.removeprefix(prefix) for key in await self._verbs.keys(prefix))

    async def _read(self, scope: Scope, node: KeyNode) -> Save:
        """The value of a save; one that was removed this moment holds nothing."""
        key = user_prefix(self._prefix, scope) + node.key
        value = self._known.get(key) or await self._verbs.load(key)
        if value is None:
            return Save(None, ())
        with damage_at(self._place):
            save = Save.from_bytes(value)
        self._keep(key, value)
        return save

    def _keep(self, key: str, value: bytes) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    async def _position(self, scope: Scope, node: KeyNode) -> int | None:
        held = (await self._read(scope, node)).checkpoint
        return None if held is None else held.position

    async def _write(
        self,
        scope: Scope,
        tree: KeyTree,
        checkpoint: Checkpoint,
        parent: KeyNode | None,
        entries: Sequence[LogEntry],
    ) -> None:
        node = tree.next(checkpoint.session_id, checkpoint.id, parent, len(entries))
        key = user_prefix(self._prefix, scope) + node.key
        value = Save(checkpoint, tuple(entries)).to_bytes()
        await self._verbs.save(key, value)
        before = {known.name for known in tree.of(checkpoint.session_id)}
        after = {known.name for known in (await self._tree(scope)).of(checkpoint.session_id)}
        if not after <= before | {node.name}:
            await self._verbs.delete(key)
            raise StoreConflict(
                f"session {checkpoint.session_id!r} was continued by somebody else at the same moment; nothing was "
                "saved: load it again before going on"
            )
        self._keep(key, value)

    async def _remove(self, scope: Scope, tree: KeyTree, nodes: Sequence[KeyNode]) -> list[KeyNode]:
        """Remove checkpoints, and the log that nobody needs any more; returns the saves that are gone."""
        prefix = user_prefix(self._prefix, scope)
        gone, kept = tree.without(nodes)
        for node in kept:
            held = await self._read(scope, node)
            await self._verbs.save(prefix + dead(node).key, Save(None, held.entries).to_bytes())
        for node in (*kept, *gone, *tree.doubled):
            self._known.pop(prefix + node.key, None)
            await self._verbs.delete(prefix + node.key)
        return gone
