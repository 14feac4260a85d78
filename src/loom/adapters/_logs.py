"""Entries of other frameworks in Loom's logs: added without a conflict, read by kind, changed where nobody else did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from loom.core.clock import RecordIds, SystemClock
from loom.core.log import Checkpoint, Recorded
from loom.core.scope import Scope
from loom.errors import StoreConflict
from loom.protocols.checkpoint_store import CheckpointStore


class Logs:
    """The sessions of one user, as an adapter writes them. The store is an argument, because it has a loop of its own.

    A session of the framework is a session of Loom, and each thing that happens in it is a recorded entry: nothing is
    overwritten, and nothing that Loom itself shows, compacts or remembers is touched.
    """

    def __init__(self, *, user_id: str, namespace: str = "default") -> None:
        self.user = Scope(namespace, user_id)
        self._clock = SystemClock()
        self._ids = RecordIds(self._clock)

    def entry(self, kind: str, body: Any, id: str | None = None) -> Recorded:
        """A new entry; `id` is the id that the framework has for it."""
        return Recorded(id or self._ids.next_id(), self._clock.now(), kind, body)

    async def add(
        self, store: CheckpointStore, session_id: str, entries: Sequence[Recorded], *, once: bool = False
    ) -> None:
        """Append entries behind those of any other writer; with `once` those whose id is there already are left out."""
        if entries:
            await store.append(self.user.for_session(session_id), entries, once=once)

    async def read(self, store: CheckpointStore, session_id: str, kind: str | None = None) -> tuple[Recorded, ...]:
        """The entries of a session, of one kind or of all, in order."""
        return await store.recorded(self.user.for_session(session_id), kind=kind)

    async def change(
        self,
        store: CheckpointStore,
        session_id: str,
        decide: Callable[[tuple[Recorded, ...]], Sequence[Recorded]],
    ) -> None:
        """Append what `decide` makes of all entries there are. If another writer comes first, it decides again."""
        scope = self.user.for_session(session_id)
        while True:  # each conflict means that another writer made progress
            head = await store.load(scope)
            held = await store.recorded(scope, head.id) if head else ()
            entries = decide(held)
            if not entries:
                return
            id, now = self._ids.next_id(), self._clock.now()
            made = Checkpoint(id=id, session_id=session_id, at=now, position=0, turn=0)
            if head is not None:
                made = replace(head, id=id, at=now, parent=head.id, attributes={}, shown=None)
            made = replace(made, position=made.position + len(entries))
            with suppress(StoreConflict):
                await store.save(scope, made, entries=entries, head=head.id if head else None)
                return

    async def forget(self, store: CheckpointStore, session_id: str) -> None:
        """Remove a session, and every byte of it."""
        await store.forget(self.user.for_session(session_id))
