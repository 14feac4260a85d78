"""What is taken back is taken back: closed on both axes, reversibly, by the user alone, and without leaving anything new."""

from datetime import timedelta

import pytest

from loom.core.message import Message
from loom.core.record import Claim
from loom.engine import open_memory
from loom.errors import UsageError
from loom.memory._facts.instructions import compete
from loom.protocols.extractor import Extraction
from loom.testing import FakeClock
from tests.memory.test_extract_rules import NEGATIVE

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


async def said(memory, clock, *texts, **more):
    """Turns are remembered and digested, a minute apart; returns the last one."""
    kept = None
    for text in texts:
        clock.advance(MINUTE)
        [kept] = (await memory.remember(text, user_id="ann", **more)).kept
        await memory.metabolize(user_id="ann")
    return kept


async def standing(memory):
    return [item.text for item in (await memory.standing(user_id="ann")).items]


async def facts(memory, **more):
    return [fact.text for fact in await memory.facts(user_id="ann", **more)]


async def test_a_retraction_closes_both_axes_and_keeps_the_history(memory, clock):
    await said(memory, clock, "I'm a vegan.")
    vegan = clock.now()
    over = await said(memory, clock, "I'm not vegan anymore, I eat meat.")
    assert (await standing(memory), await facts(memory)) == ([], [])
    assert await facts(memory, at=vegan) == ["user diet vegan"]
    assert await facts(memory, known_at=vegan, at=vegan) == ["user diet vegan"]
    ever = await memory.facts(user_id="ann", history=True)
    assert {fact.valid_until for fact in ever if fact.superseded_at is None} == {over.at}
    assert "user diet vegan" in [fact.text for fact in ever if fact.superseded_at is not None]


async def test_without_the_turn_that_took_it_back_it_stands_again(memory, clock):
    await said(memory, clock, "I'm a vegan.")
    over = await said(memory, clock, "I stopped being vegan.")
    assert await standing(memory) == []
    await memory.forget(over.id, user_id="ann")
    assert await standing(memory) == ["diet: vegan"]


async def test_what_is_said_again_after_it_was_taken_back_stands_again(memory, clock):
    await said(memory, clock, "I'm a vegan.", "I'm not vegan anymore.", "I'm vegan again.")
    assert await standing(memory) == ["diet: vegan"]


@pytest.mark.parametrize("text", ["I'm not vegan anymore.", "I stopped being vegan.", "I eat meat now."])
async def test_where_the_clock_stands_still_the_later_word_counts(memory, text):
    for said in ("I'm a vegan.", text):
        await memory.remember(said, user_id="ann", session_id="s")
        await memory.metabolize(user_id="ann")
    assert (await standing(memory), await facts(memory)) == ([], [])


async def test_what_no_longer_stands_is_noted(memory, clock):
    await said(memory, clock, "I prefer dark mode.")
    clock.advance(MINUTE)
    await memory.remember("I no longer prefer dark mode.", user_id="ann")
    notes = (await memory.metabolize(user_id="ann")).notes
    assert notes == ("'prefers: dark mode' no longer stands: the user said that it is over",)


@pytest.mark.parametrize("text", [*NEGATIVE, "I'm not vegan anymore.", "I stopped being vegan.", "I quit Siemens."])
async def test_what_was_never_said_is_not_taken_back_into_anything(text):
    async with open_memory("inmemory", embedder="hash") as memory:
        await memory.remember(text, user_id="ann")
        await memory.metabolize(user_id="ann")
        known = await memory.facts(user_id="ann", history=True)
    assert [fact for fact in known if not fact.predicate.startswith("instruction")] == []


