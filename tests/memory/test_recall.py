"""Recall through the front door: the embedder that fails, the reranker, the corpus beside memory, prefer, updates."""

from datetime import UTC, datetime, timedelta

import pytest

from loom.core.record import Hit, Layer
from loom.engine import open_memory
from loom.errors import ProviderUnavailable, StoreUnavailable
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.memory.config import MemoryConfig
from loom.protocols.knowledge_base import Document
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
PLACES = ["Ann keeps bees behind the mill.", "Bob mends clocks in the old town.", "The mill belongs to Carla."]


@pytest.fixture(params=["inmemory", "sqlite"])
def where(request, tmp_path):
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"


def texts(found):
    return [hit.item.text for hit in found]


class Flaky:
    """An embedder that can be switched off."""

    identity, dimension = "flaky:1:2", 2

    def __init__(self):
        self.is_down = False

    async def embed(self, texts, *, purpose):
        if self.is_down:
            raise ProviderUnavailable("the embedder is down; try again")
        return [[float("bee" in text), 1.0] for text in texts]


async def test_without_the_embedder_words_have_to_do_and_the_answer_says_so(where):
    embedder = Flaky()
    async with open_memory(where, embedder=embedder, with_facts=False) as memory:
        await memory.remember(PLACES, user_id="u")
        well = await memory.recall("who mends clocks?", user_id="u")
        embedder.is_down = True
        found = await memory.recall("who mends clocks?", user_id="u")
    assert texts(found)[0] == texts(well)[0] == PLACES[1]
    assert well.notes == ()
    assert found.notes == ("searched by words only: the embedder is down; try again",)
    assert not [hit for hit in found if "dense" in hit.why]


async def test_a_turn_that_only_words_found_is_compared_by_its_vector_too(where, monkeypatch):
    monkeypatch.setattr("loom.memory._recall.recall.BY_WORDS", 1)
    monkeypatch.setattr("loom.memory._recall.recall.BY_VECTOR", 1)
    async with open_memory(where, embedder=Flaky(), with_facts=False) as memory:
        await memory.remember(["a bee", "a clock that ticks", "bread"], user_id="u")
        found = await memory.recall("who has the clock with a bee on it that ticks?", user_id="u")
    why = {hit.item.text: hit.why for hit in found}
    assert why["a clock that ticks"]["dense"] < 0 < why["a bee"]["dense"]


class Backwards:
    """A reranker that likes the last text of the alphabet best."""

    name = "backwards"

    def __init__(self):
        self.is_down = False

    async def rerank(self, query, hits, *, limit):
        if self.is_down:
            raise ProviderUnavailable("the reranker is down; try again")
        ordered = sorted(hits, key=lambda hit: hit.item.text, reverse=True)
        return tuple(Hit(h.item, -n, {**h.why, self.name: -n}) for n, h in enumerate(ordered, 1))[:limit]


async def test_a_reranker_has_the_last_word_and_its_failure_keeps_the_order(where):
    reranker = Backwards()
    options = {"embedder": "hash", "with_facts": False}
    async with open_memory(where, reranker=reranker, **options) as memory:
        await memory.remember(PLACES, user_id="u")
        found = await memory.recall("bees at the mill", user_id="u")
        reranker.is_down = True
        kept = await memory.recall("bees at the mill", user_id="u")
    assert texts(found) == sorted(PLACES, reverse=True)
    assert found.hits[0].why["backwards"] == -1
    assert kept.notes == ("not reranked: the reranker is down; try again",)
    assert texts(kept)[0] == PLACES[0]


async def test_a_mapping_takes_the_reranker_that_stands_beside_it():
    async with open_memory({"backend": "inmemory"}, reranker=Backwards(), embedder="hash", with_facts=False) as memory:
        await memory.remember(PLACES, user_id="u")
        assert texts(await memory.recall("bees at the mill", user_id="u")) == sorted(PLACES, reverse=True)


class Broken:
    """A knowledge base that cannot be reached."""

    async def add(self, *documents):
        raise NotImplementedError

    async def remove(self, *document_ids):
        raise NotImplementedError

    async def search(self, query, *, limit=5, where=None):
        raise StoreUnavailable("the corpus is away; try again")


async def test_a_corpus_is_searched_too_and_its_passages_stand_behind_what_is_remembered(where):
    corpus = InMemoryKnowledgeBase()
    await corpus.add(Document(id="d1", text="Bees winter in a mill as well as anywhere.", source="bees.md"))
    config = MemoryConfig(knowledge_base=corpus)
    async with open_memory(where, config=config, embedder="hash", with_facts=False) as memory:
        await memory.remember([*PLACES, "Bees sting.", "Bees swarm in May."], user_id="u")
        found = await memory.recall("bees at the mill", user_id="u", limit=4)
        small = await memory.recall("bees at the mill", user_id="u", limit=4, budget=15)
        chosen = await memory.recall("bees at the mill", user_id="u", limit=9, layers=[Layer.L1])
    assert [hit.item.kind for hit in found] == ["episode", "episode", "episode", "passage"]
    assert (found.hits[-1].item.document_id, found.hits[-1].item.source) == ("d1", "bees.md")
    assert small.tokens <= 15
    assert "passage" not in [hit.item.kind for hit in chosen]


