from datetime import UTC, datetime, timedelta, timezone

import pytest

from loom.text.time_words import TimeHint, time_hint

NOW = datetime(2023, 6, 14, 15, 30, tzinfo=UTC)  # a Wednesday


def day(text):
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("What did I do yesterday?", "2023-06-13", "2023-06-14"),
        ("what was it the day before yesterday", "2023-06-12", "2023-06-13"),
        ("What is due today?", "2023-06-14", "2023-06-15"),
        ("Where were we last week?", "2023-06-05", "2023-06-12"),
        ("plans for this week", "2023-06-12", "2023-06-19"),
        ("last weekend", "2023-06-09", "2023-06-12"),
        ("this weekend", "2023-06-16", "2023-06-19"),
        ("last month", "2023-05-01", "2023-06-01"),
        ("last year", "2022-01-01", "2023-01-01"),
        ("What happened in May 2023?", "2023-05-01", "2023-06-01"),
        ("who came on 16 August, 2022", "2022-08-16", "2022-08-17"),
        ("who came on August 16th 2022", "2022-08-16", "2022-08-17"),
        ("who came on 2022-08-16", "2022-08-16", "2022-08-17"),
        ("in december", "2022-12-01", "2023-01-01"),
        ("the 3rd of May", "2023-05-03", "2023-05-04"),
        ("on 20 July", "2022-07-20", "2022-07-21"),
        ("In 2021, what did we buy?", "2021-01-01", "2022-01-01"),
        ("three days ago", "2023-06-11", "2023-06-12"),
        ("in the last 3 days", "2023-06-11", "2023-06-15"),
        ("last summer", "2022-06-01", "2022-09-01"),
        ("in the winter of 2021", "2021-12-01", "2022-03-01"),
        ("what did she say on Friday", "2023-06-09", "2023-06-10"),
        ("what did she say last Wednesday", "2023-06-07", "2023-06-08"),
        ("the Sunday before October 25, 2022", "2022-10-23", "2022-10-24"),
        ("the week before 9 June 2023", "2023-06-02", "2023-06-09"),
        ("what did he do recently?", "2023-05-15", "2023-06-15"),
    ],
)
def test_a_named_time_is_an_interval_to_prefer(question, start, end):
    hint = time_hint(question, NOW)
    assert (hint.start, hint.end, hint.strict) == (day(start), day(end), False)


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("before June", None, "2023-06-01"),
        ("what had I read before 3 May 2022?", None, "2022-05-03"),
        ("after May 3rd", "2023-05-04", None),
        ("since 2021", "2021-01-01", None),
        ("until last week", None, "2023-06-12"),
        ("between March and May", "2023-03-01", "2023-06-01"),
        ("between November and February", "2022-11-01", "2023-03-01"),
        ("from 3 May to 2 July 2022", "2022-05-03", "2022-07-03"),
    ],
)
def test_a_limit_is_strict(question, start, end):
    hint = time_hint(question, NOW)
    assert (hint.start, hint.end, hint.strict) == (day(start), day(end), True)


@pytest.mark.parametrize(
    "question",
    [
        "",
        "May I ask what he said?",
        "the march to the sea",
        "room 2021",
        "a second chance",
        "1984",
        "my phone has been slow lately",
        "which lens did I buy most recently?",
    ],
)
def test_words_that_only_look_like_a_time_say_nothing(question):
    assert time_hint(question, NOW) is None


def test_a_day_that_does_not_exist_leaves_its_month():
    hint = time_hint("31 February 2023", NOW)
    assert (hint.start, hint.end) == (day("2023-02-01"), day("2023-03-01"))


def test_weeks_ago_is_about_then():
    hint = time_hint("two weeks ago", NOW)
    assert (hint.start, hint.end) == (datetime(2023, 5, 27, 12, tzinfo=UTC), datetime(2023, 6, 4, 12, tzinfo=UTC))
    assert hint.span == timedelta(days=8)


def test_days_are_those_of_the_time_zone_of_now():
    east = timezone(timedelta(hours=9))
    hint = time_hint("yesterday", datetime(2023, 6, 14, 1, tzinfo=east))
    assert hint.start == datetime(2023, 6, 13, tzinfo=east)


def test_distance_is_zero_inside_and_grows_on_either_side():
    hint = TimeHint(day("2023-05-01"), day("2023-06-01"), False, "may")
    assert hint.distance(day("2023-05-31")) == timedelta(0)
    assert hint.distance(day("2023-04-29")) == timedelta(days=2)
    assert hint.distance(day("2023-06-04")) == timedelta(days=3)
    assert TimeHint(None, day("2023-06-01"), True, "before june").distance(day("1990-01-01")) == timedelta(0)
