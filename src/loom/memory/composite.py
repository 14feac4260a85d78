"""Memory over several stores: recent episodes in a fast one, everything else in a durable one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loom.core.doors import door
from loom.core.record import Layer
from loom.errors import UsageError
from loom.memory.composite_change import Part
from loom.memory.composite_store import CompositeStore

# Put together by the engine, which knows what a URL names; loaded when it is first asked for.
__getattr__, __dir__ = door(__name__, {"CompositeMemory": "loom.engine.memories"})


def composed(named: Mapping[Layer, Part], *, truth: Any = None) -> CompositeStore:
    """One store of several, by the rule of CompositeMemory; `truth` is that of the highest layer if not given."""
    if not named:
        raise UsageError("no layer was given a store; name at least that of l4")
    truth = named[max(named)] if truth is None else truth  # CompositeStore says so if it cannot be
    store, layers = truth, dict[Layer, Part]()
    for layer in sorted(Layer, reverse=True):
        store = layers[layer] = named.get(layer, store)
    return CompositeStore(truth, layers)
