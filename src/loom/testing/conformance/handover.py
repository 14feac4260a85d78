"""Laws of a store that can export a record with its search keys and its vector."""

from __future__ import annotations

from typing import Protocol

import pytest

from loom.core.record import Layer
from loom.protocols.memory_store import FoundBy, HandsOver, KeepsKeys, KeepsVectors, MemoryStore
from loom.testing.conformance.samples import ALICE, BOB, a_fact, an_episode
from loom.testing.conformance.suite import needs


class _OpenStore(MemoryStore, KeepsKeys, KeepsVectors, HandsOver, Protocol):
    """A memory store whose records can be exported with their keys."""


class HandoverLaws:
    """The laws of exporting records with their keys."""

    @needs(HandsOver, KeepsKeys, KeepsVectors)
    async def test_keys_and_vectors_are_handed_over(self, store: _OpenStore) -> None:
        """Keys as they were set, vectors in their direction; nothing where there is nothing."""
        await store.bind("suite:1:2", 2)
        await store.put(ALICE, an_episode(), an_episode("e3", layer=Layer.L3), a_fact())
        await store.put_keys(ALICE, {"e1": {"around": " caf\u00e9 tea ", "fact": "tea"}, "e3": {"fact": "zeppelin"}})
        await store.put_keys(ALICE, {"e1": {"fact": ""}})
        await store.put_vectors(ALICE, {"e1": [0.0, 5.0], "f1": (3.0, 4.0)})
        found = await store.found_by(ALICE, "e1", "e3", "f1", "unknown", "e1")
        assert dict(found) == {
            "e1": FoundBy({"around": " caf\u00e9 tea "}),
            "e3": FoundBy({"fact": "zeppelin"}),
            "f1": FoundBy(),
        }
        assert _direction(found["e1"]) == pytest.approx([0, 1], abs=1e-6)
        assert _direction(found["f1"]) == pytest.approx([0.6, 0.8], abs=1e-6)
        assert found["e3"].vector is None

    @needs(HandsOver, KeepsKeys, KeepsVectors)
    async def test_only_what_the_scope_sees_is_handed_over(self, store: _OpenStore) -> None:
        """Nothing of another user or session, and nothing that was deleted."""
        await store.put(BOB, an_episode("bob"))
        await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2", session_id="s2"), an_episode("e3"))
        await store.put_keys(BOB, {"bob": {"fact": "zeppelin"}})
        await store.delete(ALICE, "e3")
        assert await store.found_by(ALICE.for_session("s1"), "bob", "e1", "e2", "e3") == {"e1": FoundBy()}


def _direction(found: FoundBy) -> list[float]:
    numbers = [] if found.vector is None else list(found.vector)
    length = sum(number**2 for number in numbers) ** 0.5
    return [number / length for number in numbers]
