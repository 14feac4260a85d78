"""An application of several agents, each set up by one configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from loom.agent.agent import Agent
from loom.errors import NotFound, UsageError
from loom.memory._write.learn_in_background import Facts
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
    memory: MemoryConfig | str | Mapping[str, Any] | Memory | None = field(default_factory=MemoryConfig)
    """The four layers of its memory, on the application's store; or whatever an Agent takes as its memory."""
    model: str | Model | None = None
    """The application's model if not given."""
    tools: tuple[Tool | Callable[..., Any], ...] = ()
    facts: Facts = "auto"
    """How it finds facts in what is said; see Agent."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Whatever else an Agent takes."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise UsageError("an agent needs a name")
        object.__setattr__(self, "tools", tuple(self.tools))


class LoomApp:
    """Makes agents and keeps them by name. Agents share the model, the tools and the place of the store.

    What one agent remembers is not another one's to know: each has a namespace of its own on the store, which lies
    below the namespace of the memory if that has one.
    """

    def __init__(
        self,
        *,
        model: str | Model | None = None,
        url: str | Mapping[str, Any] | Memory = "inmemory",
        tools: Iterable[Tool | Callable[..., Any]] = (),
    ) -> None:
        """Make an application.

        Args:
            model: who answers where an agent's configuration names no model; see Agent.
            url: where memories are kept, as open_memory takes it: `inmemory`, `sqlite:PATH`, a URL, a mapping, or a
                memory, which stays open when the application is closed.
            tools: what every agent may call, beside its own.
        """
        self._model = model
        self._store = url
        self._tools = tuple(tools)
        self._agents: dict[str, Agent] = {}

    def create_agent(self, config: AgentConfig) -> Agent:
        """An agent; with a memory it has the tools to search and change it."""
        if config.name in self._agents:
            raise UsageError(f"there is an agent {config.name!r} already; give this one another name")
        memory = self._place(config.memory) if isinstance(config.memory, MemoryConfig) else config.memory
        options: dict[str, Any] = {"name": config.name, "memory_tools": memory is not None, "facts": config.facts}
        options["namespace"] = _namespace(memory, config.name)
        agent = Agent(
            config.system_prompt,
            model=config.model or self._model,
            memory=memory,
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

    def _place(self, layers: MemoryConfig) -> Mapping[str, Any] | Memory:
        if isinstance(self._store, Memory):
            return self._store.view(config=layers)
        place = {"url": self._store} if isinstance(self._store, str) else self._store
        return {**place, "config": layers}


def _namespace(memory: str | Mapping[str, Any] | Memory | None, agent: str) -> str:
    """The namespace of an agent: its name, below that of its memory. A `/` in a name is escaped."""
    name = agent.replace("%", "%25").replace("/", "%2F")
    own = memory.namespace if isinstance(memory, Memory) else None
    if isinstance(memory, Mapping):
        own = memory.get("namespace")
    return name if own in {None, "default"} else f"{own}/{name}"
