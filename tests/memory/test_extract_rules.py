import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from loom.core.record import Episode, Provenance
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.phrases import LazyPattern
from loom.memory._write.statements import MENTIONED, MENTIONS
from loom.protocols.extractor import Extractor
from tests.memory import sentences

AT = datetime(2026, 1, 14, 12, tzinfo=UTC)
pytestmark = pytest.mark.anyio


def said(text: str, origin="user", speaker=None, id="e1") -> Episode:
    return Episode(id=id, text=text, at=AT, recorded_at=AT, provenance=Provenance(origin), speaker=speaker)


async def found(text: str, **changes) -> set[str]:
    result = await RuleExtractor().extract([said(text, **changes)])
    return {
        f"{c.subject} {c.predicate} {c.object}{' (over)' if c.valid_from is None else ''}"
        for c in result.claims
        if not c.retracts
    }


POSITIVE = {
    "Remember that I want you to always answer in French.": {
        "user instruction Remember that I want you to always answer in French"
    },
    "From now on, always answer in German.": {"user instruction From now on, always answer in German"},
    "In future, please never call me sir.": {"user instruction In future, please never call me sir"},
    "Starting today, please keep every reply under fifty words.": {
        "user instruction Starting today, please keep every reply under fifty words"
    },
    "Going forward, always include sources, and never use footnotes.": {
        "user instruction Going forward, always include sources",
        "user instruction never use footnotes",
    },
    "Whenever I ask for code, add type hints.": {"user instruction Whenever I ask for code, add type hints"},
    "When you cite a study, include the year.": {"user instruction When you cite a study, include the year"},
    "I'm allergic to strawberries, cats and latex.": {
        "user allergic_to strawberries",
        "user allergic_to cats",
        "user allergic_to latex",
    },
    "I prefer an aisle seat on long flights, so is 14C free?": {"user prefers aisle seat on long flights"},
    "My name is Alice.": {"user name Alice"},
    "Hi, I'm Bob.": {"user name Bob"},
    "Call me Jo": {"user name Jo"},
    "Hi, I'm Alice and I live in Tokyo.": {"user name Alice", "user lives_in Tokyo"},
    "I live in New York City.": {"user lives_in New York City"},
    "I live in Portland, Oregon.": {"user lives_in Portland, Oregon"},
    "I'm based in Berlin these days": {"user lives_in Berlin"},
    "I am currently living in São Paulo.": {"user lives_in São Paulo"},
    "I moved to Osaka last month.": {"user lives_in Osaka"},
    "I've just moved from Tokyo to Osaka": {"user lives_in Osaka"},
    "I used to live in Paris.": {"user lives_in Paris (over)"},
    "I no longer live in Rome": {"user lives_in Rome (over)"},
    "I work at Acme.": {"user works_at Acme"},
    "I now work for Globex Corporation.": {"user works_at Globex Corporation"},
    "I joined Initech in March 2024.": {"user works_at Initech"},
    "I no longer work at Acme.": {"user works_at Acme (over)"},
    "I quit my job at Acme": {"user works_at Acme (over)"},
    "I work as a nurse.": {"user works_as nurse"},
    "I'm a software engineer": {"user works_as software engineer"},
    "I'm a data scientist at Hooli.": {"user works_as data scientist", "user works_at Hooli"},
    "I used to be a teacher.": {"user works_as teacher (over)"},
    "I'm 34 years old.": {"user age 34"},
    "I just turned 40 yesterday": {"user age 40"},
    "My birthday is 12 May.": {"user birthday 12 May"},
    "I was born on 3 June 1990": {"user birthday 3 June 1990"},
    "I was born in Lisbon.": {"user born_in Lisbon"},
    "I'm vegan.": {"user diet vegan"},
    "I am a vegetarian now": {"user diet vegetarian"},
    "I'm no longer vegan.": {"user diet vegan (over)"},
    "I'm allergic to peanuts and shellfish.": {"user allergic_to peanuts", "user allergic_to shellfish"},
    "I have a nut allergy": {"user allergic_to nut"},
    "I speak English, French and Korean.": {"user speaks English", "user speaks French", "user speaks Korean"},
    "I love jazz.": {"user likes jazz"},
    "I'm a big fan of jazz.": {"user likes jazz"},
    "My sister is great.": {"user family sister"},
    "I really enjoy hiking and chess": {"user likes hiking", "user likes chess"},
    "I no longer like coffee.": {"user likes coffee (over)"},
    "I hate olives": {"user dislikes olives"},
    "I don't like horror films.": {"user dislikes horror films"},
    "I prefer tea over coffee": {"user prefers tea over coffee"},
    "My favourite colour is green.": {"user favourite_colour green"},
    "My favorite band is Radiohead": {"user favourite_band Radiohead"},
    "My sister's name is Anna.": {"user sister Anna"},
    "I have a brother called Tom": {"user brother Tom"},
    "My sister Anna lives in Rome.": {"user sister Anna", "Anna lives_in Rome"},
    "My wife Maria is a doctor": {"user married_to Maria", "Maria works_as doctor"},
    "I'm married to Sam.": {"user married_to Sam"},
    "I have a dog named Rex.": {"user has_pet Rex"},
    "My cat is called Miso": {"user has_pet Miso"},
    "I have a rabbit.": {"user has_pet rabbit"},
    "I own a canoe": {"user owns canoe"},
    "I bought a cargo bike last week.": {"user owns cargo bike"},
    "I now drive a Tesla": {"user drives Tesla"},
    "I'm flying to Japan on 12 May 2027.": {"user plans flying to Japan on 12 May 2027"},
    "I'm visiting Rome next month": {"user plans visiting Rome next month"},
    "Remember that I live in Oslo": {"user lives_in Oslo"},
    "i live in Berlin and i work at Acme": {"user lives_in Berlin", "user works_at Acme"},
    "Always answer in French, and never call me before 9.": {
        "user instruction Always answer in French",
        "user instruction never call me before 9",
    },
    "Please don't ever email me about offers!": {"user instruction Please don't ever email me about offers"},
    "From now on, call me Jo.": {"user instruction From now on, call me Jo"},
    "Answer me in French from now on": {"user instruction Answer me in French from now on"},
    "don't use emojis anymore": {"user instruction don't use emojis anymore"},
    "Stop calling me after 8 pm.": {"user instruction Stop calling me after 8 pm"},
    "I want you to always be brief": {"user instruction I want you to always be brief"},
    "I'm vegan. Always suggest recipes without meat": {
        "user diet vegan",
        "user instruction Always suggest recipes without meat",
    },
    # Beyond these rules: they count against recall, and must not be read wrongly.
    "i live in berlin": {"user lives_in Berlin"},
    "Berlin has been my home since 2019.": {"user lives_in Berlin"},
    "Acme hired me last year": {"user works_at Acme"},
}

