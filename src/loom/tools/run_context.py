"""Who a tool works for: the scope of the run, without threading it through every signature."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from loom.core.message import JSON
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.protocols.tool import Tool, ToolOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that a tool was called in."""

    user_id: str
    session_id: str
    namespace: str = "default"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the caller of run() gave along."""

    @property
    def scope(self) -> Scope:
        """Whose data it is, for a store."""
        return Scope(self.namespace, self.user_id, self.session_id)


_current: ContextVar[RunContext | None] = ContextVar("loom_run_context", default=None)


def get_run_context() -> RunContext:
    """The run that calls; inside any tool, sync or async, however deep.

    Raises:
        UsageError: no run calls.
    """
    context = _current.get()
    if context is None:
        raise UsageError("there is no run here; get_run_context() is for code that a tool of an agent runs")
    return context


class InRun:
    """A tool that knows its run while it works. Each call has a task of its own, so runs never see each other."""

    def __init__(self, tool: Tool, context: RunContext) -> None:
        self.spec = tool.spec
        self._tool = tool
        self.context = context

    async def run(self, input: JSON) -> ToolOutput:
        """Run the tool inside the run."""
        token = _current.set(self.context)
        try:
            return await self._tool.run(input)
        finally:
            _current.reset(token)
