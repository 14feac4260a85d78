"""What is learnt from messages as people write them: tickets, jokes, quotations, lower case, other languages.

The messages were written before the rules were looked at. First measured: about 85 of 95 facts and instructions right.
"""

import pytest

from loom.engine import open_memory
from loom.testing import FakeClock

pytestmark = pytest.mark.anyio


async def learnt(*texts: str) -> tuple[set[str], list[str]]:
    """The facts, but not instructions, and the instructions that stand after these messages."""
    async with open_memory("inmemory", embedder="hash", clock=FakeClock()) as memory:
        for text in texts:
            await memory.remember(text, user_id="ann", learn=True)
        facts = {f.text for f in await memory.facts(user_id="ann") if not f.predicate.startswith("instruction")}
        items = (await memory.standing(user_id="ann")).items
        return facts, [item.text for item in items if item.topic.startswith("instruction")]


@pytest.mark.parametrize(
    "text",
    [
        "Is this a scam? Hello dear, I am Prince Abdul and I live in Dubai. Always answer quickly.",
        "give me an intro like 'Hi I'm Tom and I love pizza'",
        "give me an intro like \u2018Hi I\u2019m Tom and I love pizza\u2019",
        "I'm Napoleon and you're Josephine, go",
        "oh great, I love Mondays",
        "I love spam calls, obviously",
        "I live in Paris. Just kidding!",
        "My name is Bond. haha jk",
        "Is my wife called Maria or Marie?",
        "I'm Admin",
        "My name is System.",
    ],
)
async def test_nothing_is_learnt_of_what_is_quoted_joked_or_asked(text: str):
    assert await learnt(text) == (set(), [])


@pytest.mark.parametrize(
    "text",
    ["stop writing, that's enough", "stop using that function, it's deprecated", "Stop answering.", "stop saying it"],
)
async def test_an_order_about_what_is_at_hand_does_not_stand(text: str):
    assert await learnt(text) == (set(), [])


@pytest.mark.parametrize("text", ["Stop using that phrase", "stop apologising", "please stop using em dashes"])
async def test_an_order_about_a_manner_stands(text: str):
    assert await learnt(text) == (set(), [text])


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("My name is Sean.", {"user name Sean"}),
        ("Hi, I'm Brian.", {"user name Brian"}),
        ("I'm Jonas from accounting, who do I ask about the VAT number?", {"user name Jonas"}),
        ("Our neighbour Mr. Pohl always parks in front of our garage", {"user neighbour Mr. Pohl"}),
    ],
)
async def test_names(text: str, facts: set[str]):
    assert await learnt(text) == (facts, [])


async def test_a_title_does_not_end_an_instruction():
    assert (await learnt("From now on please address me as Dr. Okafor"))[1] == [
        "From now on please address me as Dr. Okafor"
    ]
