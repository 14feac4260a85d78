"""Read, decide and write as one step: retried if a record was forgotten in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from loom.core.scope import Scope
from loom.errors import StaleWrite
from loom.protocols.jobs import KeepsJobs

_T = TypeVar("_T")

TRIES = 100
"""Tries before StaleWrite is raised. Each retry means that another caller forgot something meanwhile, so a user who is
not being deleted in a loop never comes near this."""


async def retry_stale(store: KeepsJobs, scope: Scope, attempt: Callable[[str], Awaitable[_T]]) -> _T:
    """The result of `attempt(epoch)`, which reads, decides, and writes with `since=epoch`; retried on StaleWrite.

    The epoch is read before anything that the write is based on. So a write that the store accepts contains nothing
    that was forgotten by then.
    """
    for _ in range(TRIES - 1):
        try:
            return await attempt(await store.epoch(scope))
        except StaleWrite:
            continue
    return await attempt(await store.epoch(scope))
