"""What a turn gives back: its events as they happen, and the reply that it ends with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from warnings import warn

from anyio import CancelScope

from loom.core.clock import Clock
from loom.core.doors import Late
from loom.core.log import Error, Event
from loom.core.message import Usage
from loom.errors import LoomError, UsageError
from loom.memory.results import Recalled, Remembered

if TYPE_CHECKING:
    import asyncio
else:
    asyncio = Late("asyncio")

# Session events: numbered, dated, and passed to every listener and to the reader of a turn.

Listener: TypeAlias = Callable[[Event], object]
Events: TypeAlias = "asyncio.Queue[Event | None]"
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
        stops = [self.subscribe(seen.append)]
        if reader is not None:
            stops.append(self.subscribe(reader.put_nowait))
        self._reader = reader
        try:
            yield seen
        finally:
            self._reader = None
            for stop in stops:
                stop()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a turn ended."""

    text: str
    stop: str
    """`end`, `length`, `refusal`, ... as the model said; `steps` or `cost` where the turn reached that limit."""
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


class PendingReply:
    """What send() returns. Nothing happens before it is awaited or read; it can be one of the two, once."""

    def __init__(self, run: Callable[[Events | None], Coroutine[Any, Any, Reply]]) -> None:
        self._run = run
        self._reply: Reply | None = None
        self._turn: asyncio.Task[Reply] | None = None  # not the stream, which is closed as soon as its reader drops it
        self._used = False
        self._began = False

    def __del__(self) -> None:
        if not self._used:
            warn("session.send() was never awaited, so nothing was sent", RuntimeWarning, stacklevel=2, source=self)

    @property
    def reply(self) -> Reply:
        """How the turn ended, once all its events were read."""
        if self._reply is None:
            raise UsageError("the turn is not over; read its events to the end, or await it")
        return self._reply

    def __aiter__(self) -> AsyncGenerator[Event]:
        self._used = True
        return self._read()

    def __await__(self) -> Generator[Any, None, Reply]:
        self._used = True
        return self._complete().__await__()

    async def aclose(self) -> None:
        """Stop the turn, after reading only some of its events; where it is over already this changes nothing."""
        self._used = True
        if self._turn is not None:
            self._turn.cancel()
            with CancelScope(shield=True):  # a reader that is cancelled waits until the session is usable again
                await asyncio.gather(self._turn, return_exceptions=True)

    def _begin(self) -> None:
        if self._began:
            raise UsageError("this message was sent already; call send() again to send another")
        self._began = True

    async def _complete(self) -> Reply:
        self._begin()
        self._reply = await self._run(None)
        return self._reply

    async def _read(self) -> AsyncGenerator[Event]:
        """Run the turn beside its reader. It stays in step: it goes on when the reader asks for the next event."""
        self._begin()
        events: Events = asyncio.Queue()
        # A task group would have to be left by the task that entered it, but an abandoned stream is closed by another.
        turn = self._turn = asyncio.create_task(self._run(events))
        turn.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
                events.task_done()
            if not turn.cancelled():
                self._reply = await turn
        finally:
            await self.aclose()
