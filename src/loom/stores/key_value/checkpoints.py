"""Checkpoints in any key-value store: one value per save.

The order, the session and the parent of a save are in its key, the rest is in its value.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from inspect import Parameter, isawaitable, iscoroutinefunction, signature
from random import random
from typing import Any, Final, cast

import anyio.to_thread
from anyio import Lock

from loom.core import codec
from loom.core.checks import check_text
from loom.core.clock import Clock
from loom.core.log import Checkpoint, LogEntry, Recorded, SavedSession, recorded_again
from loom.core.message import JSON
from loom.core.scope import Scope
from loom.errors import LoomError, StoreUnavailable, UsageError
from loom.protocols.checkpoint_store import KeyValues
from loom.stores._packed import LogSlice
from loom.stores.base import DamagedData, damage_error, reading
from loom.stores.checkpoints import (
    Action,
    BaseCheckpointStore,
    Matching,
    Removed,
    Saved,
    T,
    TreeLink,
    TreePort,
    ancestors_of,
    saved_session,
)

# Calling the four verbs of a key-value store, whether they are coroutines or block.

_ABSENT = (KeyError, FileNotFoundError)


class Verbs:
    """The verbs of a key-value store as coroutines, its errors as those of a store."""

    def __init__(self, values: KeyValues, *, text: bool) -> None:
        missing = [verb for verb in ("save", "load", "list", "delete") if not callable(getattr(values, verb, None))]
        if missing:
            raise UsageError(
                f"{type(values).__name__} has no {', '.join(missing)}; a key-value store needs save(key, value), "
                "load(key), list(prefix) and delete(key)"
            )
        self._values = values
        self._name = type(values).__name__
        self._text = text
        self._lists_all = not _takes_argument(values.list)

    async def save(self, key: str, value: bytes) -> None:
        """Keep a value."""
        given: Any = _as_text(value) if self._text else value
        await self._call(self._values.save, key, given)

    async def load(self, key: str) -> bytes | None:
        """The value of a key; None where there is none."""
        try:
            found = await self._call(self._values.load, key)
        except _ABSENT:
            return None
        if isinstance(found, str):
            return found.encode()
        if found is not None and not isinstance(found, bytes | bytearray | memoryview):
            raise UsageError(f"load() of {self._name} returned {type(found).__name__}; it has to return bytes or text")
        return None if found is None else bytes(cast("bytes", found))

    async def keys(self, prefix: str) -> list[str]:
        """The keys that start with a prefix."""
        found = await self._call(self._values.list, *(() if self._lists_all else (prefix,)))
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            raise UsageError(f"list() of {self._name} returned {type(found).__name__}; it has to return keys")
        keys = cast("Iterable[object]", found)
        return [key for key in keys if isinstance(key, str) and key.startswith(prefix)]

    async def delete(self, key: str) -> None:
        """Remove a key."""
        try:
            await self._call(self._values.delete, key)
        except _ABSENT:
            return

    async def _call(self, verb: Callable[..., Any], *args: Any) -> Any:
        try:
            if iscoroutinefunction(verb):
                return await verb(*args)
            found = await anyio.to_thread.run_sync(partial(verb, *args))
            return await found if isawaitable(found) else found
        except (LoomError, *_ABSENT):
            raise
        except Exception as error:
            verb_name = getattr(verb, "__name__", "a call")
            raise StoreUnavailable(
                f"{verb_name}() of {self._name} failed: {type(error).__name__}: {error}; what was acknowledged before "
                "is kept, and the call can be made again"
            ) from error


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:  # half of a surrogate pair, which only its escape can say in text
        return json.dumps(codec.from_bytes(value))


def _takes_argument(verb: Callable[..., Any]) -> bool:
    try:
        parameters = signature(verb).parameters.values()
    except (TypeError, ValueError):  # a builtin tells nothing; the protocol names a prefix
        return True
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    return any(parameter.kind in kinds for parameter in parameters)


_KEPT: Final = 512
"""Values in the cache. A value never changes under its key, so none has to be read again."""

_TRIES: Final = 3
"""How often keys are listed and values read where one is missing: another process may have just removed it."""

_LONGEST_PAUSE: Final = 0.02
"""Seconds that a writer waits at most before it tries again."""

_FORMAT: Final = 2
_NO_PARENT: Final = "-"
_FIELDS: Final = 5


def _digest(text: str) -> str:
    """A text as 32 characters that may stand in a key."""
    return sha256(text.encode()).hexdigest()[:32]


def _node_id(session_id: str, checkpoint_id: str) -> str:
    """The digest of a checkpoint of a session; the length keeps the two apart."""
    return _digest(f"{len(session_id)}:{session_id}{checkpoint_id}")


class KeyValueCheckpointStore(BaseCheckpointStore):
    """Keeps sessions in anything with save, load, list and delete by key, such as a bucket; forks and prunes.

    Each save is one value under a key of its own, so it is there or not, and costs what is new; parts that come again
    in a later save are stored again. After a save the keys are listed once more: where another process continued the
    session in the meantime, both take back what they wrote or one of them does, and try again. That needs a store whose
    list() shows what was just saved.

    Closing the store leaves `values` open.
    """

    def __init__(
        self, values: KeyValues, *, prefix: str = "loom/checkpoints/", text: bool = False, clock: Clock | None = None
    ) -> None:
        """Keep checkpoints in `values`.

        Args:
            values: an object with the four verbs; see KeyValues.
            prefix: the beginning of every key; stores with other prefixes share nothing.
            text: give values to save() as text, where bytes cannot be kept; they are JSON either way.
            clock: the source of times and ids.
        """
        super().__init__(clock)
        check_text(prefix, "the prefix of a key-value store")
        self._verbs = Verbs(values, text=text)
        self._place = f"the key-value store {type(values).__name__} at {prefix!r}"
        self._prefix = prefix
        self._lock = Lock()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._entry_ids: dict[str, frozenset[str]] = {}
        self._is_closed = False

    async def aclose(self) -> None:
        """Release the key-value store, which stays open. Closing twice is allowed."""
        self._is_closed = True
        self._known.clear()
        self._entry_ids.clear()

    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        if self._is_closed:
            raise UsageError(f"{self._place} is closed; open another")
        prefix = f"{self._prefix}{sha256(scope.for_user().key().encode()).hexdigest()}/"
        async with self._lock if writes else nullcontext():
            tries = 0
            while True:
                keys = await self._verbs.keys(prefix)
                saves = _KeyValueSaves(self._verbs, self._known, self._entry_ids, prefix, keys)
                try:
                    return await action(saves)
                except DamagedData as error:
                    tries += 1
                    if tries == _TRIES:
                        raise damage_error(self._place, error) from error

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        async def erase(saves: Any) -> Removed:
            removed = await action(saves)
            if scope.session_id is None:
                await saves.clear()
            return removed

        return await self._step(scope, erase, writes=True), ()


class _KeyValueSaves(TreePort[str]):
    """The saves of one user, as the keys were listed last."""

    def __init__(
        self,
        verbs: Verbs,
        known: OrderedDict[str, bytes],
        ids: dict[str, frozenset[str]],
        prefix: str,
        keys: Iterable[str],
    ) -> None:
        self._verbs, self._known, self._ids, self._prefix = verbs, known, ids, prefix
        self._see(keys)

    def _see(self, keys: Iterable[str]) -> None:
        self._nodes: dict[str, _KeyNode] = {}
        self._doubled: list[_KeyNode] = []
        """Keys that a deletion replaced and was cut off before it removed them."""
        found = filter(None, (_node_of(key.removeprefix(self._prefix)) for key in keys))
        for node in sorted(found, key=lambda node: (node.name, node.live)):
            if node.name in self._nodes:  # the one without its checkpoint comes first: that was deleted
                self._doubled.append(node)
            self._nodes.setdefault(node.name, node)

    def _of(self, session_id: str | None) -> list[_KeyNode]:
        """Saves with a checkpoint, last saved first."""
        session = None if session_id is None else _digest(session_id)
        return [node for node in reversed(self._nodes.values()) if node.live and session in (None, node.session)]

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[str] | None]:
        held = self._of(session_id)
        found: list[Saved[str] | None] = []
        for id in ids:
            wanted = None if id is None else _node_id(session_id, id)
            node = next((node for node in held if wanted in (None, node.id)), None)
            checkpoint = None if node is None else (await self._read(node)).checkpoint
            found.append(None if node is None or checkpoint is None else Saved(node.name, checkpoint))
        return found

    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[str] | None = None
    ) -> list[Checkpoint]:
        nodes = self._of(session_id)
        if matching is not None and matching.before is not None:
            nodes = [node for node in nodes if node.name < matching.before]
        found: list[Checkpoint] = []
        for node in nodes:
            if len(found) == limit:
                break
            checkpoint = (await self._read(node)).checkpoint
            if checkpoint is not None and (matching is None or matching.takes(checkpoint)):
                found.append(checkpoint)
        return found

    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        ends: dict[str, list[_KeyNode]] = {}
        for node in self._of(session_id):
            ends.setdefault(node.session, []).append(node)
        found = [
            ((await self._read(nodes[-1])).checkpoint, (await self._read(nodes[0])).checkpoint, len(nodes))
            for nodes in [*ends.values()][:limit]
        ]
        return [saved_session(first, last, count) for first, last, count in found if first and last]

    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        node = self._at(session_id, id)
        if node is None:
            return None
        nodes, seen = [node], node.entries
        while not wanted.enough(seen) and (parent := self._before(nodes[-1])) is not None:
            nodes.append(parent)
            seen += parent.entries
        found = wanted.cut([entry for one in reversed(nodes) for entry in await self._entries(one)])
        return [entry for one in found if (entry := _taken(one, wanted)) is not None]

    def _at(self, session_id: str, id: str) -> _KeyNode | None:
        wanted = _node_id(session_id, id)
        return next((node for node in self._of(session_id) if node.id == wanted), None)

    def _before(self, node: _KeyNode) -> _KeyNode | None:
        """The save that this one continues."""
        if node.parent == _NO_PARENT:
            return None
        if node.parent not in self._nodes:
            raise DamagedData(f"the log before save {node.number} of a conversation is missing")
        return self._nodes[node.parent]

    async def held(self, session_id: str, newest: Saved[str], ids: Sequence[str]) -> set[str]:  # noqa: ARG002
        # A bucket has no index. A save never changes, so its ids are read once in the life of the store.
        wanted, found = {*ids}, set[str]()
        node: _KeyNode | None = self._nodes[newest.key]
        while node is not None and not wanted <= found:
            key = self._prefix + node.key
            if key not in self._ids:
                self._ids[key] = frozenset([entry.id for entry in await self._entries(node)])
            found |= wanted & self._ids[key]
            node = self._before(node)
        return found

    async def _entries(self, node: _KeyNode) -> tuple[LogEntry, ...]:
        entries = (await self._read(node)).entries
        if len(entries) != node.entries:
            raise DamagedData(f"the log of save {node.number} of a conversation is missing")
        return entries

    async def keys(self, session_id: str | None) -> list[str]:
        return [node.name for node in self._of(session_id)]

    async def links(self, keys: Sequence[str], *, ancestors: bool) -> list[TreeLink[str]]:
        children = Counter(node.parent for node in self._nodes.values())
        found = ancestors_of(keys, self._parent) if ancestors else keys
        nodes = [self._nodes[name] for name in sorted(found, reverse=True)]
        return [TreeLink(n.name, n.parent, n.id if n.live else None, n.entries, children[n.name]) for n in nodes]

    async def remove(
        self, session_id: str | None, *, id: str | None = None, keep: int = 0, erase: bool = False
    ) -> Removed:
        # A key has only the digest of an id.
        nodes = reversed(self._of(session_id)[keep:]) if keep else ()
        found = [(await self._read(node)).checkpoint for node in nodes]
        removed = await super().remove(session_id, id=id, keep=keep, erase=erase)
        return replace(removed, ids=tuple(checkpoint.id for checkpoint in found if checkpoint is not None))

    def _parent(self, name: str) -> str | None:
        parent = self._nodes[name].parent
        return parent if parent in self._nodes else None

    async def append(
        self,
        checkpoint: Checkpoint,
        entries: Sequence[LogEntry],
        *,
        parent: Saved[str] | None,
        newest: Saved[str] | None,
    ) -> bool:
        try:
            return await super().append(checkpoint, entries, parent=parent, newest=newest)
        except _OvertakenError:
            # Both writers may have taken back what they wrote: that they try again at different times lets one win.
            await anyio.sleep(random() * _LONGEST_PAUSE)  # noqa: S311 - any spread will do
            self._see(await self._verbs.keys(self._prefix))
            return False

    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: str | None) -> None:
        session = _digest(checkpoint.session_id)
        number = 1 + max((node.number for node in self._nodes.values()), default=-1)
        id = _node_id(checkpoint.session_id, checkpoint.id)
        node = _KeyNode(number, id, parent or _NO_PARENT, session, len(entries), live=True)
        value = _Save(checkpoint, tuple(entries)).to_bytes()
        before = {*await self.keys(checkpoint.session_id), node.name}
        await self._verbs.save(self._prefix + node.key, value)
        # A bucket cannot compare and set: look again, and take the save back if another one came meanwhile.
        self._see(await self._verbs.keys(self._prefix))
        if not {*await self.keys(checkpoint.session_id)} <= before:
            await self._verbs.delete(self._prefix + node.key)
            raise _OvertakenError
        self._keep(node, value)

    async def drop(self, bare: Sequence[str], gone: Sequence[str]) -> None:
        # A save that stays is written without its checkpoint before it is deleted: a crash between loses no entry.
        for node in (self._nodes[name] for name in bare):
            stays = _Save(None, await self._entries(node))
            await self._verbs.save(self._prefix + replace(node, live=False).key, stays.to_bytes())
        for node in (*(self._nodes[name] for name in (*bare, *gone)), *self._doubled):
            self._known.pop(self._prefix + node.key, None)
            self._ids.pop(self._prefix + node.key, None)
            await self._verbs.delete(self._prefix + node.key)

    async def clear(self) -> None:
        """Remove every key of the user, also what a crash left."""
        self._known.clear()
        self._ids.clear()
        for key in await self._verbs.keys(self._prefix):
            await self._verbs.delete(key)

    async def _read(self, node: _KeyNode) -> _Save:
        """The value of a save; one that was removed this moment is empty."""
        key = self._prefix + node.key
        value = self._known.get(key) or await self._verbs.load(key)
        if value is None:
            return _Save(None, ())
        save = _Save.from_bytes(value)
        self._keep(node, value)
        return save

    def _keep(self, node: _KeyNode, value: bytes) -> None:
        self._known[self._prefix + node.key] = value
        self._known.move_to_end(self._prefix + node.key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)


def _taken(entry: LogEntry, wanted: LogSlice) -> LogEntry | None:
    """An entry as it is wanted; None where it is not."""
    if not isinstance(entry, Recorded):
        return None if wanted.recorded else entry
    if wanted.recorded and wanted.kind not in (None, entry.kind):
        return None
    return entry if wanted.bodies else recorded_again(entry.id, entry.at, entry.kind, None)


class _OvertakenError(Exception):
    """Another process continued the session at the same moment; nothing was saved."""


@dataclass(frozen=True, slots=True)
class _KeyNode:
    """A save, as its key names it. `live`: it has a checkpoint; else it stays because others continue its log."""

    number: int
    id: str
    """The digest of the session and the checkpoint."""
    parent: str
    session: str
    entries: int
    live: bool

    @property
    def name(self) -> str:
        """The name by which a child refers to its parent. Names sort in the order of saving."""
        return f"{self.number:012d}_{self.id}"

    @property
    def key(self) -> str:
        """The key, without the prefix of all keys of the user."""
        parts = (self.name, self.parent, self.session, str(self.entries), "c" if self.live else "x")
        return ".".join(parts)


def _node_of(key: str) -> _KeyNode | None:
    """The save that a key names; None where it is not of this form."""
    parts = key.split(".")
    number, _, id = parts[0].partition("_")
    if len(parts) != _FIELDS or not number.isdecimal() or not parts[3].isdecimal() or parts[4] not in ("c", "x"):
        return None
    return _KeyNode(int(number), id, parts[1], parts[2], int(parts[3]), parts[4] == "c")


@dataclass(frozen=True, slots=True)
class _Save:
    """A save as it is stored: one value."""

    checkpoint: Checkpoint | None
    entries: tuple[LogEntry, ...]

    def to_bytes(self) -> bytes:
        entries: list[JSON] = [codec.entry_to_dict(entry) for entry in self.entries]
        checkpoint = None if self.checkpoint is None else codec.checkpoint_to_dict(self.checkpoint)
        return codec.to_bytes({"format": _FORMAT, "checkpoint": checkpoint, "entries": entries})

    @classmethod
    def from_bytes(cls, value: bytes) -> _Save:
        """The save of a value; raises DamagedData and FormatTooNew."""
        with reading("a save of a conversation"):
            data = codec.from_bytes(value)
            codec.check_format(data["format"], "a save of a conversation")
            checkpoint = None if data["checkpoint"] is None else codec.checkpoint_from_dict(data["checkpoint"])
            return cls(checkpoint, tuple(codec.entry_from_dict(entry) for entry in data["entries"]))