async def test_a_corpus_fills_the_places_that_memory_leaves():
    corpus = InMemoryKnowledgeBase()
    await corpus.add(*(Document(id=f"d{n}", text=f"Bees, chapter {n}.") for n in range(5)))
    config = MemoryConfig(knowledge_base=corpus)
    async with open_memory(config=config, embedder="hash", with_facts=False) as memory:
        await memory.remember("Bees sting.", user_id="u")
        found = await memory.recall("bees", user_id="u", limit=4)
        one = await memory.recall("bees", user_id="u", limit=1)
    assert [hit.item.kind for hit in found] == ["episode", "passage", "passage", "passage"]
    assert [hit.item.kind for hit in one] == ["episode"]


async def test_a_corpus_that_fails_is_named_and_memory_still_answers():
    config = MemoryConfig(knowledge_base=Broken())
    async with open_memory(config=config, embedder="hash", with_facts=False) as memory:
        await memory.remember(PLACES, user_id="u")
        found = await memory.recall("bees at the mill", user_id="u")
    assert texts(found)[0] == PLACES[0]
    assert found.notes == ("the knowledge base was not searched: the corpus is away; try again",)


OLD, NEW = "My daughter Mia goes to school in Oslo, near the sea.", "My daughter Mia goes to school in Bergen."


async def test_the_newest_statement_stands_above_the_one_it_changes(where):
    clock = FakeClock(MONDAY)
    async with open_memory(where, embedder="hash", with_facts=False, clock=clock) as memory:
        await memory.remember([OLD, *PLACES], user_id="u")
        clock.advance(timedelta(days=40))
        await memory.remember(NEW, user_id="u")
        clock.advance(timedelta(days=300))  # so late that neither was said lately
        found = await memory.recall("Does my daughter Mia go to school near the sea?", user_id="u")
        then = await memory.recall("Did my daughter Mia go to school in Oslo in March 2026?", user_id="u")
        changed = await memory.recall(OLD, user_id="u")
    assert texts(found)[:2] == [NEW, OLD]
    assert found.hits[0].why["newer"] > 0
    assert texts(then)[0] == OLD
    assert texts(changed)[0] == OLD


CHAT = [
    {"role": "user", "content": "Which honey suits tea? I like it mild."},
    {
        "role": "assistant",
        "content": "For tea a mild acacia honey suits, or lime honey; " + "and then there is more. " * 20,
    },
    {"role": "user", "content": "I take lime honey from now on."},
    {"role": "assistant", "content": "Good choice! Lime honey it is. " + "It goes well with many things. " * 20},
]


async def test_the_user_comes_first_with_or_without_a_budget(where):
    async with open_memory(where, embedder="hash", with_facts=False) as memory:
        await memory.remember(CHAT, user_id="u", session_id="s")

        async def speakers(**options):
            found = await memory.recall("which honey did I choose for tea?", user_id="u", **options)
            return [hit.item.speaker for hit in found], found

        tight, found = await speakers(budget=160)
        assert tight == ["user", "user", "assistant"]
        assert found.tokens <= 160
        assert (await speakers(budget=1000))[0] == ["user", "user", "assistant", "assistant"]
        assert (await speakers())[0] == ["user", "user", "assistant", "assistant"]
        assert (await speakers(prefer="both"))[0] == (await speakers(budget=1000, prefer="both"))[0]


async def test_people_with_names_are_no_halves(where):
    talk = [
        {"speaker": "Ann", "text": "Which honey suits tea?"},
        {"speaker": "Bob", "text": "Lime honey suits tea best."},
    ]
    async with open_memory(where, embedder="hash", with_facts=False) as memory:
        await memory.remember(talk, user_id="u", session_id="s")
        plain = await memory.recall("Which honey suits tea best?", user_id="u")
        within = await memory.recall("Which honey suits tea best?", user_id="u", budget=500)
    assert texts(plain) == texts(within)


async def test_a_year_in_what_is_told_does_not_hold_the_newer_statement_back(where):
    clock = FakeClock(MONDAY)
    async with open_memory(where, with_facts=False, clock=clock) as memory:
        old = "Jo Lang ran the harbour festival of the old town in 2022."
        new = "Jo Lang never ran the harbour festival of the old town in 2022, Ida Voss did."
        await memory.remember(old, user_id="u")
        clock.advance(timedelta(days=1))
        await memory.remember([new, "The mill belongs to Carla."], user_id="u")
        assert texts(await memory.recall("Who ran the harbour festival in 2022?", user_id="u"))[:2] == [new, old]
        asked = "What did I say on 2 March 2026 about the harbour festival?"
        assert texts(await memory.recall(asked, user_id="u"))[0] == old


async def test_what_holds_now_stands_above_the_turn_that_told_what_it_replaced(where):
    clock = FakeClock(MONDAY)
    async with open_memory(where, clock=clock) as memory:
        for said in ("I live in Lisbon, and it rains.", "I moved to Porto.", "I moved to Faro."):
            await memory.remember([said, *PLACES[:1]], user_id="u", learn=True)
            clock.advance(timedelta(days=20))
        now = await memory.recall("Where do I live?", user_id="u")
        past = await memory.recall("Where did I live before?", user_id="u")
        then = await memory.recall("Where do I live?", user_id="u", at=MONDAY + timedelta(days=30))
        known = await memory.recall("Where do I live?", user_id="u", known_at=MONDAY + timedelta(days=1))
    assert texts(now)[:2] == ["user lives_in Faro", "I live in Lisbon, and it rains."]
    assert now.hits[0].why["newer"] > 0
    assert texts(past)[0] == "I live in Lisbon, and it rains."
    assert texts(then)[0] == "user lives_in Porto"
    assert not any("newer" in hit.why for hit in known if hit.item.kind == "fact")
