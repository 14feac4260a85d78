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


@pytest.mark.parametrize(
    "text",
    [
        "Antworte bitte immer auf Deutsch",
        "Bitte duze mich ab jetzt",
        "Réponds toujours en français s'il te plaît",
        "N'utilise jamais d'emojis",
        "Responde siempre en español por favor",
        "nunca uses emojis",
        "Antworte immer kurz",
        "Rispondi sempre in italiano",
        "Use sempre o sistema métrico",
        "Antwoord altijd in het Nederlands",
        "请一直用中文回答",
        "以后请叫我小王",
        "今后都用英语回答",
        "いつも日本語で答えてください",
    ],
)
async def test_an_instruction_in_another_language_stands(text: str):
    assert await learnt(text) == (set(), [text])


@pytest.mark.parametrize(
    "text",
    [
        "Nie im Leben",
        "Immer das Gleiche mit euch",
        "Bitte schreib mir nie wieder",
        "Antworte heute immer auf Englisch",
        "jamais de la vie",
        "nunca he estado en Roma",
        "siempre lo mismo",
        "以后再说吧",
        "以后请用英文写\uff0c不用再问我",
        "これからは確認せずに書いてください",
        "Réponds toujours sans demander confirmation",
        "Escribe siempre con pasión",
        "Use sempre protetor solar, dizem os médicos",
        "Gib niemals auf!",
        "Usa siempre el cinturón",
        "Contesta siempre el teléfono",
        "以后请用公筷",
        "今后叫我起床",
        "必ずシートベルトを使ってください",
        "Appelle toujours avant de venir",
        "Er schrieb: Antworte immer auf Deutsch",
    ],
)
async def test_other_sentences_with_always_or_never_do_not_stand(text: str):
    assert await learnt(text) == (set(), [])


async def test_a_language_is_one_topic_in_every_language():
    texts = ("Antworte immer auf Deutsch", "Responde siempre en inglés", "Please always answer in Italian")
    assert (await learnt(*texts))[1] == [texts[2]]
    assert (await learnt(*texts[:2]))[1] == [texts[1]]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("hi im tom i live in leeds and i work as a plumber", {"user lives_in Leeds", "user works_as plumber"}),
        ("i live in porto with my boyfriend", {"user lives_in Porto", "user family boyfriend"}),
        ("my name is kate", {"user name Kate"}),
        ("I LIVE IN CHICAGO AND I AM ANGRY", {"user lives_in Chicago"}),
        ("i moved from berlin to hamburg like two weeks ago", {"user lives_in Hamburg"}),
        ("so um my name is uh Gregory and I I live in uh Phoenix", {"user name Gregory", "user lives_in Phoenix"}),
        ("i live in new york, my dog is called bruno", {"user lives_in New York", "user has_pet Bruno"}),
    ],
)
async def test_names_without_capitals(text: str, facts: set[str]):
    assert await learnt(text) == (facts, [])


@pytest.mark.parametrize(
    "text",
    [
        "i live in hope",
        "i live in leggings",
        "i live in a small town",
        "if i live in leeds do i pay council tax",
        "i don't live in leeds",
        "my name is spelled wrong",
        "my sister is called to the bar",
        "i work at night",
        "i moved to the couch",
        "i moved to gmail",
        "WHY IS MY ORDER LATE",
        "We all live in hope",
    ],
)
async def test_other_words_where_a_name_could_be(text: str):
    facts, _ = await learnt(text)
    assert not {fact for fact in facts if "family" not in fact}


@pytest.mark.parametrize(
    "text",
    [
        "Could you please always answer in French?",
        "can you from now on skip the greeting please?",
        "pls dont ever use bullet points when you talk to me",
        "I want you to answer in Italian from now on",
        "from now on only answer in French",
        "always reply in English even if I write in German",
    ],
)
async def test_a_lasting_wish_in_other_words_stands(text: str):
    assert await learnt(text) == (set(), [text])


@pytest.mark.parametrize(
    "text",
    [
        "Can you always answer in French?",
        "Would you always use TypeScript?",
        "can you please always use that function?",
        "can you please never ask me for confirmation?",
        "always reply in English if I write in German",
    ],
)
async def test_a_question_or_an_order_for_a_case_does_not_stand(text: str):
    assert await learnt(text) == (set(), [])


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("I'm a backend dev at a small fintech", {"user works_as backend dev"}),
        ("I work for a law firm as a paralegal", {"user works_as paralegal"}),
        ("I work in the same building as a doctor", set()),
        ("I'm the CEO of a small bakery chain", {"user works_as CEO"}),
        ("I'm the CEO of the month", set()),
        ("I'm 29 and pregnant", {"user age 29"}),
        ("I'm into bouldering lately", {"user likes bouldering"}),
        ("My name is actually Bob", {"user name Bob"}),
        ("I drive a hard bargain", set()),
        ("I'm Outside", set()),
        ("I'm Confused.", set()),
        ("I am celiac so nothing with wheat please", {"user has_condition celiac"}),
        ("I'm deaf to that kind of argument", set()),
        ("My shoe size is 39 and I have wide feet", {"user shoe_size 39"}),
        ("My home airport is Hamburg", {"user home_airport Hamburg"}),
        ("People call me Chip but my real name is Charles", {"user name Charles"}),
    ],
)
async def test_statements_about_oneself(text: str, facts: set[str]):
    assert (await learnt(text))[0] == facts
