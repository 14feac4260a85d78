"""An agent as a tool of another agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from loom.core.message import JSON, ToolSpec
from loom.core.run import current_run
from loom.errors import UsageError
from loom.protocols.tool import ToolOutput
from loom.tools.function import CALLABLE, ToolError

if TYPE_CHECKING:
    from loom.agent.agent import Agent

_TASK = "task"


class AgentTool:
    """Runs an agent for the user of the run that calls it, each time in a new conversation."""

    def __init__(self, agent: Agent, *, name: str, description: str, max_depth: int) -> None:
        if not CALLABLE.fullmatch(name):
            raise UsageError(f"a tool cannot be called {name!r}; give name=, of at most 64 letters, digits, _ and -")
        if isinstance(max_depth, bool) or not isinstance(max_depth, int) or max_depth < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"max_depth={max_depth!r}; give a whole number, 1 or more")
        self._agent = agent
        self._max_depth = max_depth
        task: JSON = {"type": "string", "description": "What to do, with everything that has to be known for it."}
        schema: JSON = {"type": "object", "properties": {_TASK: task}, "required": [_TASK]}
        self.spec = ToolSpec(name, description or f"Ask the agent {name}.", schema)

    async def run(self, input: JSON) -> ToolOutput:
        """Give the agent a task, and return its answer."""
        task: Any = cast("Mapping[str, Any]", input).get(_TASK) if isinstance(input, Mapping) else None
        if not isinstance(task, str) or not task.strip():
            raise ToolError(f"the input of {self.spec.name} is wrong: give `{_TASK}`, a text")
        outer = current_run()
        if outer is not None and outer.depth >= self._max_depth:
            raise ToolError(f"{outer.depth + 1} agents call each other already; do this yourself, or do without it")
        user_id = outer.user_id if outer else "default"
        result = await self._agent.run(task, user_id=user_id, metadata=outer.metadata if outer else None)
        return result.text or "(it said nothing)"
