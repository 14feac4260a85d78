"""Tools that a model can call, and deciding whether one may run."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from loom.core.message import JSON, ContentPart, ToolSpec
from loom.core.scope import RunContext
from loom.errors import LoomError

ToolOutput: TypeAlias = str | Sequence[ContentPart]
"""What a tool answers: text, or parts."""
CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""The names that every provider takes."""


class ToolError(LoomError):
    """A tool could not do what was asked; the message goes to the model."""


@runtime_checkable
class Tool(Protocol):
    """A tool that a model may call.

    Laws:
    - `spec` never changes while a session uses the tool: it stands in the cached prefix;
    - run() gets the input as the model sent it, which may not fit the schema: a tool checks it, and what it
      raises is shown to the model as an error, so the message says how to call it right;
    - it may run beside other calls of the same answer;
    - cancelling the call stops the work.
    """

    @property
    def spec(self) -> ToolSpec:
        """Its name, what it does, and the schema of its input."""
        ...

    async def run(self, input: JSON) -> ToolOutput:
        """Do the work."""
        ...


# Deciding whether a tool may run.

Approval: TypeAlias = bool | str
"""True: the call is made. False, or a text that says why: it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A call that a model asks for, before it is made."""

    name: str
    arguments: Mapping[str, JSON] = field(hash=False)
    call_id: str
    run: RunContext


class Approve(Protocol):
    """Decides about one call; a function, sync or async.

    Laws:
    - the calls of one answer are submitted one after the other, in order, before any of them is made;
    - whatever is not True is a refusal, and so is an error: the model gets the reason, and the turn goes on;
    - a sync function runs in a thread, so it may wait for a person.
    """

    def __call__(self, request: ToolRequest, /) -> Approval | Awaitable[Approval]:
        """Whether the call may be made."""
        ...
