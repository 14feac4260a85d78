"""An application of several agents, each set up by one configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from loom.agent.agent import Agent
from loom.errors import NotFound, UsageError
from loom.memory.config import MemoryConfig
from loom.memory.memory import Memory
from loom.protocols.model import Model
from loom.protocols.tool import Tool

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What an agent is made from."""

    name: str
    system_prompt: str = ""
    memory: MemoryConfig | str | Mapping[str, Any] | Memory | None = None
    """The four layers of its memory, on the application's store; or whatever an Agent takes as its memory."""
    model: str | Model | None = None
    """The application's model if not given."""
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Whatever else an Agent takes."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise UsageError("an agent needs a name")
        object.__setattr__(self, "tools", tuple(self.tools))


class LoomApp:
    """Makes agents and keeps them by name. Agents share the model, the tools and the place of the store.

    What one agent remembers is not another one's to know: each has a namespace of its own on the store.
    """

    def __init__(
        self,
        *,
        model: str | Model | None = None,
        store: str | Mapping[str, Any] = "inmemory",
        tools: Iterable[Tool] = (),
    ) -> None:
        """Make an application.

        Args:
            model: who answers, where an agent's configuration names nobody else; see Agent.
            store: where memories are kept, as open_memory takes it: `inmemory`, `sqlite:PATH`, a URL, or a mapping.
            tools: what every agent may call, beside its own.
        """
        self._model = model
        self._store = store
        self._tools = tuple(tools)
        self._agents: dict[str, Agent] = {}

    def create_agent(self, config: AgentConfig) -> Agent:
        """An agent; with a memory it has the tools to search and change it."""
        if config.name in self._agents:
            raise UsageError(f"there is an agent {config.name!r} already; give this one another name")
        memory = config.memory
        options: dict[str, Any] = {"name": config.name, "memory_tools": memory is not None, "namespace": config.name}
        agent = Agent(
            config.system_prompt,
            model=config.model or self._model,
            memory=self._place(memory) if isinstance(memory, MemoryConfig) else memory,
            tools=(*self._tools, *config.tools),
            **{**options, **config.options},
        )
        self._agents[config.name] = agent
        return agent

    def get_agent(self, name: str) -> Agent:
        """The agent of this name."""
        if name not in self._agents:
            raise NotFound(f"there is no agent {name!r}; the agents are: {', '.join(self._agents) or 'none'}")
        return self._agents[name]

    def list_agents(self) -> tuple[str, ...]:
        """The names of the agents, in the order they were made."""
        return tuple(self._agents)

    async def aclose(self) -> None:
        """Close every agent."""
        async with AsyncExitStack() as stack:
            for agent in self._agents.values():
                stack.push_async_callback(agent.aclose)
        self._agents.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _place(self, layers: MemoryConfig) -> Mapping[str, Any]:
        place = {"url": self._store} if isinstance(self._store, str) else self._store
        return {**place, "config": layers}