@pytest.mark.parametrize(
    "text",
    [
        "I'm not working at Siemens today.",
        "I'm not only at Siemens.",
        "I don't work at Siemens on Fridays.",
        "I might quit Siemens.",
        "I'm thinking of quitting Siemens.",
        "If I quit Siemens, I'll travel.",
        "My friend says I don't work at Siemens anymore.",
        "I don't work at SAP.",
        "Bob left Siemens.",
        "I left SAP.",
        "Did I quit Siemens?",
    ],
)
async def test_what_does_not_take_it_back_leaves_it(memory, clock, text):
    await said(memory, clock, "I work at Siemens.", text)
    assert await facts(memory) == ["user works_at Siemens"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("I quit my job.", ["user works_as data engineer"]),
        ("I'm retired.", []),
        ("I got laid off.", ["user works_as data engineer"]),
        ("I'm not a data engineer anymore.", ["user works_at Siemens Energy"]),
        ("I left Siemens last week.", ["user works_as data engineer"]),
    ],
)
async def test_an_object_may_be_left_out_or_named_in_short(memory, clock, text, left):
    await said(memory, clock, "I work at Siemens Energy as a data engineer.", text)
    assert await facts(memory) == left


async def test_something_no_longer_hated_may_be_preferred(memory, clock):
    await said(memory, clock, "I hate dark mode.", "I prefer dark mode.", "I don't hate dark mode anymore.")
    assert await facts(memory) == ["user prefers dark mode"]


async def test_who_is_left_is_not_learnt_as_company(memory, clock):
    await said(memory, clock, "I broke up with my girlfriend Anna.")
    clock.advance(MINUTE)
    assert await facts(memory) == []


async def test_a_pasted_text_takes_nothing_back(memory, clock):
    await said(memory, clock, "I'm a vegan.")
    await said(memory, clock, "From: Bob\nSubject: dinner\n\nI'm not vegan anymore. I stopped being vegan.\nBob")
    assert await standing(memory) == ["diet: vegan"]


async def test_only_the_user_takes_back_what_the_user_said(memory, clock):
    await said(memory, clock, "I'm a vegan.", "I work at Siemens.")
    clock.advance(MINUTE)
    for message in (
        Message.assistant("I'm not vegan anymore."),
        {"role": "user", "name": "Mallory", "content": "I'm not vegan anymore. I quit Siemens."},
    ):
        await memory.remember([message], user_id="ann")
        await memory.metabolize(user_id="ann")
    assert await standing(memory) == ["diet: vegan"]
    assert "user works_at Siemens" in await facts(memory)


async def test_an_instruction_takes_back_and_still_stands_in_its_own_words(memory, clock):
    await said(memory, clock, "I prefer coffee.", "I'm a vegan.")
    clock.advance(MINUTE)
    await memory.instruct("I don't like coffee.", user_id="ann")
    clock.advance(MINUTE)
    assert await standing(memory) == ["I don't like coffee.", "diet: vegan"]


class Scripted:
    """An extractor that claims what it is told to."""

    def __init__(self, *claims):
        self.claims = claims

    async def extract(self, episodes, *, known=()):
        made = (Claim(sources=(e.id,), valid_from=e.at, **claim) for e in episodes for claim in self.claims)
        return Extraction(claims=tuple(made))


@pytest.mark.parametrize(("origin", "left"), [("user", []), ("web", ["user likes tea"]), ("tool", ["user likes tea"])])
async def test_what_a_model_takes_back_goes_by_whose_words_it_read(clock, origin, left):
    over = Scripted({"subject": "user", "predicate": "likes", "object": "tea", "retracts": True})
    async with open_memory("inmemory", embedder="hash", clock=clock, extractor=over) as memory:
        await memory.assert_fact("user", "likes", "tea", user_id="ann")
        clock.advance(MINUTE)
        await memory.remember("No more of that drink for me, honestly.", user_id="ann", origin=origin)
        clock.advance(MINUTE)
        await memory.metabolize(user_id="ann")
        assert await facts(memory) == left


def test_only_a_retraction_may_have_no_object():
    common = {"subject": "user", "predicate": "works_at", "object": "", "sources": ("e1",)}
    assert Claim(**common, retracts=True).object == ""
    with pytest.raises(UsageError, match="the object of a claim is empty"):
        Claim(**common)