NEGATIVE = [
    "Please always double-check this spreadsheet before you send it in an hour.",
    "Never send this report to Kowalski.",
    "For the rest of this session, always answer in French.",
    "Every time I send it, it bounces, add a retry please.",
    "Whenever you are ready, send me the draft.",
    "Whenever I start the server, print shows nothing.",
    "When I ask for the moon, give me the moon, she sang.",
    "I'm allergic to meetings.",
    "I am allergic to commitment.",
    "I prefer an aisle seat.",
    "I love Mondays, said no one ever.",
    "Let's say I earn 80k and live in Munich, how much tax do I pay?",
    "I dreamt that I lived in a castle with two lions.",
    "Speak as the dungeon master. My character owns a flaming sword and has a raven named Poe.",
    "Act as my barista. I'm a regular and I always take an oat flat white.",
    "Review this bio for me: I'm a photographer based in Lagos and I love street food.",
    "The customer says: my order number is 4711 and I live in Leeds.",
    "Do I live in Tokyo?",
    "Where do I live?",
    "If I lived in Rome I would be happy.",
    "If I live in Rome, I work at Acme.",
    "I wish I lived in Paris.",
    "Imagine I live in Oslo.",
    "Suppose I work at Acme.",
    "I don't live in Tokyo.",
    "I never lived in Rome",
    "I do not work at Acme.",
    "I'm not vegan.",
    "I am not allergic to nuts",
    "I might move to Berlin.",
    "I would love a dog.",
    "I'd like a coffee, please.",
    "Maybe I like jazz.",
    'She said "I live in Madrid".',
    "“I work at Acme” is what he wrote.",
    "He told me I live in a bubble.",
    "She lives in Rome.",
    "They work at Acme.",
    "Someone called Anna lives in Rome",
    "I live in fear.",
    "I live in a small flat.",
    "I live in the past.",
    "I work at home.",
    "I work for myself.",
    "I work at night",
    "I'm a bit tired.",
    "I'm a bit of a writer.",
    "I'm a former teacher.",
    "I'm a terrible cook",
    "I'm Sorry",
    "I'm French.",
    "I'm tired.",
    "I like it.",
    "I love you!",
    "I like that you asked.",
    "I like how this works.",
    "I like the second option.",
    "I love your answer.",
    "I like to think about it.",
    "I have a dog question.",
    "I have a question.",
    "I have a cat allergy test tomorrow at noon",
    "I dreamed I moved to Mars.",
    "In my novel, I live in Atlantis.",
    "Translate to French: I live in Rome.",
    "Please rewrite this. I work at Acme.",
    "You are a pirate. I live in Tortuga.",
    "> I live in Rome",
    "```\nI live in Rome\n```",
    "For example, I work at Acme.",
    "I thought I was allergic to nuts.",
    "I almost moved to Osaka.",
    "I want to move to Osaka.",
    "I'm thinking of moving to Osaka.",
    "I'm going to sleep next to the window.",
    "My favourite one is that.",
    "I turned left.",
    "I was born in a barn.",
    "I'm 20 minutes late.",
    "I speak from experience.",
    "I own a lot.",
    "I'm just kidding, I live in Narnia.",
    "Whether I work at Acme is unclear.",
    "I probably like jazz.",
    "Hello!",
    "👋",
    "Never mind.",
    "Never say never.",
    "Always a pleasure!",
    "I always answer in French.",
    "Always happy to help",
    "You should never drive drunk.",
    "Could you always answer in French?",
    "If I ask, always answer.",
    "We never use tabs here",
    "Always use protection, said the doctor",
    'The sign says "never call me".',
    "Translate: always answer in French.",
    "Use a table for this one.",
    "Always use tabs in this file",
    "Stop it!",
    "Stop asking me that.",
    "From now on I live in fear",
]


