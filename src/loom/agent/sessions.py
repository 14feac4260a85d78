"""The sessions of an agent: found, made, kept warm, one turn at a time each."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from anyio import Semaphore, fail_after, get_current_task

from loom.context.context import Context
from loom.context.prompt import Prompt
from loom.context.skills import Skill
from loom.core.checks import as_utc
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.plain import one_line
from loom.core.record import Receipt
from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.memory.memory import Memory
from loom.protocols.approve import Approve
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model
from loom.protocols.tool import Tool
from loom.session.config import SessionConfig
from loom.session.session import Session

_WARM = 64
"""Sessions that stay in memory; the others are restored when they are wanted."""


_DESCRIBED = 300
"""Characters of the instructions that describe an agent."""


_LEAVING = 10.0
"""Seconds that a stream which was walked away from may take to close."""


@dataclass(slots=True)
class _Place:
    """Where one conversation is: its session, and who may use it now.

    A stream that is left in the middle is closed in another task than the one that began it, so `free` is a semaphore:
    a lock wants to be released by who took it.
    """

    session: Session
    free: Semaphore = field(default_factory=lambda: Semaphore(1))
    user: int | None = None
    """The task that uses it now."""

    @asynccontextmanager
    async def used(self) -> AsyncGenerator[None]:
        """Wait until nobody else uses it, and use it."""
        task = get_current_task().id
        try:
            with fail_after(_LEAVING if self.user == task else None):
                await self.free.acquire()
        except TimeoutError as error:
            raise UsageError(
                f"this task still reads a stream of session {self.session.id!r}; read it to its end, or aclose() it"
            ) from error
        self.user = task
        try:
            yield
        finally:
            self.user = None
            self.free.release()


class Sessions:
    """Makes and keeps the sessions of one agent."""

    def __init__(
        self,
        *,
        model: Model,
        memory: Memory | None,
        instructions: str | Prompt | Context,
        tools: Sequence[Tool],
        skills: Sequence[Skill],
        store: CheckpointStore,
        closes_store: bool,
        config: SessionConfig,
        approve: Approve | None,
        namespace: str,
        clock: Clock | None,
    ) -> None:
        if not isinstance(instructions, str | Prompt | Context):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"instructions are text, a Context, or what PromptBuilder.build() gave, not {instructions!r}"
            )
        for tool in tools:
            if not isinstance(tool, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{tool!r} is no tool; put @tool above the function")
        self._model = model
        self._memory = memory
        self._instructions = instructions
        self._tools = tools
        self._skills = skills
        self._store = store
        self._closes_store = closes_store
        self._config = config
        self._approve = approve
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._places: OrderedDict[Scope, _Place] = OrderedDict()
        self._closed = False

    @asynccontextmanager
    async def taken(self, user_id: str, session_id: str | None) -> AsyncGenerator[Session]:
        """The session of a conversation, for one turn; whoever comes meanwhile waits."""
        self._check_open()
        scope = Scope(self._namespace, user_id, self._ids.next_id() if session_id is None else session_id)
        place = self._places.get(scope) or self._placed(scope)
        self._places.move_to_end(scope)
        async with place.used():
            if session_id is not None:
                await self._caught_up(place, scope)
            try:
                yield place.session
            except StoreConflict:  # somebody else went on with it; the next turn begins where they are
                with suppress(NotFound):  # or forgot it
                    await place.session.restore()
                raise

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
        """Remove the saved sessions of a user, and let go of those that are open here, a running turn included.

        With `before`, only sessions that were last saved before that moment.
        """
        self._check_open()
        user = Scope(self._namespace, user_id)
        if before is None:
            self._let_go(user)
            return await self._store.forget(user)
        return await self._forget_before(user, as_utc(before, "before of forget()"))

    async def _forget_before(self, user: Scope, before: datetime) -> Receipt:
        newest: dict[str, datetime] = {}
        for checkpoint in await self._store.list(user):
            newest.setdefault(checkpoint.session_id, checkpoint.at)
        removed, pending = Counter[str](), list[str]()
        for session_id in [id for id, at in newest.items() if at < before]:
            session = user.for_session(session_id)
            self._let_go(session)
            receipt = await self._store.forget(session)
            removed.update(receipt.removed)
            pending += receipt.pending
        return Receipt(removed=dict(removed), pending=tuple(dict.fromkeys(pending)))

    def _let_go(self, scope: Scope) -> None:
        """Drop the sessions of a scope that are open here; whoever still holds one cannot save it."""
        for held in [held for held in self._places if scope.covers(held)]:
            self._places.pop(held).session.discard()

    async def aclose(self) -> None:
        """Save every session, and close the store if it was opened here."""
        self._closed = True
        async with AsyncExitStack() as stack:
            if self._closes_store:
                stack.push_async_callback(self._store.aclose)
            for place in self._places.values():
                stack.push_async_callback(place.session.aclose)
        self._places.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this agent is closed; make another one")

    def _placed(self, scope: Scope) -> _Place:
        place = self._places[scope] = _Place(self._made(scope))
        idle = [key for key, other in self._places.items() if other is not place and other.free.value]
        for key in idle[: max(0, len(self._places) - _WARM)]:  # every turn is saved, so nothing is lost
            del self._places[key]
        return place

    def _made(self, scope: Scope) -> Session:
        shown = self._instructions
        return Session(
            model=self._model,
            config=self._config,
            instructions=shown if isinstance(shown, str) else None,
            prompt=shown if isinstance(shown, Prompt) else None,
            context=_begun(shown) if isinstance(shown, Context) else None,
            tools=self._tools,
            skills=self._skills,
            memory=self._memory,
            approve=self._approve,
            checkpoint=self._store,
            session_id=scope.session_id,
            user_id=scope.user_id,
            namespace=scope.namespace,
            clock=self._clock,
        )

    async def _caught_up(self, place: _Place, scope: Scope) -> None:
        """Take on what others saved of this conversation meanwhile, perhaps in another process, or that it is gone."""
        newest = await self._store.load(scope)
        if newest is None and place.session.head is not None:
            place.session = self._made(scope)
        elif newest is not None and newest.id != place.session.head:
            await place.session.restore()


def _begun(context: Context) -> Context:
    """A context for a new session: all of the given one, its conversation included."""
    copied = context.copy()
    for entry in context.convo:
        copied.convo.add(entry)
    return copied
