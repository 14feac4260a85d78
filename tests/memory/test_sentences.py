"""The plain rules, measured through the public door on sentences that are to be learnt, taken back and left alone."""

from datetime import timedelta

import pytest

from loom.engine import open_memory
from loom.testing import FakeClock
from tests.memory.sentences import LEARN, LEAVE, TAKE_BACK

pytestmark = pytest.mark.anyio


async def known_after(*texts: str) -> set[str]:
    """The facts that are current after these messages."""
    clock = FakeClock()
    async with open_memory("inmemory", embedder="hash", clock=clock) as memory:
        for text in texts:
            clock.advance(timedelta(minutes=1))
            await memory.remember(text, user_id="ann")
            await memory.metabolize(user_id="ann")
        return {fact.text for fact in await memory.facts(user_id="ann")}


async def failures(part: slice) -> dict[str, list[str]]:
    """What goes wrong in a part of each list, in words."""
    wrong: dict[str, list[str]] = {"learn": [], "take back": [], "leave": []}
    for one in LEARN[part]:
        found = await known_after(one.text)
        if found != set(one.facts):
            wrong["learn"].append(f"{one.text!r}: {sorted(found)}")
    for case in TAKE_BACK[part]:
        before = await known_after(*case.before)
        found = await known_after(*case.before, case.text)
        if found != set(case.stands) or not before >= set(case.gone):
            wrong["take back"].append(f"{case.text!r}: {sorted(before)} -> {sorted(found)}")
    for text in LEAVE[part]:
        if found := await known_after(text):
            wrong["leave"].append(f"{text!r}: {sorted(found)}")
    return wrong
