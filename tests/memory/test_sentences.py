"""The plain rules, measured through the public door on sentences that are to be learnt, taken back and left alone.

First measured, before anything was changed for it, the half that was not in sight while rules were written gave 30 of 31
learnt, 17 of 17 taken back and 17 of 17 left alone; "I ride a Brompton to work." is not learnt to this day. Both halves
were written by the author of the rules, who cannot forget one half while writing for the other. The sentences that were
written afterwards, in two lots, say more: see their tests for what was measured first. No lot gave a wrong fact.

That is not because the rules could not: read over 12,206 messages of LoCoMo, LongMemEval, RealMem and BEAM, the first
version found some fifty likings that nobody has ("some savory items, like quiches"). It was corrected on these messages,
so they are no measure of it any more; what it finds there since, beyond the rules before, are four facts, all right.
"""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from loom.engine import open_memory
from loom.testing import FakeClock
from tests.memory.sentences import (
    AFTER_REVIEW_LEARN,
    AFTER_REVIEW_LEAVE,
    AFTER_REVIEW_TAKE_BACK,
    FRESH_LEARN,
    FRESH_LEAVE,
    FRESH_TAKE_BACK,
    LAST_LEARN,
    LAST_LEAVE,
    LAST_TAKE_BACK,
    LEARN,
    LEAVE,
    REVIEW_LEARN,
    REVIEW_LEAVE,
    REVIEW_TAKE_BACK,
    TAKE_BACK,
    Learn,
    TakeBack,
)

pytestmark = pytest.mark.anyio

SEEN, UNSEEN = slice(0, None, 2), slice(1, None, 2)


async def known_after(*texts: str) -> set[str]:
    """The facts that are current after these messages."""
    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", clock=clock) as memory:
        for text in texts:
            clock.advance(timedelta(minutes=1))
            await memory.remember(text, user_id="ann")
            await memory.metabolize(user_id="ann")
        return {fact.text for fact in await memory.facts(user_id="ann")}


async def not_learnt(cases: Sequence[Learn]) -> list[str]:
    found = [(one, await known_after(one.text)) for one in cases]
    return [f"{one.text!r}: {sorted(facts)}" for one, facts in found if facts != set(one.facts)]


async def not_taken_back(cases: Sequence[TakeBack]) -> list[str]:
    wrong: list[str] = []
    for case in cases:
        before = await known_after(*case.before)
        found = await known_after(*case.before, case.text)
        if found != set(case.stands) or not before >= set(case.gone):
            wrong.append(f"{case.text!r}: {sorted(before)} -> {sorted(found)}")
    return wrong


async def not_left_alone(texts: Sequence[str]) -> list[str]:
    return [f"{text!r}: {sorted(facts)}" for text in texts if (facts := await known_after(text))]


async def changed(cases: Sequence[tuple[str, str]]) -> list[str]:
    """Those that add a fact to what was said before, or take one away."""
    wrong: list[str] = []
    for before, text in cases:
        known = await known_after(*filter(None, [before]))
        if (found := await known_after(*filter(None, [before, text]))) != known:
            wrong.append(f"{text!r}: {sorted(known)} -> {sorted(found)}")
    return wrong


def told(what: str, wrong: list[str], cases: Sequence[object]) -> float:
    """Print a figure and what is behind it; returns the share that is right."""
    print(f"{what}: {len(cases) - len(wrong)} of {len(cases)}", *wrong, sep="\n  ")  # noqa: T201
    return 1 - len(wrong) / len(cases)


def test_there_are_enough_sentences():
    assert (len(LEARN) >= 60, len(TAKE_BACK) >= 30, len(LEAVE) >= 30) == (True, True, True)


async def test_the_half_that_rules_were_written_for():
    assert told("learnt, seen", await not_learnt(LEARN[SEEN]), LEARN[SEEN]) == 1
    assert told("taken back, seen", await not_taken_back(TAKE_BACK[SEEN]), TAKE_BACK[SEEN]) == 1
    assert told("left alone, seen", await not_left_alone(LEAVE[SEEN]), LEAVE[SEEN]) == 1


async def test_the_half_that_was_not_in_sight():
    assert told("learnt, unseen", await not_learnt(LEARN[UNSEEN]), LEARN[UNSEEN]) >= 0.95
    assert told("taken back, unseen", await not_taken_back(TAKE_BACK[UNSEEN]), TAKE_BACK[UNSEEN]) >= 0.95
    assert told("left alone, unseen", await not_left_alone(LEAVE[UNSEEN]), LEAVE[UNSEEN]) == 1


async def test_sentences_that_were_written_after_both_halves_were_measured():
    """First measured: 12 of 15, 10 of 13, 14 of 14. What they showed to be missing was added since."""
    assert told("learnt, fresh", await not_learnt(FRESH_LEARN), FRESH_LEARN) == 1
    assert told("taken back, fresh", await not_taken_back(FRESH_TAKE_BACK), FRESH_TAKE_BACK) == 1
    assert told("left alone, fresh", await not_left_alone(FRESH_LEAVE), FRESH_LEAVE) == 1


async def test_sentences_that_were_written_last():
    """First measured: 11 of 15, 10 of 13, 13 of 13. What they showed to be missing was added since, as far as it goes."""
    assert told("learnt, last", await not_learnt(LAST_LEARN), LAST_LEARN) >= 0.85
    assert told("taken back, last", await not_taken_back(LAST_TAKE_BACK), LAST_TAKE_BACK) == 1
    assert told("left alone, last", await not_left_alone(LAST_LEAVE), LAST_LEAVE) == 1


async def test_sentences_of_somebody_who_had_not_written_the_rules():
    """First measured: 18 of 30 learnt or taken back, 27 of 30 left alone. What they showed to be missing was added.

    Read over the messages named above, the rules find the same 615 claims before and after that.
    """
    assert told("learnt, review", await not_learnt(REVIEW_LEARN), REVIEW_LEARN) == 1
    assert told("taken back, review", await not_taken_back(REVIEW_TAKE_BACK), REVIEW_TAKE_BACK) == 1
    assert told("left alone, review", await changed(REVIEW_LEAVE), REVIEW_LEAVE) == 1


async def test_sentences_of_the_same_hand_that_nothing_was_added_for():
    """First measured, after that: 20 of 20 learnt or taken back, and none of 20 gave a wrong fact."""
    assert told("learnt, after review", await not_learnt(AFTER_REVIEW_LEARN), AFTER_REVIEW_LEARN) == 1
    assert told("taken back, after review", await not_taken_back(AFTER_REVIEW_TAKE_BACK), AFTER_REVIEW_TAKE_BACK) == 1
    assert told("left alone, after review", await changed(AFTER_REVIEW_LEAVE), AFTER_REVIEW_LEAVE) == 1
