"""Agent for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loom.agent.agent import Agent
from loom.engine.sync import Blocking, SyncMemory, SyncSession, forward, iterate, wait_for

if TYPE_CHECKING:
    from loom.core.message import Usage
    from loom.protocols.model import Model
    from loom.telemetry import Bill


class SyncAgent(Blocking[Agent]):
    """Agent for blocking code: the same methods without `await`, streams as iterators."""

    _kind = "agent"

    def __init__(self, agent: Agent) -> None:
        """Wrap an agent that no loop uses; it runs on the loop of its own `run_sync`."""
        self._begin(agent, agent._shared_portal(), owns_portal=False)  # noqa: SLF001

    run = wait_for(Agent.run)
    stream = iterate(Agent.stream)
    resume = wait_for(Agent.resume)
    as_tool = forward(Agent.as_tool)
    preview = wait_for(Agent.preview)
    forget = wait_for(Agent.forget)

    def close(self) -> None:
        """aclose() for programs without an event loop. In a forked process, what ran before stays with the parent."""
        self._of.close()

    def session(self, *, user_id: str = "default", session_id: str | None = None) -> SyncSession:
        """The session behind a conversation, to look at, compact, rewind or fork."""
        found = self._call(lambda: self._of.session(user_id=user_id, session_id=session_id))
        return SyncSession._on(self._portal, found)  # noqa: SLF001

    @property
    def model(self) -> Model:
        """The `model` of the async form."""
        return self._of.model

    @property
    def name(self) -> str:
        """The `name` of the async form."""
        return self._of.name

    @property
    def memory(self) -> SyncMemory | None:
        """The `memory` of the async form."""
        return None if (found := self._of.memory) is None else SyncMemory._on(self._portal, found)  # noqa: SLF001

    @property
    def notes(self) -> tuple[str, ...]:
        """The `notes` of the async form."""
        return self._of.notes

    @property
    def bill(self) -> Bill:
        """Everything since the agent was made: answers, summaries, and learning (`memory.bill` is that alone)."""
        return self._of.bill

    @property
    def usage(self) -> Usage:
        """The tokens of all requests since the agent was made, learning included."""
        return self._of.usage

    @property
    def cost(self) -> float | None:
        """What all of them cost, in US dollars; None where the price of a model is not known."""
        return self._of.cost
