"""Knowing that nothing is known: confidence, its threshold, and the notes."""

import pytest

from loom.core.record import Layer
from loom.engine import open_memory
from loom.errors import NotFound, UsageError
from loom.stores.inmemory import InMemoryStore
from loom.testing import FakeClock
from loom.wrappers.delegating import DelegatingStore

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
    assert found.notes == ("nothing is stored for user 'u' in session 's'; 5 records of this user are outside it",)


async def test_a_recall_that_finds_nothing_says_what_it_searched(memory):
    await memory.assert_fact("Anna", "likes", "tea", user_id="words")
    await memory.remember(["The boat is red.", "We sailed."], user_id="words")
    await memory.set_block("persona", "A sailor.", user_id="words")
    found = await memory.recall("boat", user_id="words", where={"topic": "cars"})
    assert found.notes == (
        "user 'words' has 2 episodes, 1 fact; nothing like this is among them: none fits the filter",
    )
    assert found.searched == 4
    found = await memory.recall("boat", user_id="words", layers=[Layer.L1], min_score=9.0)
    assert found.notes == ("user 'words' has 2 episodes, 1 fact; nothing like this is among what fits the filter",)
    found = await memory.recall("boat", user_id="words", min_score=9.0)
    assert found.notes == (
        "nothing like this is among the records of user 'words': 2 episodes, 1 fact; 1 block is not searched",
    )
    found = await memory.recall("boat", user_id="words", budget=0)
    assert not found.hits
    assert found.notes[0].endswith("did not fit into 0 tokens")
    assert not any("nothing like" in note for note in found.notes)


class _Counting(DelegatingStore):
    """Counts the calls that count records."""

    counted = 0

    async def count(self, scope, *, where=None):
        self.counted += 1
        return await super().count(scope, where=where)


async def test_records_are_counted_only_where_nothing_like_the_question_is_found():
    store = _Counting(InMemoryStore())
    async with open_memory(store, embedder="hash") as memory:
        await memory.remember(TOLD, user_id="u")
        store.counted = 0
        assert (await memory.recall(OWN[0], user_id="u")).hits
        assert store.counted == 0
        assert (await memory.recall(FOREIGN[0], user_id="u")).searched == len(TOLD)
        assert store.counted == 1


async def _everything_said(url, neighbours):
    """All that the calls for two users say, on a store with these other users."""
    said = []
    async with open_memory(url, embedder="hash", clock=FakeClock()) as memory:
        for name in neighbours:
            await memory.remember(TOLD, user_id=name)
            await memory.set_block("persona", "A sailor.", user_id=name)
        for name in ("Alice ", "alise"):
            for found in (
                await memory.recall("tea", user_id=name),
                await memory.recall("tea", user_id=name, session_id="s", where={"topic": "drinks"}),
            ):
                said += [found.notes, found.problems, found.searched, str(found), found.confidence]
            said += [await memory.stats(user_id=name), str(await memory.profile(user_id=name))]
            said += [await memory.facts(user_id=name), await memory.blocks(user_id=name)]
            said += [await memory.standing(user_id=name), await memory.standing_history(user_id=name)]
            said += [[record async for record in memory.list(user_id=name)], await memory.timeline(user_id=name)]
            said += [[line async for line in memory.export(user_id=name)], await memory.get("x", user_id=name)]
            said.append(await memory.forget(user_id=name))
            for call in (memory.explain, memory.reject, memory.promote, memory.confirm, memory.block_history):
                with pytest.raises(NotFound) as failed:
                    await call("unknown", user_id=name)
                said.append(str(failed.value))
    return said


@pytest.mark.parametrize("url", ["inmemory", "sqlite:{}.db"])
async def test_a_user_never_learns_which_other_users_there_are(tmp_path, url):
    alone = await _everything_said(url.format(tmp_path / "alone"), ["bob"])
    among = await _everything_said(url.format(tmp_path / "among"), ["alice", "ALICE", "alic", "alise2"])
    assert alone == among
    assert len(alone) > 40


async def test_a_confidence_is_from_0_to_1(memory):
    for wrong in (-0.1, 1.1):
        with pytest.raises(UsageError, match="from 0 to 1"):
            await memory.recall("car", user_id="u", min_confidence=wrong)


async def test_a_question_that_shares_no_word_is_said_to_be_found_by_meaning_alone(memory):
    found = await memory.recall("Wo wohne ich?", user_id="u")
    assert "no record has a word of the question: found by meaning alone" in found.notes
    assert "no record has a word" not in " ".join((await memory.recall(OWN[0], user_id="u")).notes)
