"""A rendered request: its body, and which slot each of its blocks came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from loom.context.render.layout import WireSlot
from loom.core.message import JSON, ToolSpec

RequestSettings: TypeAlias = Mapping[str, Any]
"""Request fields of the caller (max_tokens, tool_choice, ...), passed on as they are."""


@dataclass(slots=True)
class RenderedBody:
    """A request body under construction, and the origin of each block by its path (`messages[2].content[0]`)."""

    body: dict[str, Any]
    origins: dict[str, WireSlot] = field(default_factory=dict[str, WireSlot])

    def blocks(
        self, path: str, slots: Iterable[WireSlot], make: Callable[[WireSlot], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """One block for each slot, in the list at a path."""
        made: list[dict[str, Any]] = []
        for slot in slots:
            self.origins[f"{path}[{len(made)}]"] = slot
            made.append(make(slot))
        return made


def tool_head(slot: WireSlot) -> dict[str, Any]:
    """The name of a tool and its description, where it has one."""
    assert isinstance(slot.content, ToolSpec)
    tool = slot.content
    return {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}


def tool_schema(slot: WireSlot) -> JSON:
    """A copy of the schema of a tool's input, which a caller may change."""
    assert isinstance(slot.content, ToolSpec)
    return deepcopy(slot.content.input_schema)
