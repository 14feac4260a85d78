"""Events as they happen: numbered, dated, and told to everybody who listens."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from typing import Any, TypeAlias, TypeVar

from loom.core.clock import Clock
from loom.core.event import Error, Event
from loom.errors import LoomError

Listener: TypeAlias = Callable[[Event], object]

_E = TypeVar("_E", bound=Event)
_log = getLogger(__name__)


class Emitter:
    """Makes the events of one session, in order.

    Listeners hear an event the moment it happens, before whoever reads the turn. One that raises is logged and
    heard again next time: a display that fails must not stop a turn.
    """

    def __init__(self, session_id: str, clock: Clock) -> None:
        self._session_id = session_id
        self._clock = clock
        self._next = 0
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell a listener of every event from now on; the returned function stops that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def emit(self, kind: type[_E], **values: Any) -> _E:
        """Make an event and tell it."""
        event = kind(seq=self._next, at=self._clock.now(), session_id=self._session_id, **values)
        self._next += 1
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:  # noqa: BLE001  (it is logged, and the turn goes on)
                _log.exception("a listener failed on %s", event.type)
        return event

    def failed(self, error: BaseException) -> Error:
        """Tell that a turn ended with an error, or was stopped."""
        stopped = not isinstance(error, Exception)
        retryable = stopped or (isinstance(error, LoomError) and error.retryable)
        message = "the turn was stopped" if stopped else str(error)
        return self.emit(Error, error=type(error).__name__, message=message, retryable=retryable)
