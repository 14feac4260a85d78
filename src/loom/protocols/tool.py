"""Running a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from loom.core.message import JSON, DocumentPart, ImagePart, TextPart, ToolSpec

ToolOutput: TypeAlias = str | Sequence[TextPart | ImagePart | DocumentPart]
"""What a tool answers: text, or parts."""


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
