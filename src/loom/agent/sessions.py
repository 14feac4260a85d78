"""The sessions of an agent: found, made, kept warm, one turn at a time each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio import Lock

from loom.context.context import Context
from loom.context.skills import Skill
from loom.core.clock import Clock, SystemClock
from loom.core.ids import RecordIds
from loom.core.scope import Scope
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model
from loom.protocols.tool import Tool
from loom.session.config import SessionConfig
from loom.session.session import Session
from loom.tools.run_context import InRun, RunContext

_WARM = 64
"""Sessions that stay in memory; the others are restored when they are wanted."""


@dataclass(slots=True)
class _Place:
    """Where one conversation is: its session, its tools, and who may use it now."""

    session: Session
    tools: tuple[InRun, ...]
    lock: Lock = field(default_factory=Lock)


class Sessions:
    """Makes and keeps the sessions of one agent."""

    def __init__(
        self,
        *,
        model: Model,
        memory: Memory | None,
        instructions: str | Context,
        tools: Sequence[Tool],
        skills: Sequence[Skill],
        store: CheckpointStore,
        config: SessionConfig,
        namespace: str,
        clock: Clock | None,
    ) -> None:
        self._model = model
        self._memory = memory
        self._instructions = instructions
        self._tools = tools
        self._skills = skills
        self._store = store
        self._config = config
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._ids = RecordIds(self._clock)
        self._places: OrderedDict[Scope, _Place] = OrderedDict()

    @asynccontextmanager
    async def taken(
        self, user_id: str, session_id: str | None, metadata: Mapping[str, Any] | None
    ) -> AsyncGenerator[Session]:
        """The session of a conversation, for one turn; whoever comes meanwhile waits."""
        scope = Scope(self._namespace, user_id, session_id or self._ids.next_id())
        place = self._places.get(scope) or self._made(scope)
        async with place.lock:
            if place.session.turn == 0 and session_id is not None:
                await self._restored(place.session)
            for tool in place.tools:
                tool.context = _context(scope, metadata)
            yield place.session

    async def exists(self, user_id: str, session_id: str) -> bool:
        """Whether a conversation was saved."""
        return await self._store.load(Scope(self._namespace, user_id, session_id)) is not None

    async def aclose(self) -> None:
        """Save every session and close the store."""
        for place in self._places.values():
            await place.session.aclose()
        self._places.clear()
        await self._store.aclose()

    def _made(self, scope: Scope) -> _Place:
        tools = tuple(InRun(tool, _context(scope, None)) for tool in self._tools)
        shown = self._instructions
        session = Session(
            model=self._model,
            config=self._config,
            instructions=shown if isinstance(shown, str) else None,
            context=shown.copy() if isinstance(shown, Context) else None,
            tools=tools,
            skills=self._skills,
            memory=self._memory,
            checkpoint=self._store,
            session_id=scope.session_id,
            user_id=scope.user_id,
            namespace=scope.namespace,
            clock=self._clock,
        )
        place = self._places[scope] = _Place(session, tools)
        idle = [key for key, other in self._places.items() if other is not place and not other.lock.locked()]
        for key in idle[: max(0, len(self._places) - _WARM)]:  # every turn is saved, so nothing is lost
            del self._places[key]
        return place

    async def _restored(self, session: Session) -> None:
        if await self._store.load(session.scope) is not None:
            await session.restore()


def _context(scope: Scope, metadata: Mapping[str, Any] | None) -> RunContext:
    assert scope.session_id is not None
    return RunContext(
        user_id=scope.user_id, session_id=scope.session_id, namespace=scope.namespace, metadata=dict(metadata or {})
    )
