"""Two hops over facts, and questions that are no memories of their own, through recall."""

from datetime import timedelta

import pytest

from loom.engine import open_memory
from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path, clock):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(where, embedder="hash", clock=clock) as opened:
        yield opened


def texts(found):
    return [hit.item.text for hit in found]


async def stated(memory, clock, *facts):
    for fact in facts:
        clock.advance(MINUTE)
        await memory.assert_fact(*fact, user_id="ann")
    clock.advance(MINUTE)


async def test_a_fact_leads_to_the_facts_about_its_object(memory, clock):
    await stated(
        memory, clock, ("Alice", "works_at", "Acme"), ("Acme", "based_in", "Berlin"), ("Initech", "based_in", "Rome")
    )
    found = await memory.recall("In which city does Alice work?", user_id="ann")
    assert texts(found)[:2] == ["Alice works_at Acme", "Acme lives_in Berlin"]
    assert "Initech lives_in Rome" not in texts(found)
    first, second = found.hits[:2]
    assert "hop" in second.why
    assert "hop" not in first.why
    assert second.score < first.score
    assert sum(second.why.values()) == pytest.approx(second.score)


async def test_what_was_said_in_plain_words_is_followed_too(memory, clock):
    for text in ("Alice works at Acme.", "Acme is based in Berlin.", "My sister Liis works at Bolt."):
        clock.advance(MINUTE)
        await memory.remember(text, user_id="ann")
    await memory.metabolize(user_id="ann")
    clock.advance(MINUTE)
    assert "Acme lives_in Berlin" in texts(await memory.recall("In which city does Alice work?", user_id="ann"))
    assert "Liis works_at Bolt" in texts(await memory.recall("Where does my sister work?", user_id="ann"))


async def test_only_what_is_current_is_followed(memory, clock):
    await stated(memory, clock, ("Alice", "works_at", "Acme"), ("Acme", "based_in", "Berlin"))
    before = clock.now()
    await stated(memory, clock, ("Alice", "works_at", "Globex"), ("Globex", "based_in", "Oslo"))
    asked = "In which city does Alice work?"
    now, then = await memory.recall(asked, user_id="ann"), await memory.recall(asked, user_id="ann", at=before)
    assert ("Globex lives_in Oslo" in texts(now), "Acme lives_in Berlin" in texts(now)) == (True, False)
    assert ("Globex lives_in Oslo" in texts(then), "Acme lives_in Berlin" in texts(then)) == (False, True)


async def test_a_question_that_the_first_hop_answers_has_its_answer_first(memory, clock):
    await stated(memory, clock, ("Alice", "works_at", "Acme"), ("Acme", "sells", "Anvils"), ("Alice", "likes", "Chess"))
    found = await memory.recall("Who does Alice work for?", user_id="ann")
    assert texts(found)[0] == "Alice works_at Acme"
    assert texts(found)[-1] == "Acme sells Anvils"


class Counting(InMemoryStore):
    """A store that counts the searches that are by a filter alone, as those of a second hop are."""

    def __init__(self):
        super().__init__()
        self.hops = 0

    async def search(self, scope, query):
        self.hops += not query.text and query.vector is None
        return await super().search(scope, query)


@pytest.mark.parametrize(
    ("question", "hops"),
    [
        ("In which city does Bob work?", 0),
        ("What is the weather like?", 0),
        ("Do I like chess?", 0),
        ("In which city does Alice work?", 1),
    ],
)
async def test_a_question_about_nobody_that_is_known_costs_no_further_call(clock, question, hops):
    store = Counting()
    async with open_memory(store, embedder="hash", clock=clock) as memory:
        await memory.remember("Bob was here.", user_id="ann")
        await stated(
            memory, clock, ("Alice", "works_at", "Acme"), ("Acme", "based_in", "Berlin"), ("user", "likes", "chess")
        )
        await memory.recall(question, user_id="ann")
        assert store.hops == hops


async def test_no_more_is_followed_than_the_bounds_say(memory, clock):
    for number in range(40):
        await memory.assert_fact("Alice", "knows", f"Friend{number}", user_id="ann")
        await memory.assert_fact(f"Friend{number}", "lives_in", f"Town{number}", user_id="ann")
    found = await memory.recall("In which towns do the people live whom Alice knows?", user_id="ann", limit=200)
    assert 0 < len([hit for hit in found if "hop" in hit.why]) <= 32