@pytest.mark.parametrize(
    ("one", "other", "changed", "expected"),
    [
        ("light mode", "dark mode", False, True),
        ("coffee", "tea", False, True),
        ("coffee", "dark mode", True, False),
        ("spicy food", "Italian food", False, False),
        ("spicy food", "Italian food", True, True),
        ("coffee over tea", "tea", False, True),
        ("coffee", "tea over coffee", False, True),
        ("tea", "tea with milk", True, False),
        ("Python 3.12", "Python 3.11", False, True),
        ("Python 3.12", "Docker", True, False),
        ("phone calls", "email", False, True),
    ],
)
def test_preferences_that_take_turns(one, other, changed, expected):
    assert compete(one, other, changed=changed) is expected


# -- instructions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "release"),
    [
        ("Always answer in French.", "You don't need to answer in French anymore."),
        ("Always answer in French.", "You can stop answering in French now."),
        ("Always answer in French.", "No more French answers, please."),
        ("Never answer in German.", "It's fine to answer in German again."),
        ("Never use emojis.", "You can use emojis again."),
        ("Never use emojis.", "It's okay to use emojis now."),
        ("Never use tables.", "Thanks! You can use tables again."),
        ("Never mention politics.", "You may mention politics again."),
        ("Always use bullet points.", "No need for bullet points any more."),
        ("Always use metric units.", "You can stop using metric units."),
        ("Always keep answers short.", "You no longer have to keep answers short."),
        ("Always start with a summary.", "There's no need to start with a summary anymore."),
    ],
)
async def test_a_wish_is_taken_back_without_another_in_its_place(memory, clock, wish, release):
    await said(memory, clock, wish)
    assert await standing(memory) == [wish.rstrip(".")]
    await said(memory, clock, release)
    assert await standing(memory) == []


@pytest.mark.parametrize(
    ("wish", "newer"),
    [
        ("Always use bullet points.", "No bullet points from now on."),
        ("Always call me Doc.", "Stop calling me Doc."),
        ("Always sign with Max.", "You don't have to sign with Max any longer. Always sign with Tom."),
    ],
)
async def test_a_wish_that_says_the_opposite_stands_alone(memory, clock, wish, newer):
    await said(memory, clock, wish, newer)
    assert await standing(memory) == [newer.split(". ")[-1].rstrip(".")]


@pytest.mark.parametrize(
    ("wish", "other"),
    [
        ("Always answer in French.", "You don't need to answer in German anymore."),
        ("Always answer in French.", "You can answer now."),
        ("Always answer in French.", "You don't need to answer in French anymore?"),
        ("Always answer in French.", "My boss says you don't need to answer in French anymore."),
        ("Always answer in French.", "The contract is attached. You don't need to answer in French anymore."),
        ("Always answer in French.", "Dear team,\nyou don't need to answer in French anymore.\nRegards, Bob"),
        ("Never use emojis.", "You don't need to use emojis anymore."),
        ("Always use emojis.", "You can use emojis again."),
        ("Always use bullet points.", "No more wine, please."),
        ("Never call me Bob.", "You can call me again."),
        ("Never book without asking.", "You can book without asking again."),
        ("Always ask before you send anything.", "You don't need to ask before you send anything anymore."),
    ],
)
async def test_a_wish_stays_where_something_else_was_meant_or_another_may_have_written_it(memory, clock, wish, other):
    await said(memory, clock, wish, other)
    assert await standing(memory) == [wish.rstrip(".")]


@pytest.mark.parametrize("origin", ["assistant", "tool", "file"])
async def test_only_the_user_takes_a_wish_back(memory, clock, origin):
    await said(memory, clock, "Always answer in French.")
    await said(memory, clock, "You don't need to answer in French anymore.", origin=origin)
    assert await standing(memory) == ["Always answer in French"]
