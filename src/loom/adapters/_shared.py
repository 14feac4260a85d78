"""What adapters share: where their calls run, and one user's memory around a turn of another framework."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from loom.core.scope import RunContext, Scope, within_run
from loom.core.threads import Portal, renew_lock_after_fork
from loom.engine.open import open_checkpoints, open_memory
from loom.errors import UsageError
from loom.memory._write.ingest import Utterance
from loom.memory.memory import Memory
from loom.memory.results import Remembered
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.tool import Tool, ToolOutput
from loom.session.config import SessionConfig
from loom.session.memory import MemoryView, SessionMemory, turn_key


class _CanClose(Protocol):
    async def aclose(self) -> None: ...


_R = TypeVar("_R")
_T = TypeVar("_T", bound=_CanClose)


class Home(Generic[_T]):
    """A memory or a store, and the loop that its calls run on.

    Opened here, of a URL, it has a loop of its own in a thread: any loop of any thread may call, and blocking code too.
    Given as an object it stays with the loop that calls, and is left open; blocking code then calls on a loop in a
    thread, which is ended. With `one_loop`, an object that two loops use at one time raises UsageError: a memory would
    wait for ever, because its locks belong to a loop.
    """

    def __init__(self, of: _T, *, owns: bool, one_loop: bool = False) -> None:
        self.of, self.owns, self._one_loop = of, owns, one_loop
        self._calls: Counter[object] = Counter()
        self._portal: Portal | None = None
        self._is_closed = False
        self._lock = Lock()
        renew_lock_after_fork(self, "_lock")

    async def call(self, function: Callable[[_T], Awaitable[_R]]) -> _R:
        """Call it from async code."""
        if not self.owns:
            with self._on_this_loop():
                return await function(self.of)
        return await asyncio.wrap_future(self._thread().start(partial(function, self.of)))

    @contextmanager
    def _on_this_loop(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._one_loop and self._calls.total() > self._calls[loop]:
                raise UsageError(
                    "this memory was given as an object, and another event loop is using it; give the adapter a URL, "
                    "and it can be used from any thread"
                )
            self._calls[loop] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[loop] -= 1
                self._calls += Counter()  # drops loops that wait for nothing

    def run(self, function: Callable[[_T], Awaitable[_R]]) -> _R:
        """Call it from blocking code, and wait."""
        return self._thread().call(partial(function, self.of))

    def _thread(self) -> Portal:
        with self._lock:
            if self._is_closed and self.owns:
                raise UsageError("this adapter is closed; make another")
            if self._portal is None:
                self._portal = Portal("this adapter")
            return self._portal

    async def aclose(self) -> None:
        """Close what was opened here. Closing twice is allowed."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close what was opened here. Closing twice is allowed."""
        with self._lock:
            portal, self._portal, self._is_closed = self._portal, None, True
        if portal is not None and portal.is_of_this_process:
            try:
                if self.owns:
                    portal.call(self.of.aclose)
            finally:
                portal.close()


class Owner:
    """The doors with which an adapter is closed; it gives `_home`."""

    _home: Home[Any]

    async def aclose(self) -> None:
        """Close what was opened from a URL; what was given as an object stays open."""
        await self._home.aclose()

    def close(self) -> None:
        """The same for blocking code."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def home_of_memory(memory: str | Mapping[str, Any] | Memory) -> Home[Memory]:
    """The home of a memory: of an open one, or of one to open."""
    return Home(open_memory(memory), owns=not isinstance(memory, Memory), one_loop=True)


def home_of_checkpoints(store: str | CheckpointStore) -> Home[CheckpointStore]:
    """The home of a store of sessions: of an open one, or of one to open."""
    return Home(open_checkpoints(store), owns=isinstance(store, str))


class Turns:
    """The memory of users around turns that another framework runs: what to show before, what to keep after."""

    def __init__(self, home: Home[Memory], *, limit: int = 8, budget: int = 500, standing_budget: int = 600) -> None:
        self._home = home
        self._config = SessionConfig(recall_limit=limit, recall_budget=budget, standing_budget=standing_budget)

    def _of(self, memory: Memory, user_id: str, session_id: str) -> SessionMemory:
        return SessionMemory(memory, Scope(memory.namespace, user_id, session_id), self._config)

    async def view(self, text: str, *, user_id: str, session_id: str, shown: Collection[str] = ()) -> MemoryView:
        """What to show for a message. `shown` are the keys of the turns that the model sees anyway."""
        return await self._home.call(lambda memory: self._of(memory, user_id, session_id).view(text, shown))

    async def remember(
        self, key: str, message: str, answer: str, *, user_id: str, session_id: str, view: MemoryView | None = None
    ) -> Remembered | None:
        """Keep an exchange, once under its key; None where neither side said anything."""
        if not message.strip() and not answer.strip():
            return None

        async def write(memory: Memory) -> Remembered:
            turn = self._of(memory, user_id, session_id)
            return await self._kept(memory, turn.remember(turn_key(key), message, answer, view=view), user_id)

        return await self._home.call(write)

    async def keep(
        self, turns: Sequence[Utterance], *, user_id: str, session_id: str, key: str | None = None
    ) -> Remembered | None:
        """Keep what was said, in one step, once under a key; None where nothing was."""
        if not turns:
            return None

        async def write(memory: Memory) -> Remembered:
            done = memory.remember(turns, user_id=user_id, session_id=session_id, key=key, learn=True)
            return await self._kept(memory, done, user_id)

        return await self._home.call(write)

    async def _kept(self, memory: Memory, work: Awaitable[Remembered], user_id: str) -> Remembered:
        done = await work
        if self._home.owns:  # work in the background needs a loop that does not end with the caller
            await memory.upkeep(user_id=user_id)
        return done

    async def use(self, tool: Tool, input: Any, *, user_id: str, session_id: str) -> ToolOutput:
        """Run a memory tool for a user."""

        async def run(memory: Memory) -> ToolOutput:
            with within_run(RunContext(user_id=user_id, session_id=session_id, namespace=memory.namespace)):
                return await tool.run(input)

        return await self._home.call(run)
