"""The checkpoint kernel: tree, append, fork, prune, parts and refusals over a small port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from loom.core.checks import as_utc
from loom.core.clock import Clock, RecordIds, SystemClock
from loom.core.log import FORMAT_VERSION, Checkpoint, LogEntry, Recorded, SavedSession, check_texts, shown_of
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import NotFound, ScopeRequired, StoreConflict, UsageError
from loom.stores._packed import ALL, ITS_OWN, NO_BODIES, LogSlice

DEFAULT_USER: Final = Scope("default", "default")
"""The user of a session that is named by its id alone: that of a Session or an Agent without a user."""

_TRIES: Final = 1000
"""How often a save is tried again where other processes changed the session between its reading and its writing."""

K = TypeVar("K")
C = TypeVar("C")
T = TypeVar("T")


class Saved(NamedTuple, Generic[K]):
    """A checkpoint, and the key under which the backend has its save."""

    key: K
    checkpoint: Checkpoint


class TreeLink(NamedTuple, Generic[K]):
    """A save in the tree: the save it continues, how many entries it added, and how many saves continue it."""

    key: K
    parent: K | None
    id: str | None
    """The id of its checkpoint; None where that was removed."""
    entries: int
    children: int


class Matching(NamedTuple, Generic[K]):
    """Which checkpoints are listed: those with these attributes, saved before this one."""

    attributes: Mapping[str, str]
    before: K | None = None

    def takes(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint has the attributes."""
        return all(checkpoint.attributes.get(name) == value for name, value in self.attributes.items())


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of a removal; `left` entries stay, because other checkpoints need them."""

    checkpoints: int
    ids: tuple[str, ...] = ()
    entries: int = 0
    left: int = 0


class CheckpointPort(ABC, Generic[K]):
    """The calls that a backend gives: the saves of one user, inside one step (see BaseCheckpointStore._step).

    A save is a piece of the log and the checkpoint behind it. It continues at most one other save, its parent, which
    is older. A save whose checkpoint was removed stays as long as another continues its log.

    Laws:
    - a session has the checkpoints that were appended to it and not removed; its newest is the one appended last;
    - append() is atomic and durable, also when the process is killed: all of it is there, or nothing;
    - append() compares and sets: where the newest checkpoint of the session or the parent changed since it was read, it
      writes nothing and returns False. Where a step excludes other writers it always returns True;
    - remove() is atomic and durable too, and removes no piece of the log that a remaining checkpoint needs;
    - a step of one user never sees or changes saves of another; ids are data;
    - what cannot be read raises DamagedData, what a newer Loom wrote FormatTooNew.
    """

    @abstractmethod
    async def find(self, session_id: str, *ids: str | None) -> list[Saved[K] | None]:
        """The checkpoints with these ids, all at one moment; None asks for the newest."""

    @abstractmethod
    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[K] | None = None
    ) -> list[Checkpoint]:
        """The checkpoints of a session, or of all sessions of the user, last saved first."""

    @abstractmethod
    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        """One session, or all of the user, last saved first."""

    @abstractmethod
    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        """The log up to a checkpoint, or what is wanted of it; None where it is not there."""

    @abstractmethod
    async def held(self, session_id: str, newest: Saved[K], ids: Sequence[str]) -> set[str]:
        """Those of the ids that entries of the log up to the newest checkpoint have, as an index says.

        The index of a session is made when it is first asked for, and then brought up to date by what was saved since.
        """

    @abstractmethod
    async def append(
        self, checkpoint: Checkpoint, entries: Sequence[LogEntry], *, parent: Saved[K] | None, newest: Saved[K] | None
    ) -> bool:
        """Write a save behind `newest`, continuing `parent`, which after a fork is of another session."""

    @abstractmethod
    async def remove(
        self, session_id: str | None, *, id: str | None = None, keep: int = 0, erase: bool = False
    ) -> Removed:
        """Remove one checkpoint, or all but the newest `keep`; with `erase` no byte of them may stay behind."""


def ancestors_of(keys: Iterable[K], parent_of: Callable[[K], K | None]) -> set[K]:
    """These saves and all that they continue."""
    found: set[K] = set()
    for start in keys:
        key: K | None = start
        while key is not None and key not in found:
            found.add(key)
            key = parent_of(key)
    return found


class TreePort(CheckpointPort[K]):
    """A port whose step excludes other writers; the kernel decides which saves go with a checkpoint."""

    @abstractmethod
    async def keys(self, session_id: str | None) -> list[K]:
        """The keys of the saves with a checkpoint, last saved first. Reads no checkpoint: a damaged one can go."""

    @abstractmethod
    async def links(self, keys: Sequence[K], *, ancestors: bool) -> list[TreeLink[K]]:
        """These saves, and with `ancestors` all that they continue; each once, and before the save it continues."""

    @abstractmethod
    async def write(self, checkpoint: Checkpoint, entries: Sequence[LogEntry], parent: K | None) -> None:
        """Write a save, the newest of its session."""

    @abstractmethod
    async def drop(self, bare: Sequence[K], gone: Sequence[K]) -> None:
        """Remove the checkpoints of the saves `bare`, whose entries stay, and all of the saves `gone`, in one step."""

    async def append(
        self,
        checkpoint: Checkpoint,
        entries: Sequence[LogEntry],
        *,
        parent: Saved[K] | None,
        newest: Saved[K] | None,  # noqa: ARG002 - nothing to compare
    ) -> bool:
        """Write a save. The newest is the one that was read, because the step excludes other writers."""
        await self.write(checkpoint, entries, None if parent is None else parent.key)
        return True

    async def remove(
        self, session_id: str | None, *, id: str | None = None, keep: int = 0, erase: bool = False
    ) -> Removed:
        """Remove checkpoints, and the saves that no other checkpoint needs."""
        if session_id is not None and id is not None:
            keys = [saved.key for saved in await self.find(session_id, id) if saved is not None]
        else:
            keys = (await self.keys(session_id))[keep:]
        links = await self.links(keys, ancestors=False) if keep else []
        ids = tuple(link.id for link in reversed(links) if link.id is not None)
        gone, left = await self.unneeded(keys, thorough=erase)
        if keys or erase:
            await self.drop([key for key in keys if key not in gone], list(gone))
        return Removed(len(keys), ids, sum(gone.values()), left)

    async def unneeded(self, keys: Sequence[K], *, thorough: bool) -> tuple[dict[K, int], int]:
        """The saves to remove where these checkpoints go, with the number of their entries; and the entries that stay.

        The entries that stay are counted back to the beginning of the log only if `thorough`. Without it, pruning a
        checkpoint that others continue, the usual case, does not walk through the log.
        """
        gone, left = _sweep(await self.links(keys, ancestors=thorough), frozenset(keys))
        if gone and not thorough:
            gone, left = _sweep(await self.links(keys, ancestors=True), frozenset(keys))
        return gone, left


def _sweep(links: Sequence[TreeLink[K]], removed: frozenset[K]) -> tuple[dict[K, int], int]:
    gone: dict[K, int] = {}
    freed: Counter[K | None] = Counter()
    left = 0
    for link in links:  # children first, so that it is known here how many of them go
        if link.id is not None and link.key not in removed:
            continue
        if link.children == freed[link.key]:
            gone[link.key] = link.entries
            freed[link.parent] += 1
        else:
            left += link.entries
    return gone, left


Action: TypeAlias = Callable[[CheckpointPort[Any]], Coroutine[Any, Any, T]]


def scope_of(given: Scope | str) -> Scope:
    """The scope itself, or that of a session of the default user."""
    if isinstance(given, str):
        return DEFAULT_USER.for_session(given)
    if not isinstance(given, Scope):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a checkpoint store was given {given!r:.200}; give a Scope, or the id of a session as text")
    return given


def check_limit(limit: int | None) -> None:
    """Refuse a limit that asks for nothing."""
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} asks for nothing; ask for at least one, or None for all")


class BaseCheckpointStore(ABC):
    """The public verbs of every checkpoint store; a backend gives _step() and aclose().

    A session id in place of a Scope means that session of the user `default` in the namespace `default`, which is where
    a Session without a user saves.
    """

    needs_loop: ClassVar[bool] = True
    """Whether calls need an event loop. Where they do not, blocking code may make them with run_here()."""
    _after_forgetting: str | None = None
    """Text for the receipt of a forget: where removed bytes may still be, and what to do about it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)

    @abstractmethod
    async def _step(self, scope: Scope, action: Action[T], *, writes: bool) -> T:
        """Run an action on the saves of the scope's user, in one transaction or under a lock.

        A backend that has neither makes each call of the port a step of its own, and append() compares. The action may
        be run again from the start. A step that only reads makes nothing, neither a file nor a row.
        """

    async def _find(self, user: Scope, session_id: str, id: str | None) -> Saved[Any] | None:
        """The save of this id, or the one last saved: the step that every turn begins with."""
        (found,) = await self._step(user, lambda port: port.find(session_id, id), writes=False)
        return found

    async def _erase(self, scope: Scope, action: Action[Removed]) -> tuple[Removed, tuple[str, ...]]:
        """Like a step that writes; the texts say what is still pending."""
        removed = await self._step(scope, action, writes=True)
        return removed, (self._after_forgetting,) if self._after_forgetting and removed.checkpoints else ()

    @abstractmethod
    async def aclose(self) -> None:
        """Release the store. Closing twice is allowed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def save(
        self, scope: Scope | str, checkpoint: Checkpoint, *, entries: Sequence[LogEntry], head: str | None
    ) -> None:
        """Append the entries and keep the checkpoint, in one step."""
        scope, session_id = _session_of(scope)
        if checkpoint.session_id != session_id:
            raise UsageError(
                f"checkpoint {checkpoint.id} belongs to session {checkpoint.session_id!r}, not to {session_id!r}; save "
                "it under its own scope"
            )
        await self._step(scope, lambda port: _save(port, checkpoint, entries, head), writes=True)

    async def load(self, scope: Scope | str, id: str | None = None) -> Checkpoint | None:
        """The checkpoint with this id, or the one last saved; None where there is none.

        By a session id it comes with its `messages`; by a Scope without, which costs the same however long the
        conversation is.
        """
        user, session_id = _session_of(scope)
        found = await self._find(user, session_id, id)
        if found is None or not isinstance(scope, str):
            return None if found is None else found.checkpoint
        log = await self._step(user, lambda port: port.log(session_id, found.checkpoint.id, NO_BODIES), writes=False)
        if log is None:  # another process removed it between the two steps
            return None
        shown = shown_of(log, found.checkpoint.compactions)
        return replace(found.checkpoint, shown=tuple(item.message for item in shown))

    async def append(
        self,
        scope: Scope | str,
        entries: Sequence[LogEntry],
        *,
        attributes: Mapping[str, str] | None = None,
        once: bool = False,
        parent: str | None = None,
        id: str | None = None,
    ) -> Checkpoint:
        """Append entries behind the newest checkpoint, also one of another process, or behind `parent`.

        Returns the new checkpoint. With `once`, entries whose id the log already holds are left out. Where that leaves
        none, nothing is written and the checkpoint that would have been continued is returned.
        """
        scope, session_id = _session_of(scope)
        new = Checkpoint(
            id=self._ids.next_id() if id is None else id,
            session_id=session_id,
            at=self._clock.now(),
            position=0,
            turn=0,
            attributes=attributes or {},
        )
        given = tuple(entries)
        return await self._step(scope, lambda port: _append(port, new, given, parent, once=once), writes=True)

    async def history(
        self, scope: Scope | str, id: str, *, after: int = 0, bodies: bool = True
    ) -> tuple[LogEntry, ...]:
        """The log up to a checkpoint, behind a position; without `bodies`, those of recorded entries are None."""
        return tuple(await self._read_log(scope, id, after, LogSlice(bodies=bodies)))

    async def recorded(
        self, scope: Scope | str, id: str | None = None, *, kind: str | None = None, after: int = 0
    ) -> tuple[Recorded, ...]:
        """The recorded entries of a log, of one kind or of all, up to a checkpoint or up to the newest."""
        found = await self._read_log(scope, id, after, LogSlice(recorded=True, kind=kind))
        return tuple(entry for entry in found if isinstance(entry, Recorded))

    async def _read_log(self, scope: Scope | str, id: str | None, after: int, wanted: LogSlice) -> Sequence[LogEntry]:
        """What is wanted of the log up to a checkpoint, or up to the newest; NotFound where it is not there."""
        scope, session_id = _session_of(scope)
        if after < 0:
            raise UsageError(f"after={after}; positions of a log count from 0")

        async def read(port: CheckpointPort[Any]) -> Sequence[LogEntry] | None:
            known, chosen = id, wanted
            if after or known is None:
                (found,) = await port.find(session_id, known)
                if found is None:
                    return () if known is None else None
                known = found.checkpoint.id
                chosen = replace(wanted, last=max(0, found.checkpoint.position - after)) if after else wanted
            return () if chosen.last == 0 else await port.log(session_id, known, chosen)

        found = await self._step(scope, read, writes=False)
        if found is None:
            raise NotFound(f"session {session_id!r} holds no checkpoint {id!r}; list() says which there are")
        return found

    async def list(
        self,
        scope: Scope | str | None = None,
        *,
        limit: int | None = None,
        attributes: Mapping[str, str] | None = None,
        before: str | None = None,
    ) -> tuple[Checkpoint, ...]:
        """Checkpoints, last saved first; without a scope, the last one of each session of the default user.

        `attributes` have to be equal, and others may be there too. With `before`, the id of a checkpoint of the
        session, only those come that were saved before it.
        """
        check_limit(limit)
        if attributes:
            check_texts(attributes, "a filter of checkpoints")
        user = DEFAULT_USER if scope is None else scope_of(scope)
        session_id = user.session_id
        if before is not None and session_id is None:
            raise ScopeRequired(f"before={before!r} is a checkpoint of one session; name it with scope.for_session(id)")
        most = None if scope is None else limit

        async def read(port: CheckpointPort[Any]) -> list[Checkpoint]:
            last: Saved[Any] | None = None
            if before is not None and session_id is not None:
                (last,) = await port.find(session_id, before)
                if last is None:
                    raise NotFound(f"session {session_id!r} holds no checkpoint {before!r} to list from")
            if not attributes and last is None:
                return await port.checkpoints(session_id, most)
            return await port.checkpoints(session_id, most, Matching(attributes or {}, last and last.key))

        found = await self._step(user, read, writes=False)
        if scope is not None:
            return tuple(found)
        newest: dict[str, Checkpoint] = {}
        for checkpoint in found:
            newest.setdefault(checkpoint.session_id, checkpoint)
        return tuple(newest.values())[:limit]

    async def sessions(self, scope: Scope | str | None = None, *, limit: int | None = None) -> tuple[SavedSession, ...]:
        """The sessions of a user, or the one that the scope names, last saved first; without a scope, the default's."""
        check_limit(limit)
        user = DEFAULT_USER if scope is None else scope_of(scope)
        return tuple(await self._step(user, lambda port: port.sessions(user.session_id, limit), writes=False))

    async def delete(self, scope: Scope | str, id: str | None = None) -> bool:
        """Remove one checkpoint, or without an id the whole session; False where it was not there."""
        scope, session_id = _session_of(scope)
        if id is None:
            return bool((await self.forget(scope)).removed)
        removed = await self._step(scope, lambda port: port.remove(session_id, id=id), writes=True)
        return bool(removed.checkpoints)

    async def forget(self, scope: Scope | str) -> Receipt:
        """Remove the session, or all sessions of the user: checkpoints, entries and parts."""
        scope = scope_of(scope)
        removed, pending = await self._erase(scope, lambda port: port.remove(scope.session_id, erase=True))
        if removed.left:
            stays = (
                f"{removed.left} log entries stay, because sessions forked from here begin with them; forget those "
                "sessions too"
            )
            pending = (stays, *pending)
        counts = {"checkpoint": removed.checkpoints, "entry": removed.entries}
        return Receipt(removed={kind: count for kind, count in counts.items() if count}, pending=pending)

    async def fork(self, scope: Scope | str, id: str, *, session_id: str, at: datetime | None = None) -> Checkpoint:
        """The first checkpoint of a new session, which begins at a checkpoint of this one."""
        scope, origin = _session_of(scope)
        _, target = _session_of(scope.for_session(session_id))
        new_id, now = self._ids.next_id(), self._clock.now() if at is None else as_utc(at, "at of a fork")

        async def fork(port: CheckpointPort[Any]) -> Checkpoint:
            for _ in range(_TRIES):
                (source,) = await port.find(origin, id)
                if source is None:
                    raise NotFound(
                        f"session {origin!r} holds no checkpoint {id!r} to fork from; list() says which there are"
                    )
                if (await port.find(target, None))[0] is not None:
                    raise StoreConflict(f"session {target!r} already exists; fork into a new one")
                first = replace(source.checkpoint, id=new_id, session_id=target, parent=id, at=now)
                if await port.append(first, (), parent=source, newest=None):
                    return first
            raise _too_busy(origin)

        return await self._step(scope, fork, writes=True)

    async def prune(self, scope: Scope | str, *, keep: int) -> tuple[str, ...]:
        """Remove all but the newest `keep` checkpoints of a session; returns the ids removed, oldest first."""
        if keep < 1:
            raise UsageError(f"prune() was given keep={keep}; keep at least the newest, or use forget()")
        scope, session_id = _session_of(scope)
        return (await self._step(scope, lambda port: port.remove(session_id, keep=keep), writes=True)).ids


