"""The forms in which other programs keep conversations."""

import json
from datetime import UTC, datetime
from itertools import count

import pytest

from loom.errors import UsageError
from loom.memory._upkeep.transcripts import parts_of
from loom.traces import exports
from loom.traces.reader import FORMS, TranscriptReader
from loom.traces.stream import JsonStream

ONE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes?"},
]
TWO = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def lines(*records):
    return "\n".join(map(json.dumps, records))


def read(text, size=7):
    """The conversations in a text that comes in small pieces."""
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return list(TranscriptReader().read(JsonStream(pieces), "talk.json"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (lines({"messages": ONE}, {"messages": TWO}), ["talk-0", "talk-1"]),
        (lines({"messages": ONE, "id": "a"}, {"messages": TWO, "session_id": "b", "id": "c"}), ["a", "b"]),
        (json.dumps([{"messages": ONE}, {"messages": TWO}], indent=2), ["talk-0", "talk-1"]),
    ],
    ids=["lines", "named", "array"],
)
def test_conversations_as_lists_of_messages(text, names):
    found = read(text)
    assert [one.session_id for one in found] == names
    assert [[text.text for text in one.texts] for one in found] == [["hi", "yes?"], ["hello"]]
    assert [text.writer for text in found[0].texts] == ["user", "assistant"]
    assert [skip.reason.partition(":")[0] for skip in found[0].skipped] == ["system"]


@pytest.mark.parametrize(
    "text",
    [json.dumps(ONE), json.dumps(ONE, indent=2), lines(*ONE), json.dumps({"messages": ONE}, indent=2)],
    ids=["array", "array on lines", "lines", "one object on lines"],
)
def test_one_conversation(text):
    (found,) = read(text)
    assert [text.text for text in found.texts] == ["hi", "yes?"]
    assert len(found.skipped) == 1


@pytest.mark.parametrize("name", ["timestamp", "create_time", "created_at", "at"])
@pytest.mark.parametrize("time", [1_700_000_000, 1.7e9, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20"])
@pytest.mark.parametrize("around", [False, True])
def test_the_time_of_a_turn(name, time, around):
    said = {"role": "user", "content": "hi"}
    record = {"messages": [said], name: time} if around else {**said, name: time}
    ((text,),) = [one.texts for one in read(json.dumps(record))]
    assert text.at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "system", "content": "x"}, "system"),
        ({"role": "developer", "content": "x"}, "system"),
        ({"role": "tool", "content": "x"}, "tool"),
        ({"role": "function", "content": "x"}, "tool"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "empty"),
        ({"role": "user", "content": " "}, "empty"),
        ({"content": "x"}, "no role"),
        (5, "no role"),
    ],
)
def test_other_lines_are_left_out_with_the_reason(message, reason):
    (found,) = read(json.dumps({"messages": [message, *TWO]}))
    assert [text.text for text in found.texts] == ["hello"]
    assert [skip.reason.partition(":")[0] for skip in found.skipped] == [reason]


@pytest.mark.parametrize("text", ["", "5", "{}", "[]", '{"messages": []}', '{"messages": 5}', json.dumps(ONE[:1])])
def test_a_file_without_a_turn_is_refused_with_the_forms(text):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert FORMS in str(caught.value)


def test_a_name_is_who_speaks():
    said = [
        {"role": "user", "name": "Mallory", "content": "a"},
        {"author": {"role": "user", "name": "user"}, "content": "b"},
        {"author": {"role": "user", "name": None}, "content": "c"},
        {"role": "assistant", "name": "helper", "content": "d"},
    ]
    (one,) = read(json.dumps(said))
    assert [text.speaker for text in one.texts] == ["Mallory", "user", "", ""]
    (part,) = parts_of(one)
    assert [turn.speaker for turn in part.turns] == ["Mallory", "someone named user", "user", "assistant"]


def message(n, **more):
    return {"role": "user", "content": f"note {n}", **more}


@pytest.fixture
def short_parts(monkeypatch):
    """Parts of ten entries, so that a small conversation has several."""
    monkeypatch.setattr(exports, "_MOST", 10)


@pytest.mark.parametrize("form", [lambda said: lines(*said), json.dumps, lambda said: json.dumps({"messages": said})])
def test_a_long_conversation_comes_in_parts_that_follow_each_other(short_parts, form):
    found = read(form([message(n) for n in range(25)]))
    assert [(one.session_id[:4], one.start, len(one.texts)) for one in found] == [("talk", n, 10) for n in (0, 10)] + [
        ("talk", 20, 5)
    ]
    assert [text.text for one in found for text in one.texts] == [f"note {n}" for n in range(25)]


def test_a_part_begins_where_it_began_when_the_conversation_has_grown(short_parts):
    said = [{"role": "tool", "content": "42"} if n % 4 == 3 else message(n) for n in range(60)]
    short, long = read(lines(*said[:37])), read(lines(*said))
    assert [one.start for one in long[: len(short)]] == [one.start for one in short] == [0, 8, 15, 23]
    assert long[: len(short) - 1] == short[:-1]
    assert long[len(short) - 1].texts[: len(short[-1].texts)] == short[-1].texts


def test_conversations_whose_messages_are_mixed_are_told_apart(short_parts):
    found = read(lines(*(message(n, session_id=f"s{n % 3}") for n in range(45))))
    texts = {
        name: [text.text for one in found if one.session_id == name for text in one.texts]
        for name in ["s0", "s1", "s2"]
    }
    assert texts == {f"s{k}": [f"note {n}" for n in range(k, 45, 3)] for k in range(3)}
    assert [(one.session_id, one.start) for one in found if one.start] == [("s0", 10), ("s1", 10), ("s2", 10)]


def test_what_is_long_is_not_held_until_the_end(monkeypatch):
    monkeypatch.setattr(exports, "_MOST_CHARS", 1000)
    given = []

    def endless():
        for n in count():
            given.append(n)
            yield json.dumps(message(n, session_id=f"s{n % 7}", more="x" * 500)).encode() + b"\n"

    found = TranscriptReader().read(JsonStream(endless()), "talk.json")
    for _ in range(50):
        before = len(given)
        assert next(found).texts
        assert len(given) - before < 200


def test_a_whole_conversation_is_given_before_the_next_one_is_read():
    given = []

    def talks():
        for n in range(5):
            given.append(n)
            yield json.dumps({"messages": [message(n)]}).encode() + b"\n"

    number = -1
    for number, found in enumerate(TranscriptReader().read(JsonStream(talks()), "talk.json")):
        assert [text.text for text in found.texts] == [f"note {number}"]
        assert len(given) <= number + 2
    assert number == 4


@pytest.mark.parametrize("line", ["5", '"text"', "[1]"])
def test_a_line_that_is_not_an_object_is_refused_with_its_number(line):
    with pytest.raises(UsageError, match="line 2: this is not a JSON object"):
        read(lines(*ONE[1:2]) + f"\n{line}\n")
