"""The blocking facade: the same memory for programs without an event loop, on one loop in one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Self

from loom.core.portal import Portal
from loom.engine.open import open_memory
from loom.errors import UsageError
from loom.memory.memory import Memory

if TYPE_CHECKING:
    from types import TracebackType


class SyncMemory:
    """Memory for blocking code: every method of Memory, without `await`.

    One loop runs in one thread for the object's whole life, so that connections live as long as it does, and it
    can be used where a loop is running already. A process that is forked later has no such thread: every call there
    raises UsageError, and what was opened stays with the parent.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._portal = Portal("this memory")
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._memory, name)
        if isasyncgenfunction(method):
            return self._blocking(method, _collect)
        return self._blocking(method, None) if iscoroutinefunction(method) else method

    def _blocking(self, method: Any, collect: Any) -> Any:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_closed:
                raise UsageError("this memory is closed; open another")
            asked = partial(method, *args, **kwargs)
            return self._portal.call(partial(collect, asked) if collect else asked)

        return call

    def close(self) -> None:
        """Finish writing and release everything. Closing twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            if not self._portal.is_of_this_process:
                return
            try:
                self._portal.call(self._memory.aclose)
            finally:
                self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_memory_sync(where: str | Mapping[str, Any] | Memory = "inmemory", **options: Any) -> SyncMemory:
    """A blocking memory; see open_memory for the options."""
    return SyncMemory(open_memory(where, **options))


async def _collect(asked: Any) -> Sequence[Any]:
    return [item async for item in asked()]
