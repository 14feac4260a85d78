"""Session events: numbered, dated, and passed to every listener and to the reader of a turn."""

from __future__ import annotations

from asyncio import Queue
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from logging import getLogger
from typing import Any, TypeAlias, TypeVar

from loom.core.clock import Clock
from loom.core.event import Error, Event
from loom.errors import LoomError

Listener: TypeAlias = Callable[[Event], object]
Events: TypeAlias = Queue[Event | None]
"""Events on their way to the reader of a turn; None is the end."""

_E = TypeVar("_E", bound=Event)
_log = getLogger(__name__)


class Emitter:
    """Makes the events of one session, in order, and passes each to the listeners.

    A listener that raises is logged and called again next time: a display that fails must not stop a turn.
    """

    def __init__(self, session_id: str, clock: Clock) -> None:
        self._session_id = session_id
        self._clock = clock
        self._next = 0
        self._listeners: list[Listener] = []
        self._reader: Events | None = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener with every event from now on; the returned function stops that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    @contextmanager
    def collect(self, reader: Events | None) -> Generator[list[Event]]:
        """Collect the events of a turn, and pass them to its reader, if there is one."""
        seen: list[Event] = []
        with ExitStack() as stack:
            stack.callback(self.subscribe(seen.append))
            if reader is not None:
                stack.callback(self.subscribe(reader.put_nowait))
            self._reader = reader
            try:
                yield seen
            finally:
                self._reader = None

    async def emit(self, kind: type[_E], **values: Any) -> None:
        """Send an event, and wait until the reader of the turn asks for the next one."""
        self.emit_nowait(kind, **values)
        if self._reader is not None:
            await self._reader.join()

    def emit_nowait(self, kind: type[_E], **values: Any) -> _E:
        """Send an event without waiting for the reader: beside turns, at their end, and out of tools."""
        event = kind(seq=self._next, at=self._clock.now(), session_id=self._session_id, **values)
        self._next += 1
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:  # noqa: BLE001  (it is logged, and the turn goes on)
                _log.exception("a listener failed on %s", event.type)
        return event

    def fail(self, error: BaseException) -> None:
        """Say that a turn ended with an error, or was stopped."""
        stopped = not isinstance(error, Exception)
        retryable = stopped or (isinstance(error, LoomError) and error.retryable)
        message = "the turn was stopped" if stopped else str(error)
        self.emit_nowait(Error, error=type(error).__name__, message=message, retryable=retryable)