@pytest.mark.parametrize("text", NEGATIVE)
async def test_other_sentences_give_nothing(text: str):
    assert await found(text) == set()


async def test_recall_on_plain_statements():
    assert len(POSITIVE) + len(NEGATIVE) >= 80
    right = wanted = 0
    for text, claims in POSITIVE.items():
        got = await found(text)
        assert got <= claims, f"{text!r} was read as {got - claims}"
        right += len(got & claims)
        wanted += len(claims)
    print(f"rules: {len(POSITIVE)} positive, {len(NEGATIVE)} negative sentences, {right} of {wanted} claims found")  # noqa: T201
    assert right / wanted >= 0.95


@pytest.mark.parametrize(
    ("text", "origin", "speaker"),
    [
        ("I live in Rome.", "assistant", None),
        ("I live in Rome.", "assistant", "Claude"),
        ("I live in Rome.", "user", "assistant"),
        ("I live in Rome.", "web", None),
        ("I live in Rome.", "tool", None),
        ("I live in Rome.", "file", "Anna"),
        ("I live in Rome.", "derived", None),
    ],
)
async def test_only_people_speak_for_themselves(text, origin, speaker):
    assert await found(text, origin=origin, speaker=speaker) == set()


async def test_a_named_speaker_is_the_subject():
    assert await found("I live in Rome.", speaker="Caroline") == {"Caroline lives_in Rome"}
    assert await found("I live in Rome.", origin="import", speaker="User") == {"user lives_in Rome"}


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("I live in Rome.", AT, None),
        ("I live in Rome since 2019.", datetime(2019, 1, 1, tzinfo=UTC), None),
        ("I moved to Rome in May.", datetime(2025, 5, 1, tzinfo=UTC), None),
        ("I moved to Rome in May 2024", datetime(2024, 5, 1, tzinfo=UTC), None),
        ("I moved to Rome last month", datetime(2025, 12, 1, tzinfo=UTC), None),
        ("I moved to Rome last week", datetime(2026, 1, 5, tzinfo=UTC), None),
        ("I moved to Rome yesterday", datetime(2026, 1, 13, tzinfo=UTC), None),
        ("I moved to Rome two weeks ago", datetime(2025, 12, 31, tzinfo=UTC), None),
        ("I moved to Rome on 2025-03-04", datetime(2025, 3, 4, tzinfo=UTC), None),
        ("I used to live in Rome", None, AT),
        ("I no longer live in Rome since 2024", None, datetime(2024, 1, 1, tzinfo=UTC)),
        ("I'm visiting Rome tomorrow", AT, datetime(2026, 1, 16, tzinfo=UTC)),
        ("I'm visiting Rome next month", AT, datetime(2026, 3, 1, tzinfo=UTC)),
        ("I'm visiting Rome on Friday", AT, datetime(2026, 1, 17, tzinfo=UTC)),
        ("I'm flying to Rome on 12 May 2027", AT, datetime(2027, 5, 13, tzinfo=UTC)),
    ],
)
async def test_dates(text, start, end):
    [claim, *still] = (await RuleExtractor().extract([said(text)])).claims
    assert (claim.valid_from, claim.valid_until) == (start, end)
    assert still in ([], [replace(claim, valid_from=AT)])


