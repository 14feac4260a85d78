"""Writes that stand on a read: prepared again where something was forgotten in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from loom.core.scope import Scope
from loom.errors import StaleWrite
from loom.protocols.jobs import KeepsJobs

_T = TypeVar("_T")

TRIES = 100
"""How often a write is prepared again; each try means that somebody removed something meanwhile."""


async def retry_stale(store: KeepsJobs, scope: Scope, attempt: Callable[[str], Awaitable[_T]]) -> _T:
    """What `attempt` returns: it reads, prepares and writes, and passes the epoch it is given on to its write.

    The epoch is read before anything that the write is prepared from. So a write that the store takes stands on
    nothing that was forgotten by then.
    """
    for _ in range(TRIES - 1):
        try:
            return await attempt(await store.epoch(scope))
        except StaleWrite:
            continue
    return await attempt(await store.epoch(scope))
