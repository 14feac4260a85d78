"""A rendered request: its body, and which slot each of its blocks came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from loom.context.render.layout import WireSlot

RequestSettings: TypeAlias = Mapping[str, Any]
"""Request fields of the caller (max_tokens, tool_choice, ...), passed on as they are."""


@dataclass(slots=True)
class RenderedBody:
    """A request body under construction, and the origin of each block by its path (`messages[2].content[0]`)."""

    body: dict[str, Any]
    origins: dict[str, WireSlot] = field(default_factory=dict[str, WireSlot])
