"""Interrupt a call at each of its steps with another action, then let it continue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any, cast

_counted: ContextVar[bool] = ContextVar("counted", default=False)

Interruption = Callable[[], Awaitable[None]]


class Interrupter:
    """Counts the steps inside `counting()`: one before and one after each call of a watched object.

    A call of the watched object by another task, or by the interruption itself, does not count.
    """

    def __init__(self) -> None:
        self._left = -1
        self._interruption: Interruption | None = None
        self.reached = False
        """Whether the call had enough steps to be interrupted."""

    @asynccontextmanager
    async def counting(self, step: int, interruption: Interruption) -> AsyncGenerator[None]:
        """Interrupt the calls of this block at one step, counted from 0."""
        self._left, self._interruption, self.reached = step, interruption, False
        token = _counted.set(True)
        try:
            yield
        finally:
            _counted.reset(token)
            self._interruption = None

    async def pass_by(self) -> None:
        """One step."""
        if not _counted.get() or self._interruption is None or self.reached:
            return
        self._left -= 1
        if self._left < 0:
            self.reached = True
            token = _counted.set(False)
            try:
                await self._interruption()
            finally:
                _counted.reset(token)

    def watch(self, watched: Any) -> None:
        """Make every public coroutine method of an object two steps. It stays an instance of its class."""
        kind = cast("type[Any]", type(watched))
        names = [name for name in dir(kind) if not name.startswith("_") and iscoroutinefunction(getattr(kind, name))]
        stepped = {name: self._stepped(kind, name) for name in names}
        watched.__class__ = type(f"Watched{kind.__name__}", (kind,), stepped)

    def _stepped(self, kind: type[Any], name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(kind, name)

        async def call(*args: Any, **options: Any) -> Any:
            await self.pass_by()
            try:
                return await method(*args, **options)
            finally:
                await self.pass_by()

        return call
