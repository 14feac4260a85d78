"""Long records: the part that matches is found, returned and packed."""

import threading
from unicodedata import normalize

import pytest

from loom.engine import open_memory
from loom.text import passages
from loom.text.passages import PASSAGE, WHOLE, best_passage, chunks, most_together, stems_in
from loom.text.tokens import estimate_tokens
from loom.text.words import query_terms

pytestmark = pytest.mark.anyio

NEEDLE = "The combination of the safe is 31-07-19."
LOG = "".join(f"Job {n:05} ended after {n % 7} retries, disk at {n % 90} percent. " for n in range(2_000))


@pytest.fixture(params=["inmemory", "sqlite"])
def where(request, tmp_path):
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("budget", [None, 400])
async def test_a_needle_in_a_long_record_is_found_wherever_it_is(where, place, budget):
    assert len(LOG) > 100_000
    cut = LOG.rfind(". ", 0, int(place * len(LOG)) + 2) + 2 if place else 0
    async with open_memory(where, with_facts=False) as memory:
        await memory.remember(f"{LOG[:cut]}{NEEDLE} {LOG[cut:]}", user_id="u")
        for note in ("We painted the kitchen.", "The bus was late.", "Paul likes tennis."):
            await memory.remember(note, user_id="u")
        found = await memory.recall("What is the combination of the safe?", user_id="u", budget=budget)
    hit = found.hits[0]
    assert NEEDLE in hit.passage.text
    assert hit.item.text[hit.passage.start : hit.passage.end] == hit.passage.text
    assert NEEDLE in found.text
    assert found.tokens <= (budget or 2_000)
    assert len(hit.text) < 2 * PASSAGE


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize(
    "filler", ["The weather was mild and the garden quiet that day, once more. ", "Das Mädchen grüßt. "]
)
async def test_a_needle_is_found_in_a_text_of_nearly_a_million_characters(place, filler):
    before = int(place * 900_000) // len(filler)
    text = filler * before + f"{NEEDLE} " + filler * (900_000 // len(filler) - before)
    async with open_memory("inmemory", with_facts=False) as memory:
        await memory.remember(text, user_id="u")
        found = await memory.recall("What is the combination of the safe?", user_id="u")
    (hit,) = found.hits
    assert NEEDLE in hit.passage.text
    assert hit.item.text[hit.passage.start : hit.passage.end] == hit.passage.text
    assert not found.notes


@pytest.mark.parametrize("marks", ["\u0301", "\u20dd\u0301"])
async def test_a_long_text_of_nothing_but_accents_spoils_no_recall(where, marks):
    async with open_memory(where, with_facts=False) as memory:
        await memory.remember("I like tea.", user_id="u")
        await memory.remember(marks * (130_000 // len(marks)), user_id="u")
        found = await memory.recall("Who likes tea?", user_id="u")
    assert found.hits[0].item.text == "I like tea."


def test_a_passage_is_found_behind_letters_that_folding_makes_shorter():
    taken_apart = normalize("NFD", "\u1ebf \u1ed9 \u1eef \u1eb1 \u1ead ") * 20_000
    before = "plain words follow. " * 15_000
    for text in (f"{taken_apart}The ZEBRA stands. {before}", f"{before}The ZEBRA stands. {taken_apart}"):
        span = best_passage(text, ("zebra", "stand"))
        assert "ZEBRA stands" in text[span.start : span.end]
        assert most_together(text, ("zebra", "stand")) == 2


def test_a_word_is_found_wherever_a_long_text_is_cut_to_be_folded():
    for before in range(PASSAGE - 12, PASSAGE + 2):
        text = "\u00e4 " * 100_000 + "x" * before + " zebra " + "\u00e4 " * 100_000
        span = best_passage(text, ("zebra",))
        assert "zebra" in text[span.start : span.end]


@pytest.mark.parametrize("question", ["Where does the M\u00e4dchen stay?", "The M\u00e4dchen stays in Bergen."])
async def test_a_long_text_is_not_folded_on_the_event_loop(where, question, monkeypatch):
    here, read = threading.get_ident(), list[int]()
    folded = passages.folded

    def counted(text):
        read.extend([len(text)] if threading.get_ident() == here else [])
        return folded(text)

    async with open_memory(where, with_facts=False) as memory:
        await memory.remember("Das M\u00e4dchen gr\u00fc\u00dft. " * 5_000, user_id="u")
        await memory.remember("The tea is hot.", user_id="u")
        monkeypatch.setattr(passages, "folded", counted)
        found = await memory.recall(question, user_id="u")
    assert found.hits[0].passage is not None
    assert sum(read) < 20_000


async def test_what_does_not_fit_is_said(where):
    async with open_memory(where, with_facts=False) as memory:
        await memory.remember(
            f"{NEEDLE} " + "It is written on a card in the third drawer of the desk. " * 8, user_id="u"
        )
        await memory.remember("The safe is old.", user_id="u")
        found = await memory.recall("What is the combination of the safe?", user_id="u", budget=20)
    assert [hit.item.text for hit in found] == ["The safe is old."]
    assert found.notes == ("1 of the best hits did not fit into 20 tokens",)


async def test_a_short_record_is_returned_whole(where):
    async with open_memory(where, with_facts=False) as memory:
        await memory.remember(NEEDLE, user_id="u")
        (hit,) = await memory.recall("safe", user_id="u")
    assert hit.passage is None
    assert hit.text == NEEDLE


async def test_a_session_shows_the_part_of_a_long_answer_that_matches(where):
    answer = "Many things matter for a garden. " * 40 + "Water the basil twice a day. " + "Soil matters too. " * 40
    async with open_memory(where, with_facts=False) as memory:
        turns = [{"role": "user", "content": "How do I care for my herbs?"}, {"role": "assistant", "content": answer}]
        await memory.remember(turns, user_id="u", session_id="s")
        found = await memory.recall("how often to water basil", user_id="u", budget=300)
    assert "Water the basil twice a day." in found.text
    assert found.tokens == int(sum(estimate_tokens(hit.text) for hit in found)) <= 300


def test_a_passage_is_the_one_with_the_rarest_of_the_words_asked_for():
    text = "The garden is large. " * 40 + "In the garden grows one basil. " + "The garden is green. " * 40
    span = best_passage(text, query_terms("Is there basil in the garden?"))
    assert "basil" in text[span.start : span.end]
    assert best_passage("x" * WHOLE, ("x",)) is None
    assert best_passage("word " * 200, ()) == chunks("word " * 200, size=PASSAGE, overlap=0)[0]
    assert best_passage(" " * 300_000, ("word",)) == (0, PASSAGE)


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("She was happy about the studies.", "happiness study", {"happi", "studi"}),
        ("category", "cat", {"cat"}),
        ("educate", "cat", set()),
        ("\u6211\u53bb\u5317\u4eac\u65c5\u6e38\u4e86", "\u5317\u4eac", {"\u5317\u4eac"}),
        ("anything", "", set()),
    ],
)
def test_stems_are_found_at_the_beginning_of_words(text, question, expected):
    assert stems_in(text, query_terms(question)) == expected


def test_words_count_together_only_within_a_passage():
    near, far = "The safe has a combination. ", "x " * PASSAGE
    wanted = query_terms("combination of the safe")
    assert most_together(f"safe {far} combination {far}", wanted) == 1
    assert most_together(f"safe {far}{near}{far}", wanted) == 2
    assert most_together("the safe", wanted) == 1
    assert most_together(far, wanted) == 0
