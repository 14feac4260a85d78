"""Loom's memory as a capability of Pydantic AI: recalled text behind the prompt, and each run remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeAlias, cast

from pydantic_core import to_json

from loom.adapters._shared import Owner, home_of_memory
from loom.adapters._turns import Turns
from loom.errors import LoomError, MissingExtra
from loom.memory.memory import Memory
from loom.protocols.tool import Tool as LoomTool
from loom.session.memory import MemoryView
from loom.tools.memory import memory_tools

try:
    from pydantic_ai import DeferredToolRequests, FunctionToolset, ModelRetry, RunContext, Tool
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent, UserContent, UserPromptPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import AgentDepsT
    from pydantic_ai.toolsets import AgentToolset
except ImportError as error:
    raise MissingExtra("loom.adapters.pydantic_ai", "pydantic-ai") from error

OfRun: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str]
"""An id, or a function that gives it for a run: `lambda ctx: ctx.deps.user_id`."""

_TURNS = 500
"""The turns of a conversation that are looked up to leave them out of what is recalled; older ones may come twice."""


class LoomMemory(Owner, AbstractCapability[AgentDepsT]):
    """The memory of a user around the runs of an agent.

    What is found for the prompt of a run stands behind that prompt in each request of the run, fenced as data; it is
    not part of the message history, so nothing of it outlives the run. When the run is over, the prompt and the answer
    are remembered.
    """

    def __init__(
        self,
        memory: str | Mapping[str, Any] | Memory,
        *,
        user_id: OfRun[AgentDepsT],
        session_id: OfRun[AgentDepsT],
        tools: bool = False,
        limit: int = 8,
        budget: int = 500,
        standing_budget: int = 600,
        remember_answers: bool = True,
        id: str | None = "loom_memory",
    ) -> None:
        """Use a memory in an agent.

        Args:
            memory: a memory, which stays open, or what open_memory() takes, which is closed with this capability.
            user_id: whose memory it is: an id, or a function of the run.
            session_id: the conversation: an id, or a function of the run.
            tools: whether the model may search and change the memory by itself.
            limit: the most hits that are shown.
            budget: tokens of what is found for a prompt.
            standing_budget: tokens of standing instructions, pinned texts, facts and what was said a moment ago in
                other conversations.
            remember_answers: whether the answer is remembered, beside the prompt.
            id: the name of this capability within an agent.
        """
        self.id = id
        self._home = home_of_memory(memory)
        self._turns = Turns(self._home, limit=limit, budget=budget, standing_budget=standing_budget)
        self._user_id, self._session_id, self._remember_answers = user_id, session_id, remember_answers
        self._view: MemoryView | None = None
        self._toolset = (
            FunctionToolset[AgentDepsT]([self._tool(t) for t in memory_tools(self._home.of)], id=id) if tools else None
        )

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: a memory cannot be written down in a file of agents."""
        return None

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> LoomMemory[AgentDepsT]:  # noqa: ARG002
        """The same memory, for one run."""
        run = copy(self)
        run._view = None  # noqa: SLF001  (another of the same kind)
        return run

    def get_toolset(self) -> AgentToolset[AgentDepsT] | None:
        """The memory tools, where they are wanted."""
        return self._toolset

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Show what is recalled for the prompt behind it: in every request of the run at the same place."""
        place = _place_of_prompt(request_context.messages, ctx.run_id)
        if place is None:
            return request_context
        request = cast("ModelRequest", request_context.messages[place])
        if self._view is None:
            runs = dict.fromkeys(m.run_id for m in request_context.messages if m.run_id and m.run_id != ctx.run_id)
            earlier = [*runs][-_TURNS:]
            self._view = await self._turns.view(_text_of(request), **self._whose(ctx), shown=earlier)
        if not (text := self._view.text()):
            return request_context
        shown = replace(request, parts=[*request.parts, UserPromptPart(text)])
        messages = [*request_context.messages[:place], shown, *request_context.messages[place + 1 :]]
        return replace(request_context, messages=messages)

    async def after_run(self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Remember the prompt and the answer of the run, once."""
        answer: Any = result.output
        if isinstance(answer, DeferredToolRequests) or not self._remember_answers:
            answer = ""
        if not isinstance(answer, str):
            answer = to_json(answer, fallback=str).decode()
        # Of the run's messages only the prompt is what the user said: other capabilities add theirs in the same role.
        await self._turns.remember(ctx.run_id or "", _words(ctx.prompt), answer, **self._whose(ctx), view=self._view)
        return result

    def _whose(self, ctx: RunContext[AgentDepsT]) -> dict[str, str]:
        return {
            "user_id": self._user_id if isinstance(self._user_id, str) else self._user_id(ctx),
            "session_id": self._session_id if isinstance(self._session_id, str) else self._session_id(ctx),
        }

    def _tool(self, tool: LoomTool) -> Tool[AgentDepsT]:
        async def run(ctx: RunContext[AgentDepsT], **input: Any) -> Any:
            try:
                return await self._turns.use(tool, input, **self._whose(ctx))
            except LoomError as error:
                raise ModelRetry(str(error)) from error

        spec = tool.spec
        schema = cast("dict[str, Any]", spec.input_schema)
        return Tool[AgentDepsT].from_schema(run, spec.name, spec.description, schema, takes_ctx=True)


def _place_of_prompt(messages: Sequence[ModelMessage], run_id: str | None) -> int | None:
    """The request with the prompt of a run; a run that goes on without one answers the last prompt there is."""
    prompts = [n for n, m in enumerate(messages) if isinstance(m, ModelRequest) and _text_of(m)]
    own = [n for n in prompts if messages[n].run_id == run_id]
    return own[0] if own else prompts[-1] if prompts else None


def _text_of(request: ModelRequest) -> str:
    return "\n".join(_words(part.content) for part in request.parts if isinstance(part, UserPromptPart)).strip()


def _words(content: str | Sequence[UserContent] | None) -> str:
    """The text of a prompt, without its pictures and files."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [item.content if isinstance(item, TextContent) else item for item in content]
    return "\n".join(text for text in texts if isinstance(text, str))
