"""Memory store in the process's own memory, with its jobs."""

from __future__ import annotations

from collections.abc import Iterable

from anyio import CancelScope, to_thread

from loom.core.checks import ON_LOOP
from loom.core.clock import Clock
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.stores._record_table import RecordChange, UserRecords, UserState
from loom.stores.base import Settings, SimpleMemoryStore, embedder_label, owner


class InMemoryStore(SimpleMemoryStore):
    """Keeps records, vectors, keys and jobs in dicts, with every optional power of a store.

    For tests and for what need not last. Tasks of one event loop may share a store; threads may not. Long texts are
    indexed in a thread; other calls about their user wait for it.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._states: dict[tuple[str, str], UserState] = {}
        self._set = Settings()
        self._closed = False

    async def _load(self, user: Scope) -> UserState | None:
        self._check_open()
        return self._states.get(owner(user))

    async def _save(self, user: Scope, state: UserState | None) -> None:
        if state is None:
            self._states.pop(owner(user), None)
        elif not self._closed:
            self._states[owner(user)] = state

    async def _apply(self, user: UserRecords, change: RecordChange) -> None:
        if user.chars(change) <= ON_LOOP:
            user.apply(change)
            return
        with CancelScope(shield=True):  # half a change must not stay behind
            await to_thread.run_sync(user.apply, change)

    async def _settings(self) -> Settings:
        self._check_open()
        return self._set

    async def _save_settings(self, settings: Settings) -> None:
        self._set = settings

    async def _owners(self) -> Iterable[Scope]:
        self._check_open()
        return [Scope(*user) for user in self._states]

    async def _busy(self) -> Iterable[Scope]:
        self._check_open()
        return [Scope(*user) for user, state in self._states.items() if state.jobs]

    async def _describe(self) -> dict[str, str]:
        return {
            "server": "none: in the memory of this process",
            "durability": "none: everything is gone when the process ends",
            "isolation": "a dict of its own for each user",
            "index": "exact: every vector and every text is compared",
            "embedder": embedder_label(self._set.bound),
        }

    async def _close(self) -> None:
        self._closed = True
        self._states = {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open another")