def _session_of(given: Scope | str) -> tuple[Scope, str]:
    """The scope, and the id of the session that it has to name."""
    scope = scope_of(given)
    if scope.session_id is None:
        raise ScopeRequired(f"the scope of {scope.user_id!r} names no session; use scope.for_session(id)")
    return scope, scope.session_id


async def _save(
    port: CheckpointPort[Any], checkpoint: Checkpoint, entries: Sequence[LogEntry], head: str | None
) -> None:
    session_id, continued = checkpoint.session_id, () if checkpoint.parent is None else (checkpoint.parent,)
    for _ in range(_TRIES):
        saved, newest, *parents = await port.find(session_id, checkpoint.id, None, *continued)
        if saved is None:
            parent = parents[0] if parents else None
            _check_continues(checkpoint, entries, head, newest=newest, parent=parent)
            if await port.append(checkpoint, entries, parent=parent, newest=newest):
                return
            continue
        held = await port.log(session_id, checkpoint.id, ITS_OWN)
        if held is None:  # another process removed it after it was found
            continue
        if (checkpoint, list(entries)) != (saved.checkpoint, held):
            raise StoreConflict(
                f"checkpoint {checkpoint.id} is already saved with other content; give the new one its own id"
            )
        return
    raise _too_busy(session_id)


