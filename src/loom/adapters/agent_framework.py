"""Loom in Microsoft's Agent Framework: the memory of a user as a context provider, and conversations as a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast
from uuid import uuid4

from loom.adapters._logs import Logs
from loom.adapters._shared import Owner, home_of_checkpoints, home_of_memory
from loom.adapters._turns import Turns
from loom.errors import MissingExtra, UsageError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.session.memory import MemoryView
from loom.tools.memory import memory_tools

try:
    from agent_framework import (
        AgentSession,
        ContextProvider,
        FunctionTool,
        HistoryProvider,
        Message,
        SessionContext,
        SupportsAgentRun,
    )
except ImportError as error:
    raise MissingExtra("loom.adapters.agent_framework", "agent-framework") from error

OfSession: TypeAlias = str | Callable[[AgentSession], str]
"""An id, or a function that gives it for a session."""

_MESSAGE = "agent_framework.message"
_TURNS = 500
"""The turns of a conversation that are looked up to leave them out of what is recalled; older ones may come twice."""


class LoomContextProvider(Owner, ContextProvider):
    """The memory of a user around the runs of an agent.

    What is found for the input stands in front of it and behind the history, if this provider comes after the one that
    gives the history. It is fenced as data, and no history provider stores it unless it is told to. When the run is
    over, the input and the answer are remembered.
    """

    def __init__(
        self,
        memory: str | Mapping[str, Any] | Memory,
        *,
        user_id: OfSession,
        session_id: OfSession | None = None,
        tools: bool = False,
        limit: int = 8,
        budget: int = 500,
        standing_budget: int = 600,
        remember_answers: bool = True,
        source_id: str = "loom_memory",
    ) -> None:
        """Use a memory in an agent.

        Args:
            memory: a memory, which stays open, or what open_memory() takes, which is closed with this provider.
            user_id: whose memory it is: an id, or a function of the session.
            session_id: the conversation: an id, or a function of the session; the id of the session if not given.
            tools: whether the model may search and change the memory by itself.
            limit: the most hits that are shown.
            budget: tokens of what is found for an input.
            standing_budget: tokens of standing instructions, pinned texts, facts and what was said a moment ago in
                other conversations.
            remember_answers: whether the answer is remembered, beside the input.
            source_id: the name of this provider within an agent.
        """
        super().__init__(source_id)
        self._home = home_of_memory(memory)
        self._turns = Turns(self._home, limit=limit, budget=budget, standing_budget=standing_budget)
        self._user_id, self._session_id, self._remember_answers = user_id, session_id, remember_answers
        self._tools = memory_tools(self._home.of) if tools else ()

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Show what is recalled for the input."""
        whose = self._whose(session)
        # The turns that were kept in this session are shown if a history is: else nobody shows them but this.
        shown: list[str] = state.get("turns", []) if context.get_messages() else []
        view = await self._turns.view(_said(context), **whose, shown=shown)
        context.metadata[self.source_id] = view
        if text := view.text():
            context.extend_messages(self, [Message("user", [text])])
        if self._tools:
            context.extend_tools(self.source_id, [self._tool(tool, whose) for tool in self._tools])

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,  # noqa: ARG002
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Remember the input and the answer."""
        answer = context.response.text if context.response and self._remember_answers else ""
        view: MemoryView | None = context.metadata.get(self.source_id)
        key = uuid4().hex
        if await self._turns.remember(key, _said(context), answer, **self._whose(session), view=view):
            state["turns"] = [*state.get("turns", []), key][-_TURNS:]

    def _whose(self, session: AgentSession) -> dict[str, str]:
        named = session.session_id if self._session_id is None else self._session_id
        return {
            "user_id": self._user_id if isinstance(self._user_id, str) else self._user_id(session),
            "session_id": named if isinstance(named, str) else named(session),
        }

    def _tool(self, tool: Any, whose: Mapping[str, str]) -> FunctionTool:
        async def run(**input: Any) -> Any:
            return await self._turns.use(tool, input, **whose)

        spec = tool.spec
        return FunctionTool(name=spec.name, description=spec.description, func=run, input_model=spec.input_schema)


class LoomHistoryProvider(Owner, HistoryProvider):
    """Conversations in Loom's log: any number of agents, threads and processes may add to one at one time."""

    def __init__(
        self,
        url: str | CheckpointStore,
        *,
        user_id: str | Callable[[str], str],
        namespace: str = "default",
        source_id: str = "loom_history",
        **options: Any,
    ) -> None:
        """Keep conversations.

        Args:
            url: where the sessions are (`sqlite:./bot.db`), which is closed with this provider; or a store, which stays
                open.
            user_id: whose conversations they are: an id, or a function of the id of the session.
            namespace: keeps applications on one store apart.
            source_id: the name of this provider within an agent.
            options: those of every history provider, such as `store_outputs`.
        """
        super().__init__(source_id, **options)
        self._home = home_of_checkpoints(url)
        self._user_id, self._namespace = user_id, namespace

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> list[Message]:
        """The conversation, in order."""
        logs, name = self._logs(session_id)
        held = await self._home.call(lambda store: logs.read(store, name, _MESSAGE))
        return [Message.from_dict(cast("dict[str, Any]", entry.body)) for entry in held]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Add messages; of a transcript that is sent again as a whole, what is new."""
        logs, name = self._logs(session_id)
        new = [message.to_dict() for message in messages]
        if len(new) > 1:  # a transcript has more than one message
            held = [message.to_dict() for message in await self.get_messages(session_id)]
            new = new[len(held) :] if len(held) < len(new) and new[: len(held)] == held else new
        entries = [logs.entry(_MESSAGE, message) for message in new]
        await self._home.call(lambda store: logs.add(store, name, entries))

    async def delete_session(self, session_id: str) -> None:
        """Remove a conversation, and every byte of it."""
        logs, name = self._logs(session_id)
        await self._home.call(lambda store: logs.forget(store, name))

    def _logs(self, session_id: str | None) -> tuple[Logs, str]:
        if session_id is None:
            raise UsageError("the run has no session; give one, such as AgentSession(session_id='monday')")
        user = self._user_id if isinstance(self._user_id, str) else self._user_id(session_id)
        return Logs(user_id=user, namespace=self._namespace), session_id


def _said(context: SessionContext) -> str:
    """What the user says in this run."""
    return "\n".join(message.text for message in context.input_messages if message.role == "user").strip()
