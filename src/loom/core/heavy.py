"""Work that grows with a text: done at once where there is little of it, in a thread where there is much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread

from loom.core.limits import ON_LOOP

_T = TypeVar("_T")


async def off_loop(chars: int, work: Callable[[], _T]) -> _T:
    """What `work` returns. Over more than ON_LOOP characters it runs in a thread; it must not touch what others change.

    Work that began is finished, also where the caller is cancelled meanwhile.
    """
    return work() if chars <= ON_LOOP else await to_thread.run_sync(work)