async def _append(
    port: CheckpointPort[Any], new: Checkpoint, entries: Sequence[LogEntry], parent_id: str | None, *, once: bool
) -> Checkpoint:
    session_id = new.session_id
    for _ in range(_TRIES):
        same, newest, *parents = await port.find(session_id, new.id, None, *(() if parent_id is None else (parent_id,)))
        if same is not None:
            raise StoreConflict(
                f"session {session_id!r} already has a checkpoint {new.id!r}; give the new one its own id"
            )
        parent = parents[0] if parents else newest
        if parent is None and parent_id is not None:
            raise NotFound(f"session {session_id!r} holds no checkpoint {parent_id!r} to continue; list() says which")
        fresh = entries
        if once:
            fresh = await _not_held(port, session_id, parent, newest, entries)
            if parent is not None and entries and not fresh:
                return parent.checkpoint
        if parent is None:
            made = replace(new, position=len(fresh))
        else:
            before = parent.checkpoint
            made = replace(
                before,
                id=new.id,
                at=new.at,
                parent=before.id,
                position=before.position + len(fresh),
                attributes=new.attributes,
                format_version=FORMAT_VERSION,
            )
        if await port.append(made, fresh, parent=parent, newest=newest):
            return made
    raise _too_busy(session_id)


async def _not_held(
    port: CheckpointPort[Any],
    session_id: str,
    parent: Saved[Any] | None,
    newest: Saved[Any] | None,
    entries: Sequence[LogEntry],
) -> Sequence[LogEntry]:
    """The entries, each id once, that the log does not hold yet."""
    distinct = {entry.id: entry for entry in reversed(entries)}
    held = set[str]()
    if parent is not None and newest is not None and parent.key == newest.key:
        held = await port.held(session_id, parent, [*distinct])
    elif parent is not None:  # of an older checkpoint there is no index
        log = await port.log(session_id, parent.checkpoint.id, NO_BODIES)
        held = {entry.id for entry in log or ()}
    return [entry for id, entry in reversed(distinct.items()) if id not in held]


