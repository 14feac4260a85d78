"""Memory over several stores: what is at hand in a fast one, what is known in a durable one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loom.core.record import Layer
from loom.errors import UsageError
from loom.memory.composite_change import Part
from loom.memory.composite_store import CompositeStore
from loom.memory.memory import Memory


class CompositeMemory(Memory):
    """A memory whose layers live in different stores.

    A layer without a store of its own lives with the next layer above that has one. The store of the highest layer
    named is the truth: it also keeps facts, blocks, jobs and the archive, so it should be the durable one. Everything
    else is a Memory: `ContextCompressor` shortens what goes from L1 to L2, and `recall` searches all layers together.
    """

    def __init__(
        self,
        *,
        l1: Part | None = None,
        l2: Part | None = None,
        l3: Part | None = None,
        l4: Part | None = None,
        **options: Any,
    ) -> None:
        named = {Layer.L1: l1, Layer.L2: l2, Layer.L3: l3, Layer.L4: l4}
        super().__init__(composed({layer: store for layer, store in named.items() if store is not None}), **options)


def composed(named: Mapping[Layer, Part], *, truth: Any = None) -> CompositeStore:
    """One store of several, by the rule of CompositeMemory; `truth` is that of the highest layer if not given."""
    if not named:
        raise UsageError("no layer was given a store; name at least that of l4")
    truth = named[max(named)] if truth is None else truth  # CompositeStore says so if it cannot be
    store, layers = truth, dict[Layer, Part]()
    for layer in sorted(Layer, reverse=True):
        store = layers[layer] = named.get(layer, store)
    return CompositeStore(truth, layers)
