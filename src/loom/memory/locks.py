"""One at a time: what reads, decides and writes must not meet another that does."""

from __future__ import annotations

from weakref import WeakValueDictionary

from anyio import Lock

from loom.core.scope import Scope


class Locks:
    """A lock for each scope, for as long as somebody uses it. Other scopes never wait for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Scope, Lock] = WeakValueDictionary()

    def of(self, scope: Scope) -> Lock:
        """The lock of exactly this scope."""
        return self._locks.setdefault(scope, Lock())
