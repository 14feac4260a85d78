"""Questions are not memories of their own: those that tell nothing are not recalled."""

import pytest

from loom.engine import open_memory
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(where, embedder="hash", clock=FakeClock(), with_facts=False) as opened:
        yield opened


async def recalled(memory, question, *said):
    for number, text in enumerate(said):
        await memory.remember(text, user_id="ann", session_id=f"s{number}")
    return [hit.item.text for hit in await memory.recall(question, user_id="ann")]


async def test_a_question_asked_six_times_is_not_knowledge(memory):
    said = ["I live in Tartu.", *["Where do I live?"] * 6]
    assert await recalled(memory, "Where do I live?", *said) == ["I live in Tartu."]


async def test_it_is_not_counted_as_recalled(memory):
    await recalled(memory, "Where do I live?", "Where do I live?")
    [asked] = [r async for r in _every(memory)]
    assert asked.accesses == 0


async def _every(memory):
    for record in await memory.store.list(memory._scope("ann")):
        yield record


@pytest.mark.parametrize(
    "asked",
    [
        "What should I eat?",
        "Where do I live again?",
        "Do you know where I live?",
        "What? Where do I live?",
        "where am i living?",
        "where do i live",
        "what's my home",
        "Which city do I live in",
        "Tell me where I live.",
        "Please remind me again what I should eat",
        "Tell me more about my home.",
        "Could you tell me a bit about living?",
        "Explain what I should eat",
        "Wo wohne ich?",
        "O\u00f9 est-ce que j'habite?",
    ],
)
async def test_plain_questions_tell_nothing(memory, asked):
    assert await recalled(memory, "Where do I live, and what should I eat?", "I live in Tartu.", asked) == [
        "I live in Tartu."
    ]


@pytest.mark.parametrize(
    "asked",
    [
        "Can you help me choose paint for my 2018 Honda Civic?",
        "Where is Anna's paint?",
        "How do I get to gate 14 with paint?",
        'What does "matt paint" mean?',
        "I bought paint. Which brush do I need?",
        "Which brush suits the thick oil paint that I bought for the fence?",
        "What I need is the white paint",
        "Where I live is the best paint shop",
        "How we painted the fence",
        "Tell me when the paint is dry.",
        "Remind me to buy paint.",
        "Tell me more about the paint that Anna bought",
        "Explain to Ben that the paint was my idea, and cost 20 euros.",
        "Describe the fence that we painted with my brother in the garden last summer",
        "What is the paint: it is lime",
        "where is the paint of Anna",
    ],
)
async def test_questions_that_carry_something_stay(memory, asked):
    assert asked in await recalled(memory, "What do I need for the paint?", asked)


@pytest.mark.parametrize(
    "asked",
    ["Explain WireGuard.", "Tell me more about WireGuard.", "Describe WireGuard please", "Can you explain WireGuard?"],
)
async def test_a_request_that_names_nothing_but_the_topic_adds_nothing(memory, asked):
    said = (asked, "WireGuard uses port 51820.")
    assert await recalled(memory, "Which port does WireGuard use?", *said) == ["WireGuard uses port 51820."]
    assert asked in await recalled(memory, "What did I ask about WireGuard?")
    assert asked in await recalled(memory, "Which port does Tailscale use?")


async def test_who_asks_what_was_asked_is_shown_the_questions(memory):
    assert await recalled(memory, "What did I ask you about living?", "Where do I live?") == ["Where do I live?"]
