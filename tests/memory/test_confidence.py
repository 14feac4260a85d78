"""Knowing that nothing is known: confidence, its threshold, and the notes."""

import pytest

from loom.engine import open_memory
from loom.errors import UsageError

pytestmark = pytest.mark.anyio

TOLD = (
    "I moved to Bergen in May, into a flat above a bakery.",
    "My sister Anna plays the cello in an orchestra.",
    "The car is a green Volvo from 1998.",
    "I am allergic to hazelnuts.",
    "On Thursdays I teach a class of beginners in pottery.",
)
OWN = ("Where did I move in May?", "What does Anna play?", "What colour is my car?", "What am I allergic to?")
FOREIGN = (
    "How tall is the tower of the cathedral?",
    "When does the train to Madrid leave?",
    "Which database do we use for billing?",
)


@pytest.fixture
async def memory(tmp_path):
    async with open_memory(f"sqlite:{tmp_path}/m.db", with_facts=False) as memory:
        for text in TOLD:
            await memory.remember(text, user_id="u")
        yield memory


async def test_own_questions_are_more_certain_than_foreign_ones(memory):
    own = [(await memory.recall(question, user_id="u")).confidence for question in OWN]
    foreign = [(await memory.recall(question, user_id="u")).confidence for question in FOREIGN]
    assert min(own) > max(foreign)
    assert all(0 <= value <= 1 for value in (*own, *foreign))


async def test_below_the_threshold_nothing_is_returned_and_a_note_says_so(memory):
    found = await memory.recall(FOREIGN[0], user_id="u", min_confidence=0.5)
    assert not found.hits
    assert found.searched == len(TOLD)
    assert found.notes == ("nothing like this is among the 5 records of user 'u'; min_confidence left out the nearest",)
    assert (await memory.recall(OWN[0], user_id="u", min_confidence=0.5)).hits


async def test_session_episodes_do_not_come_back_below_the_threshold(memory):
    talk = [{"role": "user", "content": "We sailed to Lofoten."}, {"role": "assistant", "content": "How was it?"}]
    await memory.remember(talk, user_id="u", session_id="s")
    await memory.end_session(user_id="u", session_id="s")
    found = await memory.recall(FOREIGN[0], user_id="u", min_confidence=0.9)
    assert not found.hits
    assert not found.problems


async def test_an_empty_scope_says_so(memory):
    assert (await memory.recall("anything", user_id="v")).notes == ("nothing is stored for user 'v'",)
    found = await memory.recall("anything", user_id="u", session_id="s")
    assert found.notes == ("nothing is stored for user 'u' in session 's'",)


async def test_a_confidence_is_from_0_to_1(memory):
    for wrong in (-0.1, 1.1):
        with pytest.raises(UsageError, match="from 0 to 1"):
            await memory.recall("car", user_id="u", min_confidence=wrong)


async def test_a_question_that_shares_no_word_is_said_to_be_found_by_meaning_alone(memory):
    found = await memory.recall("Wo wohne ich?", user_id="u")
    assert "no record has a word of the question: found by meaning alone" in found.notes
    assert "no record has a word" not in " ".join((await memory.recall(OWN[0], user_id="u")).notes)
