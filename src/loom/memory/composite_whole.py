"""Several stores looked at as one: who is in them, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loom.core.record import Layer
from loom.core.scope import Scope
from loom.memory.composite_change import Part
from loom.protocols.memory_store import MemoryStore
from loom.protocols.whole_store import Describes, ListsUsers


def named_parts(truth: Part, layers: Mapping[Layer, Part]) -> dict[str, Part]:
    """The stores by what they are for, the truth first; one that keeps several layers is named by all of them."""
    labels: dict[Part, list[str]] = {truth: ["truth"]}
    for layer in sorted(layers):
        if layers[layer] is not truth:
            labels.setdefault(layers[layer], []).append(layer.label.lower())
    return {"+".join(names): part for part, names in labels.items()}


async def all_users(stores: Iterable[ListsUsers], after: Scope | None, limit: int) -> tuple[Scope, ...]:
    """Everybody who has something in any of the stores, once, by namespace and user, from behind `after`."""
    found = {user for store in stores for user in await store.users(after=after, limit=limit)}
    return tuple(sorted(found, key=lambda user: (user.namespace, user.user_id))[:limit])


async def described(parts: Mapping[str, MemoryStore]) -> dict[str, str]:
    """What each part says of itself, its name before each label."""
    return {
        f"{name}.{label}": text
        for name, part in parts.items()
        if isinstance(part, Describes)
        for label, text in (await part.describe()).items()
    }
