"""What comes after the ranking: the newer of two statements first."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom import open_memory
from loom.core.record import Episode, Provenance
from loom.memory._recall.rank import FAR, FIRST, TOP, Ranked, newest_first, role_of
from loom.memory._shared import POSITION
from loom.protocols.memory_store import HitColumns

AT = datetime(2026, 1, 1, tzinfo=UTC)
WORK = "Lena works as a nurse at the clinic in Graz"


def said(id, text, *, days=0, speaker=None, **fields):
    at = AT + timedelta(days=days)
    return Episode(
        id=id, text=text, at=at, recorded_at=at, provenance=Provenance("user"), speaker=speaker, **fields
    )  # fmt: skip


def by_question(question):
    def by(ranked, records):
        found = [*records.values()]
        places = {record.id: place for place, record in enumerate(found)}
        return newest_first(question, ranked, HitColumns.of(found, {}, found.__getitem__), places)

    return by


by_age = by_question("Where does Lena work?")


def ordered(*pairs, by=by_age):
    records = {record.id: record for record, _ in pairs}
    ranked = sorted((Ranked(record.id, score) for record, score in pairs), key=lambda r: (-r.score, r.id))
    return [r.id for r in by(ranked, records)]


def test_the_newer_of_two_like_statements_is_lifted_just_above():
    old, new = said("old", f"{WORK}."), said("new", f"{WORK} no more, but in Linz.", days=1)
    other = said("other", "Graz has a clinic.", days=2)
    assert ordered((old, 3.0), (other, 2.0), (new, 1.0)) == ["new", "old", "other"]
    (first, *_) = by_age(
        [Ranked("old", 3.0, {"bm25": 3.0}), Ranked("new", 1.0, {"bm25": 1.0})], {"old": old, "new": new}
    )
    assert first.score == sum(first.why.values())


def test_no_text_is_held_when_it_is_gone():
    class Text(str):
        """A text that tells when it is let go of."""

        __slots__ = ("__weakref__",)

    text = Text(WORK)
    is_held = ref(text)
    ordered((said("old", text), 2.0), (said("new", f"{WORK} now", days=1), 1.0))
    del text
    assert is_held() is None


def test_at_one_instant_the_order_of_arrival_decides():
    assert ordered((said("1", WORK), 2.0), (said("2", f"{WORK} now"), 1.0)) == ["2", "1"]


def test_other_speakers_questions_and_summaries_change_nothing():
    old = said("old", WORK, speaker="Ann")
    for later in (
        said("new", WORK, days=1, speaker="Bob"),
        said("new", f"{WORK}?", days=1, speaker="Ann"),
        said("new", WORK, days=1, speaker="Ann", sources=("old",)),
        said("new", "Lena works", days=1, speaker="Ann"),
    ):
        assert ordered((old, 2.0), (later, 1.0)) == ["old", "new"]


def test_what_lacks_a_name_or_a_number_that_is_asked_for_is_of_another():
    def first(question, *texts):
        told = [(said(f"{n:02}", text, days=n), 3.0 - n) for n, text in enumerate(texts)]
        return ordered(*told, by=by_question(question))[0]

    phones = ("The phone number of Anna is 555-0100.", "The phone number of Ben is 555-0101.")
    assert first("What is the phone number of Anna?", *phones) == "00"
    assert first("what is the phone number of anna?", *phones) == "00"
    assert first("Which phone number is it?", *phones) == "01"
    tickets = ("Ticket 4003: login is broken again.", "Ticket 4004: login is broken again.")
    assert first("What about ticket 4003?", *tickets) == "00"


def test_lines_of_a_log_are_not_alike_for_the_date_they_begin_with():
    signed = said("00", "2026-02-11: Chloe and I signed the loan at the bank")
    paid = said("01", "2026-02-14: paid the tax, asked about the loan", days=3)
    assert ordered((signed, 3.0), (paid, 2.0)) == ["00", "01"]
    again = said("02", "2026-03-10: Chloe signed the second loan at the bank", days=27)
    assert ordered((signed, 3.0), (again, 2.0)) == ["02", "00"]


def test_the_output_of_a_tool_does_not_replace_what_the_user_said():
    asked = said("00", "the tests in login.tsx fail since Monday")
    printed = replace(said("01", "login.tsx: 381 tests passed, 3 fail", days=1), provenance=Provenance("tool"))
    assert ordered((asked, 3.0), (printed, 2.0)) == ["00", "01"]
    assert ordered((asked, 3.0), (replace(printed, provenance=asked.provenance), 2.0)) == ["01", "00"]


def test_a_newer_hit_that_answers_far_less_stays_behind():
    old, new = said("old", WORK), said("new", f"{WORK} now", days=1)
    assert ordered((old, 1.0 + FAR), (new, 1.0)) == ["new", "old"]
    assert ordered((old, 1.1 + FAR), (new, 1.0)) == ["old", "new"]


def test_a_hit_far_behind_stays_there():
    many = [(said(f"x{n}", f"word{n}"), 9.0) for n in range(TOP)]
    assert ordered((said("old", WORK), 10.0), *many, (said("new", WORK, days=1), 1.0))[-1] == "new"


def turn(id, position, speaker, **fields):
    return said(id, f"turn {id}", speaker=speaker, session_id="s", attributes={POSITION: position}, **fields)


def message(id, text, *, days=0, speaker="user"):
    return said(id, text, days=days, speaker=speaker, session_id="s")


PACE = "What is my best time over five kilometers?"
OLD = "Thanks! My best time over five kilometers is 27 minutes. Can you suggest a plan?"
NEW = "I ran again. It went well: five kilometers in 25 minutes, my best so far. What should I eat?"


def test_the_later_of_two_messages_that_answer_comes_first():
    old, other, new = message("old", OLD), message("other", "I like to run."), message("new", NEW, days=1)
    assert ordered((old, 3.0), (other, 2.0), (new, 1.0), by=by_question(PACE)) == ["new", "old", "other"]


def test_a_later_message_that_only_asks_or_says_little_of_it_stays_behind():
    old = message("old", OLD)
    for text in ("What is my best time over five kilometers? I forgot.", "My time is short.", "Five times a week."):
        assert ordered((old, 2.0), (message("new", text, days=1), 1.0), by=by_question(PACE))[0] == "old"


@pytest.mark.parametrize(
    ("question", "right", "later"),
    [
        ("アレルギーや花粉症はありますか?", "花粉症があります。", "鍵は玄関マットの下にあります。"),
        ("我的车是什么颜色的?", "我的车是红色的 颜色很亮。", "我的车是旧的。"),
        (
            "¿Cuál es la contraseña del portátil viejo?",
            "La contraseña del portátil viejo es girasol-99.",
            "La contraseña del router es luna-12.",
        ),
        (
            "Wie ist das passwort von dem alten rechner?",
            "Das passwort von dem alten rechner ist rose7.",
            "Das passwort von dem router ist mond3.",
        ),
    ],
)
def test_in_other_languages_a_message_is_not_lifted_for_its_grammar(question, right, later):
    old, new = said("old", right, speaker="user"), said("new", later, days=1, speaker="user")
    assert ordered((old, 3.0), (new, 1.0), by=by_question(question)) == ["old", "new"]


def test_in_chinese_the_later_of_two_messages_comes_first():
    old, new = (
        said("old", "我的车是大众。", speaker="user"),
        said("new", "我的车是丰田。", days=1, speaker="user"),
    )
    assert ordered((old, 3.0), (new, 1.0), by=by_question("我的车是什么牌子?")) == ["new", "old"]


def test_a_question_for_several_things_keeps_all_places():
    old, new = message("old", OLD), message("new", NEW, days=1)
    question = "List all my best times over five kilometers"
    assert ordered((old, 2.0), (new, 1.0), by=by_question(question)) == ["old", "new"]


def test_answers_of_the_assistant_and_messages_far_behind_keep_their_places():
    old, new = message("old", OLD), message("new", NEW, days=1, speaker="assistant")
    assert ordered((old, 2.0), (new, 1.0), by=by_question(PACE)) == ["old", "new"]
    many = [(message(f"x{n}", "Nothing of it."), 2.0) for n in range(FIRST)]
    assert ordered((old, 3.0), *many, (message("new", NEW, days=1), 1.0), by=by_question(PACE))[-1] == "new"


def test_a_role_is_told_by_the_speaker_or_else_by_the_origin():
    assert role_of(said("a", "x", speaker="User")) == "user"
    assert role_of(said("a", "x", speaker="Ann")) is None
    assert role_of(replace(said("a", "x"), provenance=Provenance("assistant"))) == "assistant"
    assert role_of(replace(said("a", "x"), provenance=Provenance("file"))) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["a b c d", "a b c e", "x y z"]), st.integers(0, 3), st.floats(-5, 5), st.booleans()),
        max_size=12,
    )
)
def test_nothing_is_lost_or_doubled_and_scores_fall(rows):
    pairs = [
        (replace(turn(f"{n:02}", n, "user" if is_user else "assistant"), text=text, at=AT + timedelta(days=day)), score)
        for n, (text, day, score, is_user) in enumerate(rows)
    ]
    records = {record.id: record for record, _ in pairs}
    ranked = sorted((Ranked(record.id, score) for record, score in pairs), key=lambda r: (-r.score, r.id))
    newest = by_age(ranked, records)
    assert [r.score for r in newest] == sorted((r.score for r in newest), reverse=True)
    assert sorted(r.id for r in newest) == sorted(records)


@pytest.mark.anyio
@pytest.mark.parametrize("speaker", [None, "user", "Lena"])
@pytest.mark.parametrize(
    ("question", "right", "later"),
    [
        (
            "How many mg is the morning pill?",
            "My morning pill is 5 mg and goes with food.",
            "My evening pill is 20 mg and goes with food.",
        ),
        (
            "What is in the red folder?",
            "The red folder has the tax papers of last year.",
            "The blue folder has the insurance papers of last year.",
        ),
        (
            "Where is the kettle?",
            "The kettle is in the attic of house 6.",
            "The violin is in the attic of house 6.",
        ),
    ],
)
async def test_the_same_said_later_of_another_thing_does_not_come_first(question, right, later, speaker):
    async with open_memory("inmemory", facts=None) as memory:
        for text in (right, later):
            await memory.remember({"role": "user", "content": text, "name": speaker} if speaker else text, user_id="a")
        found = await memory.recall(question, user_id="a")
        assert found.hits[0].text == right
