"""The memory of users around turns that another framework runs: what to show before, what to keep after."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Any

from loom.adapters._shared import Home
from loom.core.scope import RunContext, Scope, within_run
from loom.memory._write.ingest import Utterance
from loom.memory.memory import Memory
from loom.memory.results import Remembered
from loom.protocols.tool import Tool, ToolOutput
from loom.session.config import SessionConfig
from loom.session.memory import MemoryView, SessionMemory, turn_key


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