def _check_continues(
    checkpoint: Checkpoint,
    entries: Sequence[LogEntry],
    head: str | None,
    *,
    newest: Saved[Any] | None,
    parent: Saved[Any] | None,
) -> None:
    """Refuse a save that does not continue the log."""
    last = None if newest is None else newest.checkpoint.id
    if head != last:
        raise StoreConflict(
            f"session {checkpoint.session_id!r} was last saved as {last!r}, not as {head!r}; load it again before "
            "going on"
        )
    if checkpoint.parent is not None and parent is None:
        raise UsageError(
            f"checkpoint {checkpoint.id} continues {checkpoint.parent!r}, which session {checkpoint.session_id!r} "
            "does not hold; save the parent first"
        )
    start = 0 if parent is None else parent.checkpoint.position
    if checkpoint.position != start + len(entries):
        raise UsageError(
            f"checkpoint {checkpoint.id} has position {checkpoint.position}, but its parent is at {start} and "
            f"{len(entries)} entries came; give position={start + len(entries)}"
        )


def _too_busy(session_id: str) -> StoreConflict:
    return StoreConflict(f"other processes changed session {session_id!r} {_TRIES:,} times under this write; try again")


@dataclass(slots=True, eq=False)
class TreeNode(Generic[C]):
    """A save in memory. `content` is where its entries are, in the form of the backend."""

    number: int
    parent: int | None
    checkpoint: Checkpoint | None
    entries: int
    content: C
    children: int = 0


