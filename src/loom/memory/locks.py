"""Locks per scope, so that one task at a time reads, decides and writes for a user."""

from __future__ import annotations

from weakref import WeakValueDictionary

from anyio import Lock

from loom.core.scope import Scope


class Locks:
    """One lock per scope, alive while it is in use."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Scope, Lock] = WeakValueDictionary()

    def of(self, scope: Scope) -> Lock:
        """The lock of exactly this scope."""
        return self._locks.setdefault(scope, Lock())