@pytest.mark.parametrize(
    ("text", "still"),
    [
        ("I moved to Rome last week.", ["Rome"]),
        ("Since May I live in Rome.", ["Rome"]),
        ("Last month, I moved to Paris, and I moved to Rome yesterday.", ["Rome"]),
        ("I moved to Rome in May.", []),
        ("I moved to Rome two years ago.", []),
        ("I no longer live in Rome since last week.", []),
    ],
)
async def test_what_began_of_late_still_holds_when_it_is_said(text, still):
    claims = (await RuleExtractor().extract([said(text)])).claims
    assert [claim.object for claim in claims if claim.valid_from == AT] == still


async def test_a_picture_at_the_end_changes_nothing():
    assert await found("I live in Z\u00fcrich \U0001f3d4\ufe0f.") == {"user lives_in Z\u00fcrich"}


async def test_a_change_of_an_unknown_predicate_is_single():
    [before] = (await RuleExtractor().extract([said("I drive a Volvo")])).claims
    [after] = (await RuleExtractor().extract([said("I now drive a Tesla")])).claims
    assert (before.cardinality, after.cardinality) == ("inferred", "single")


async def test_it_is_an_extractor_and_cites_the_episode_that_says_it():
    assert isinstance(RuleExtractor(), Extractor)
    assert (await RuleExtractor().extract([])).claims == ()
    result = await RuleExtractor().extract([said("I love tea", id="a"), said("I live in Rome", id="b")])
    assert [(c.object, c.sources) for c in result.claims] == [("tea", ("a",)), ("Rome", ("b",))]


@pytest.mark.parametrize("piece", ["and tea ", "A ", "tea, ", "of the ", "I like ", "I live in A "])
async def test_hostile_text_takes_no_more_work_than_any_other(piece: str):
    for text in ("I like " + piece * 2_000, "I like " + (piece * 60)[:280], "I live in " + (piece * 60)[:270] + "!x"):
        plain = "I like tea and I live in a small house with my sister and our two dogs. " * (len(text) // 72 + 1)
        assert await work_of(text) < 10 * await work_of(plain[: len(text)])


async def work_of(text: str) -> float:
    """The processor time that a text takes in all threads; of several tries the one that others disturbed least."""
    times: list[float] = []
    for _ in range(5):
        begun = time.process_time()
        await found(text)
        times.append(time.process_time() - begun)
    return min(times)


OPENED = [pattern for pattern in LazyPattern.all if pattern.opening]


def test_a_pattern_matches_only_where_its_opening_does():
    assert len(OPENED) > 100
    texts = [one.text for name in ("LEARN", "TAKE_BACK") for one in getattr(sentences, name)]
    matched = 0
    for pattern in OPENED:
        assert pattern.source.startswith(pattern.opening)
        assert not has_open_choice(pattern.source), "a second choice would not begin with the opening"
        opening = re.compile(pattern.opening, pattern.flags)
        for text in (*texts, *POSITIVE):
            if whole := re.compile(pattern.source, pattern.flags).search(text):
                matched += 1
                assert opening.match(text, whole.start())
    assert matched > 50


def test_every_mention_holds_what_a_sentence_is_looked_through_for():
    words = MENTIONED.source.removeprefix("(?:").removesuffix(") ").split("|")
    for known in MENTIONS:
        opening = known.pattern.opening
        assert any(f"{word} " in opening or f"{word}) " in opening or " my " in opening for word in words), opening


def has_open_choice(source: str) -> bool:
    """Whether a pattern has a `|` outside of groups."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", "", source)
    while bare != (inner := re.sub(r"\([^()]*\)", "", bare)):
        bare = inner
    return "|" in bare


def test_only_the_patterns_that_may_match_are_compiled():
    script = (
        "import anyio; from datetime import UTC, datetime; from loom.core.record import Episode, Provenance;"
        "from loom.memory._write.extract_rules import RuleExtractor;"
        "from loom.memory._write.phrases import LazyPattern;"
        "at = datetime(2026, 1, 14, tzinfo=UTC);"
        "said = Episode(id='e', text='I live in Lisbon.', at=at, recorded_at=at, provenance=Provenance('user'));"
        "found = anyio.run(RuleExtractor().extract, [said]).claims;"
        "print([claim.object for claim in found], sum(one.is_compiled for one in LazyPattern.all))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    claimed, _, compiled = done.stdout.rpartition(" ")
    assert claimed == "['Lisbon']"
    assert int(compiled) < len(LazyPattern.all) / 2