class MemoryTree(TreePort[int], Generic[C]):
    """All saves of a user in memory, for backends that hold them or read them all. Numbers rise and are not reused."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all saves."""
        self.nodes: dict[int, TreeNode[C]] = {}
        self._sessions: dict[str, dict[str, TreeNode[C]]] = {}
        self._next = 0
        self._having: dict[tuple[str, str, str], dict[int, TreeNode[C]]] = {}
        """The saves of a session with an attribute: its name and its value."""
        self._held: dict[str, tuple[int, set[str]]] = {}
        """Of sessions that were asked: the ids of all entries up to a save. Its number comes first."""

    @abstractmethod
    def read(self, nodes: Sequence[TreeNode[C]], wanted: LogSlice = ALL) -> list[LogEntry]:
        """The entries of saves, in order, or those of them that are wanted."""

    @abstractmethod
    def ids_of(self, node: TreeNode[C]) -> list[str]:
        """The ids of the entries of a save."""

    def add(self, checkpoint: Checkpoint | None, parent: int | None, entries: int, content: C) -> None:
        """Take in a new save, the newest of its session."""
        if parent is not None:
            self.nodes[parent].children += 1
        node = self.nodes[self._next] = TreeNode(self._next, parent, checkpoint, entries, content)
        self._next += 1
        if checkpoint is not None:
            self._sessions.setdefault(checkpoint.session_id, {})[checkpoint.id] = node
            for attribute in checkpoint.attributes.items():
                self._having.setdefault((checkpoint.session_id, *attribute), {})[node.number] = node

    def cut(self, bare: Sequence[int], gone: Sequence[int]) -> list[TreeNode[C]]:
        """Take away the checkpoints of `bare`, and all of `gone`, which is returned."""
        for node in (self.nodes[number] for number in (*bare, *gone)):
            if node.checkpoint is not None:
                held = self._sessions[node.checkpoint.session_id]
                del held[node.checkpoint.id]
                for attribute in node.checkpoint.attributes.items():
                    having = self._having[node.checkpoint.session_id, *attribute]
                    del having[node.number]
                    if not having:
                        del self._having[node.checkpoint.session_id, *attribute]
                if not held:
                    del self._sessions[node.checkpoint.session_id]
                    self._held.pop(node.checkpoint.session_id, None)
                node.checkpoint = None
        for number in gone:
            parent = self.nodes[number].parent
            if parent is not None:
                self.nodes[parent].children -= 1
        return [self.nodes.pop(number) for number in gone]

    def _of(self, session_id: str | None) -> Iterator[TreeNode[C]]:
        """Saves with a checkpoint, last saved first."""
        if session_id is not None:
            return reversed(self._sessions.get(session_id, {}).values())
        return (node for node in reversed(self.nodes.values()) if node.checkpoint is not None)

    async def find(self, session_id: str, *ids: str | None) -> list[Saved[int] | None]:
        """The checkpoints with these ids; None asks for the newest."""
        held = self._sessions.get(session_id, {})
        nodes = [next(reversed(held.values()), None) if id is None else held.get(id) for id in ids]
        return [Saved(node.number, node.checkpoint) if node and node.checkpoint else None for node in nodes]

    async def checkpoints(
        self, session_id: str | None, limit: int | None, matching: Matching[int] | None = None
    ) -> list[Checkpoint]:
        """The checkpoints of a session, or of all, last saved first."""
        if matching is None:
            nodes = islice(self._of(session_id), limit)
            return [node.checkpoint for node in nodes if node.checkpoint is not None]
        before = self._next if matching.before is None else matching.before
        among = self._of(session_id)
        if session_id is not None and matching.attributes:
            having = [self._having.get((session_id, *one), {}) for one in matching.attributes.items()]
            among = reversed(min(having, key=len).values())
        nodes = (node for node in among if node.number < before)
        found = (node.checkpoint for node in nodes if node.checkpoint is not None)
        return list(islice((checkpoint for checkpoint in found if matching.takes(checkpoint)), limit))

    async def sessions(self, session_id: str | None, limit: int | None) -> list[SavedSession]:
        """One session, or all, last saved first."""
        which = self._sessions if session_id is None else {session_id} & self._sessions.keys()
        ends = [(next(iter(held.values())), next(reversed(held.values())), len(held))
                for held in (self._sessions[id] for id in which)]  # fmt: skip
        ends.sort(key=lambda end: end[1].number, reverse=True)
        return [
            saved_session(first.checkpoint, last.checkpoint, count)
            for first, last, count in ends[:limit]
            if first.checkpoint is not None and last.checkpoint is not None
        ]

    async def log(self, session_id: str, id: str, wanted: LogSlice) -> list[LogEntry] | None:
        """The log up to a checkpoint, or what is wanted of it."""
        node = self._sessions.get(session_id, {}).get(id)
        if node is None:
            return None
        nodes, seen = [node], node.entries
        while not wanted.enough(seen) and (parent := nodes[-1].parent) is not None:
            nodes.append(self.nodes[parent])
            seen += nodes[-1].entries
        return self.read(nodes[::-1], wanted)

    async def held(self, session_id: str, newest: Saved[int], ids: Sequence[str]) -> set[str]:
        """Those of the ids that the log up to the newest checkpoint holds."""
        upto, known = self._held.get(session_id, (-1, set[str]()))
        fresh: list[TreeNode[C]] = []
        number: int | None = newest.key
        while number is not None and number > upto:  # a save that another continues has the smaller number
            fresh.append(self.nodes[number])
            number = fresh[-1].parent
        if upto >= 0 and number != upto:  # the session goes on from an older checkpoint, or from none: begin anew
            known = set[str]()
            while number is not None:
                fresh.append(self.nodes[number])
                number = fresh[-1].parent
        for node in fresh:
            known.update(self.ids_of(node))
        self._held[session_id] = (newest.key, known)
        return known.intersection(ids)

    async def keys(self, session_id: str | None) -> list[int]:
        """The numbers of the saves with a checkpoint, last saved first."""
        return [node.number for node in self._of(session_id)]

    async def links(self, keys: Sequence[int], *, ancestors: bool) -> list[TreeLink[int]]:
        """These saves, and with `ancestors` all that they continue, the newest first."""
        found = ancestors_of(keys, lambda number: self.nodes[number].parent) if ancestors else keys
        nodes = [self.nodes[number] for number in sorted(found, reverse=True)]
        return [TreeLink(n.number, n.parent, n.checkpoint and n.checkpoint.id, n.entries, n.children) for n in nodes]


def saved_session(first: Checkpoint, last: Checkpoint, checkpoints: int) -> SavedSession:
    """A session with so many checkpoints, from the first to the last."""
    return SavedSession(
        session_id=last.session_id,
        first_at=first.at,
        last_at=last.at,
        checkpoints=checkpoints,
        entries=last.position,
    )
