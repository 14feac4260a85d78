"""A message on its way: read its events, or await its reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any
from warnings import warn

from loom.core.event import Event
from loom.core.message import Usage
from loom.errors import UsageError
from loom.memory.values import Recalled, Remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a turn ended."""

    text: str
    stop: str
    """`end`, `length`, `refusal`, ... as the model said; `steps` where the turn had its last step, `cost` where it has
    cost as much as it may."""
    turn: int
    usage: Usage
    """Of this turn, compactions included."""
    checkpoint_id: str
    cost: float | None = None
    """Of this turn, in US dollars; None where the prices of a model are not known."""
    run_id: str = ""
    output: Any = None
    """The answer: its text, or a value of the type that was asked for."""
    recalled: Recalled | None = None
    remembered: Remembered | None = None
    events: tuple[Event, ...] = field(default=(), repr=False)


class Sending:
    """What send() returns. Nothing happens before it is awaited or read, and it can be only one of the two, once."""

    def __init__(
        self, events: Callable[[], AsyncGenerator[Event]], reply: Callable[[tuple[Event, ...]], Reply]
    ) -> None:
        self._make = events
        self._reply = reply
        self._seen: list[Event] = []
        self._events_made: AsyncGenerator[Event] | None = None
        self._used = False
        self._done = False

    def __del__(self) -> None:
        if not self._used:
            warn("session.send() was never awaited, so nothing was sent", RuntimeWarning, stacklevel=2, source=self)

    @property
    def reply(self) -> Reply:
        """How the turn ended, once all its events were read."""
        if not self._done:
            raise UsageError("the turn is not over; read its events to the end, or await it")
        return self._reply(tuple(self._seen))

    def __aiter__(self) -> AsyncGenerator[Event]:
        self._used = True
        return self._events()

    def __await__(self) -> Generator[Any, None, Reply]:
        self._used = True
        return self._drained().__await__()

    async def aclose(self) -> None:
        """Stop the turn, after reading only some of its events; where it is over already this changes nothing."""
        self._used = True
        if self._events_made is not None:
            await self._events_made.aclose()

    async def _events(self) -> AsyncGenerator[Event]:
        if self._events_made is not None:
            raise UsageError("this message was sent already; call send() again to send another")
        events = self._events_made = self._make()
        try:
            async for event in events:
                self._seen.append(event)
                yield event
            self._done = True
        finally:
            await events.aclose()

    async def _drained(self) -> Reply:
        async for _ in self._events():
            pass
        return self.reply
