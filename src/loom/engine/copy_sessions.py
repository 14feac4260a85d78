"""One user's sessions from one checkpoint store to another, each checkpoint with its own id, time and log.

A store takes a checkpoint only where it holds the parent. Where the source itself no longer does, or the parent is of
another session, as after a fork, the target is given an empty checkpoint under the parent's id, which goes again as
soon as its child is saved.
"""

from __future__ import annotations

from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.scope import Scope
from loom.protocols.checkpoint_store import CheckpointStore


class _Saved:
    """The checkpoints of a user, the first saved first, and the log behind each."""

    def __init__(self, user: Scope, checkpoints: tuple[Checkpoint, ...]) -> None:
        self.user = user
        self.checkpoints = checkpoints[::-1]
        self._by_id = {(one.session_id, one.id): one for one in checkpoints}
        self._logs: dict[tuple[str, str], tuple[LogEntry, ...]] = {}

    def parent(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """The checkpoint of the same session that this one continues; None where that is not here."""
        return self._by_id.get((checkpoint.session_id, checkpoint.parent or ""))

    def stands_in(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of the target is none of these, and stands for a parent that is not here."""
        if (checkpoint.session_id, checkpoint.id) in self._by_id:
            return False
        of_session = (one for one in self.checkpoints if one.session_id == checkpoint.session_id)
        return checkpoint.position == 0 and any(one.parent == checkpoint.id for one in of_session)

    async def read_logs(self, store: CheckpointStore) -> dict[tuple[str, str], tuple[LogEntry, ...]]:
        """Read the logs, each once: that of a parent is the beginning of its child's. Returns those without a child."""
        ends: dict[tuple[str, str], tuple[LogEntry, ...]] = {}
        for one in reversed(self.checkpoints):
            at = (one.session_id, one.id)
            if at not in self._logs:
                ends[at] = await store.history(self.user.for_session(one.session_id), one.id)
                self._logs[at] = ends[at]
            if (parent := self.parent(one)) is not None:
                self._logs.setdefault((parent.session_id, parent.id), self._logs[at])
        return ends

    def entries(self, checkpoint: Checkpoint) -> tuple[LogEntry, ...]:
        """What a checkpoint adds to the log of its parent, or the whole log where that is not here."""
        parent = self.parent(checkpoint)
        start = 0 if parent is None else parent.position
        return self._logs[checkpoint.session_id, checkpoint.id][start : checkpoint.position]


async def copy_sessions(source: CheckpointStore, target: CheckpointStore, user: Scope) -> int:
    """Copy what the target does not have yet; returns how many checkpoints were written.

    A session that is forgotten at the source meanwhile is not left behind in the target.
    """
    saved = _Saved(user, await source.list(user))
    held: set[tuple[str, str]] = set()
    for one in await target.list(user):
        if saved.stands_in(one):  # left by a copy that was broken off
            await target.delete(user.for_session(one.session_id), one.id)
        else:
            held.add((one.session_id, one.id))
    missing = [one for one in saved.checkpoints if (one.session_id, one.id) not in held]
    if missing:
        await saved.read_logs(source)
    for one in missing:
        await _save(target, user.for_session(one.session_id), one, saved)
    left = {one.session_id for one in await source.list(user)} if missing else set[str]()
    for session in {one.session_id for one in missing} - left:
        await target.forget(user.for_session(session))
    return len(missing)


async def _save(target: CheckpointStore, scope: Scope, checkpoint: Checkpoint, saved: _Saved) -> None:
    newest = await target.load(scope)
    head = None if newest is None else newest.id
    entries = saved.entries(checkpoint)
    if checkpoint.parent is None or saved.parent(checkpoint) is not None:
        await target.save(scope, checkpoint, entries=entries, head=head)
        return
    stand_in = Checkpoint(id=checkpoint.parent, session_id=checkpoint.session_id, at=checkpoint.at, position=0, turn=0)
    await target.save(scope, stand_in, entries=(), head=head)
    await target.save(scope, checkpoint, entries=entries, head=stand_in.id)
    await target.delete(scope, stand_in.id)


async def read_sessions(
    store: CheckpointStore, user: Scope
) -> tuple[tuple[Checkpoint, ...], dict[tuple[str, str], tuple[LogEntry, ...]]]:
    """The checkpoints of a user, and the log of each that no other continues, by session and id."""
    saved = _Saved(user, await store.list(user))
    return saved.checkpoints, await saved.read_logs(store)
