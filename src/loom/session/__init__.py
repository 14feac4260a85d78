"""One conversation: its history, what is shown of it, and what keeps it inside the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loom.core.doors import Port
from loom.protocols.model import Model
from loom.protocols.tool import Tool

OPENER: Port[Callable[[str], Model]] = Port("the way to open a model by its name")
"""Filled by the composition root, which knows the providers."""
TOOL_MAKER: Port[Callable[[Any], Tool]] = Port("the way to make a tool of a function")
"""Filled by the composition root, too: what makes tools is above sessions."""
