"""One conversation: its history, what is shown of it, and what keeps it inside the window."""

from __future__ import annotations

from collections.abc import Callable

from loom.core.doors import Port
from loom.protocols.model import Model

OPENER: Port[Callable[[str], Model]] = Port("the way to open a model by its name")
"""Filled by the composition root, which knows the providers."""
