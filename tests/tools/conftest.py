"""Running a tool as an agent does: for a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loom.protocols.tool import Tool
from loom.testing import run_context

Call = Callable[..., Awaitable[Any]]


@pytest.fixture
def call() -> Call:
    """Call a tool of several for a user: `await call(tools, "ann", "remember", text="...")`."""

    async def run(tools: Tool | tuple[Tool, ...], user: str, name: str, /, **input: Any) -> Any:
        found = {tool.spec.name: tool for tool in (tools if isinstance(tools, tuple) else (tools,))}
        with run_context(user_id=user, session_id=f"{user}-session"):
            return await found[name].run(input)

    return run
