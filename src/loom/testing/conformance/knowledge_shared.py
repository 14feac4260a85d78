"""The laws of knowledge bases that share a store: what one of them writes, all of them have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import pytest

from loom.core.record import Provenance
from loom.protocols.knowledge_base import Document, KnowledgeBase
from loom.testing.conformance.suite import Suite

Another: TypeAlias = Callable[[], Awaitable[KnowledgeBase]]
"""Makes another knowledge base over the same store, as a second program would."""

DAYS = " ".join(f"Anna drinks green tea on day {n}." for n in range(150))


class SharedKnowledgeSuite(Suite):
    """Subclass it and override the fixture `another`."""

    @pytest.fixture
    async def another(self) -> Another:
        """What makes a knowledge base over one store, which is empty at first."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `another`")

    async def test_a_second_base_finds_what_the_first_added(self, another: Another) -> None:
        """With the same hits: passages, sources, provenance, attributes and scores."""
        one = await another()
        documents = (
            Document(id="long", text=DAYS, source="diary", provenance=Provenance("operator", trusted=True)),
            Document(id="short", text="Zo\u00eb \U0001f375 met Anna.\n\nShe left.", attributes={"n": 1, "b": True}),
        )
        await one.add(*documents)
        two = await another()
        for query in ("Anna drinks tea", "who met Anna"):
            first, second = [{h.item.id: h for h in await base.search(query, limit=500)} for base in (one, two)]
            assert {id: hit.item for id, hit in second.items()} == {id: hit.item for id, hit in first.items()}
            assert [second[id].score for id in first] == pytest.approx([hit.score for hit in first.values()], abs=1e-4)
            assert {_document(hit) for hit in second.values()} == {"long", "short"}
        assert await two.add(*documents) == 0

    async def test_a_base_that_was_there_before_finds_it_too(self, another: Another) -> None:
        """Also where the words find it and it is not among the nearest, and again after a change."""
        one, two = await another(), await another()
        await two.add(*(Document(id=f"d{n:03}", text=f"Bruno drinks coffee on day {n}.") for n in range(120)))
        assert len(await one.search("Bruno", limit=500)) == 120
        await one.add(Document(id="x", text="Anna keeps the quinine in the cellar."))
        assert "x" in {_document(hit) for hit in await two.search("quinine")}
        await one.add(Document(id="x", text="Anna keeps the absinthe in the cellar."))
        hits = await two.search("absinthe")
        assert {hit.item.text for hit in hits if _document(hit) == "x"} == {"Anna keeps the absinthe in the cellar."}

    async def test_other_text_replaces_it_everywhere(self, another: Another) -> None:
        """No passage of the old document is left, whichever base replaces it."""
        one, two = await another(), await another()
        await one.add(Document(id="tea", text=DAYS))
        assert len(await two.search("Anna", limit=500)) > 0
        assert await two.add(Document(id="tea", text="Bruno drinks coffee.")) == 1
        for base in (one, two, await another()):
            assert {hit.item.text for hit in await base.search("Anna or Bruno drinks", limit=500)} == {
                "Bruno drinks coffee."
            }

    async def test_the_second_removes_what_the_first_added(self, another: Another) -> None:
        """Once, all of its passages, and the first no longer finds it."""
        one, two = await another(), await another()
        await one.add(Document(id="long", text=DAYS), Document(id="tea", text="Anna drinks green tea."))
        assert await two.remove("long", "unknown") == 1
        assert await one.remove("long") == 0
        for base in (one, two, await another()):
            assert {_document(hit) for hit in await base.search("Anna drinks green tea", limit=500)} == {"tea"}
        assert await one.add(Document(id="long", text=DAYS)) == 1
        assert {_document(hit) for hit in await two.search("Anna", limit=500)} == {"long", "tea"}

    async def test_two_add_at_once(self, another: Another) -> None:
        """Each finds what both added, round after round."""
        one, two = await another(), await another()
        for turn in range(5):
            async with anyio.create_task_group() as tasks:
                for name, base in (("one", one), ("two", two)):
                    tasks.start_soon(base.add, Document(id=f"{name}{turn}", text=f"Anna gave {name} a present."))
            expected = {f"{name}{n}" for name in ("one", "two") for n in range(turn + 1)}
            for base in (one, two):
                assert {_document(hit) for hit in await base.search("Anna gave a present", limit=100)} == expected

    async def test_two_change_one_document_at_once(self, another: Another) -> None:
        """It has one complete text, the same for both bases; removing it removes it from both."""
        one, two = await another(), await another()
        texts = [" ".join(f"Anna {verb} on day {n}." for n in range(60)) for verb in ("sings", "paints")]
        async with anyio.create_task_group() as tasks:
            for base, text in zip((one, two), texts, strict=True):
                tasks.start_soon(base.add, Document(id="anna", text=text))
        bases = (one, two, await another())
        found = [{hit.item.text for hit in await base.search("Anna", limit=500)} for base in bases]
        assert found[0] == found[1] == found[2]
        assert len({text.split()[1] for text in found[0]}) == 1
        assert await two.remove("anna") == 1
        for base in (one, two, await another()):
            assert await base.search("Anna", limit=500) == ()

    async def test_a_document_can_come_and_go(self, another: Another) -> None:
        """What is removed and added again by the other is a new document."""
        one, two = await another(), await another()
        for text in ("Anna drinks tea.", "Anna drinks coffee.", "Anna drinks tea."):
            await one.remove("a")
            assert await two.add(Document(id="a", text=text)) == 1
            assert [hit.item.text for hit in await one.search("Anna drinks")] == [text]


def _document(hit: Any) -> str:
    return hit.item.document_id
