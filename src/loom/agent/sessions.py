"""The sessions of an agent: opened on demand, kept warm, one turn at a time each."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from anyio import Semaphore, fail_after, get_current_task

from loom.context.context import Context
from loom.context.prompt import Prompt
from loom.core.checks import as_utc
from loom.core.clock import Clock, RecordIds, SystemClock
from loom.core.record import Receipt
from loom.core.scope import Scope, current_run
from loom.core.threads import OneLoop
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.tool import Tool
from loom.session.session import Session
from loom.text.fence import one_line

_WARM = 64
"""Sessions that stay in memory; the others are restored on demand."""
_DESCRIBED = 300
"""Characters of the instructions that describe an agent."""
_LEAVING = 10.0
"""Seconds that an abandoned stream may take to close."""


_OTHER_LOOP = (
    "another event loop is using this agent; call run_sync() in threads, which all share one loop, or make an agent "
    "for each loop"
)


@dataclass(slots=True)
class _OpenSession:
    """One session, and the task that uses it now."""

    session: Session
    # An abandoned stream is closed in another task than the one that began it, and a lock may only be released by the
    # task that acquired it.
    free: Semaphore = field(default_factory=lambda: Semaphore(1, fast_acquire=True))
    user: int | None = None
    loop: OneLoop = field(default_factory=lambda: OneLoop(_OTHER_LOOP))

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Wait until no other task uses it, and use it."""
        self._check_run()
        with self.loop.used():
            await self._wait()
            try:
                yield
            finally:
                self.user = None
                self.free.release()

    def _check_run(self) -> None:
        """Refuse what would wait for itself: a tool of the turn that runs here."""
        run = current_run()
        if self.user is not None and run is not None and run.scope == self.session.scope:
            raise UsageError(
                f"this is inside a turn of session {self.session.id!r}, which ends only after this; leave session_id "
                "out, or give another"
            )

    async def _wait(self) -> None:
        task = get_current_task().id
        try:
            with fail_after(_LEAVING) if self.user == task else nullcontext():
                await self.free.acquire()
        except TimeoutError as error:
            raise UsageError(
                f"this task still reads a stream of session {self.session.id!r}; read it to its end, or aclose() it"
            ) from error
        self.user = task


class Sessions:
    """Makes and keeps the sessions of one agent."""

    def __init__(
        self,
        make: Callable[..., Session],
        *,
        instructions: str | Prompt | Context,
        tools: Sequence[Tool],
        store: CheckpointStore,
        closes_store: bool,
        namespace: str,
        clock: Clock | None,
        one_loop: bool,
    ) -> None:
        """Keep the sessions that `make` returns; with `one_loop`, on one event loop at a time."""
        if not isinstance(instructions, str | Prompt | Context):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"instructions are text, a Context, or what PromptBuilder.build() gave, not {instructions!r}"
            )
        self._clock = clock or SystemClock()
        self._make_session = partial(make, tools=tools, clock=self._clock)
        self._instructions = instructions
        self._store = store
        self._closes_store = closes_store
        self._namespace = namespace
        self._ids = RecordIds(self._clock)
        self._open: OrderedDict[Scope, _OpenSession] = OrderedDict()
        self._closed = False
        self._loop = OneLoop(_OTHER_LOOP) if one_loop else None

    @asynccontextmanager
    async def acquire(self, user_id: str, session_id: str | None) -> AsyncGenerator[Session]:
        """The session of a conversation, for one turn; others wait until it is over."""
        self._check_open()
        scope = Scope(self._namespace, user_id, self._ids.next_id() if session_id is None else session_id)
        held = self._open.get(scope) or self._add(scope)
        self._open.move_to_end(scope)
        async with AsyncExitStack() as stack:
            if self._loop is not None:
                stack.enter_context(self._loop.used())
            await stack.enter_async_context(held.locked())
            self._check_open()  # it may have been closed while this waited
            if session_id is not None:  # another process may have continued this conversation, or deleted it
                newest = await self._store.load(scope)
                if newest is None and held.session.head is not None:
                    held.session = self._make(scope)
                elif newest is not None and newest.id != held.session.head:
                    await held.session.restore()
            try:
                yield held.session
            except StoreConflict:  # another process continued it; the next turn begins where that one ended
                with suppress(NotFound):  # or forgot it
                    await held.session.restore()
                raise
            except UsageError as error:  # most often its store says that it is closed
                if not self._closed:
                    raise
                raise UsageError(
                    f"this agent was closed during a turn of session {scope.session_id!r}, which could not end "
                    f"({error}); wait for its runs before you close it"
                ) from error

    @property
    def description(self) -> str:
        """The beginning of the instructions: what the agent is good for, in a line."""
        text = self._instructions if isinstance(self._instructions, str) else ""
        return one_line(text)[:_DESCRIBED]

    async def exists(self, user_id: str, session_id: str) -> bool:
        """Whether a conversation was saved."""
        self._check_open()
        return await self._store.load(Scope(self._namespace, user_id, session_id)) is not None

    async def forget(self, user_id: str, before: datetime | None = None) -> Receipt:
        """Remove the saved sessions of a user, and drop those that are open here, a running turn included.

        With `before`, only sessions that were last saved before that moment.
        """
        self._check_open()
        user = Scope(self._namespace, user_id)
        if before is None:
            self._discard(user)
            return await self._store.forget(user)
        before = as_utc(before, "before of forget()")
        newest: dict[str, datetime] = {}
        for checkpoint in await self._store.list(user):
            newest.setdefault(checkpoint.session_id, checkpoint.at)
        removed, pending = Counter[str](), list[str]()
        for session in [user.for_session(id) for id, at in newest.items() if at < before]:
            self._discard(session)
            receipt = await self._store.forget(session)
            removed.update(receipt.removed)
            pending += receipt.pending
        return Receipt(removed=dict(removed), pending=tuple(dict.fromkeys(pending)))

    def _discard(self, scope: Scope) -> None:
        """Drop the open sessions of a scope; code that still holds one cannot save it."""
        for held in [held for held in self._open if scope.covers(held)]:
            self._open.pop(held).session.discard()

    async def aclose(self) -> None:
        """Save every session, and close the store if it was opened here."""
        self._closed = True
        async with AsyncExitStack() as stack:
            if self._closes_store:
                stack.push_async_callback(self._store.aclose)
            for held in self._open.values():
                stack.push_async_callback(held.session.aclose)
        self._open.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this agent is closed; make another one")

    def _add(self, scope: Scope) -> _OpenSession:
        added = self._open[scope] = _OpenSession(self._make(scope))
        idle = [key for key, other in self._open.items() if other is not added and other.free.value]
        for key in idle[: max(0, len(self._open) - _WARM)]:  # every turn is saved, so nothing is lost
            del self._open[key]
        return added

    def _make(self, scope: Scope) -> Session:
        shown = self._instructions
        return self._make_session(
            instructions=shown if isinstance(shown, str) else None,
            prompt=shown if isinstance(shown, Prompt) else None,
            context=_copy(shown) if isinstance(shown, Context) else None,
            session_id=scope.session_id,
            user_id=scope.user_id,
            namespace=scope.namespace,
        )


def _copy(context: Context) -> Context:
    """A context for a new session: all of the given one, its conversation included."""
    copied = context.copy()
    for entry in context.convo:
        copied.convo.add(entry)
    return copied
