"""The forms in which other programs keep conversations."""

import json
from datetime import UTC, datetime

import pytest

from loom.errors import UsageError
from loom.memory.transcripts import FORMS, read_transcripts

ONE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes?"},
]
TWO = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def lines(*records):
    return "\n".join(map(json.dumps, records))


def read(tmp_path, text):
    path = tmp_path / "talk.json"
    path.write_text(text, encoding="utf-8")
    return read_transcripts(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (lines({"messages": ONE}, {"messages": TWO}), ["talk-0", "talk-1"]),
        (lines({"messages": ONE, "id": "a"}, {"messages": TWO, "session_id": "b", "id": "c"}), ["a", "b"]),
        (json.dumps([{"messages": ONE}, {"messages": TWO}], indent=2), ["talk-0", "talk-1"]),
    ],
    ids=["lines", "named", "array"],
)
def test_conversations_as_lists_of_messages(tmp_path, text, names):
    found = read(tmp_path, text)
    assert [one.session_id for one in found] == names
    assert [[turn.text for turn in one.turns] for one in found] == [["hi", "yes?"], ["hello"]]
    assert [turn.origin for turn in found[0].turns] == ["import", "assistant"]
    assert [skip.reason.partition(":")[0] for skip in found[0].skipped] == ["system"]


@pytest.mark.parametrize(
    "text",
    [json.dumps(ONE), json.dumps(ONE, indent=2), lines(*ONE), json.dumps({"messages": ONE}, indent=2)],
    ids=["array", "array on lines", "lines", "one object on lines"],
)
def test_one_conversation(tmp_path, text):
    (found,) = read(tmp_path, text)
    assert [turn.text for turn in found.turns] == ["hi", "yes?"]
    assert len(found.skipped) == 1


@pytest.mark.parametrize("name", ["timestamp", "create_time", "created_at", "at"])
@pytest.mark.parametrize("time", [1_700_000_000, 1.7e9, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20"])
@pytest.mark.parametrize("around", [False, True])
def test_the_time_of_a_turn(tmp_path, name, time, around):
    said = {"role": "user", "content": "hi"}
    record = {"messages": [said], name: time} if around else {**said, name: time}
    ((turn,),) = [one.turns for one in read(tmp_path, json.dumps(record))]
    assert turn.at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


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
def test_what_is_no_turn_is_left_out_with_its_reason(tmp_path, message, reason):
    (found,) = read(tmp_path, json.dumps({"messages": [message, *TWO]}))
    assert [turn.text for turn in found.turns] == ["hello"]
    assert [skip.reason.partition(":")[0] for skip in found.skipped] == [reason]


@pytest.mark.parametrize("text", ["", "5", "{}", "[]", '{"messages": []}', '{"messages": 5}', json.dumps(ONE[:1])])
def test_a_file_without_a_turn_is_refused_with_the_forms(tmp_path, text):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert FORMS in str(caught.value)


def test_a_name_is_who_speaks(tmp_path):
    said = [
        {"role": "user", "name": "Mallory", "content": "a"},
        {"author": {"role": "user", "name": "user"}, "content": "b"},
        {"author": {"role": "user", "name": None}, "content": "c"},
        {"role": "assistant", "name": "helper", "content": "d"},
    ]
    (one,) = read(tmp_path, json.dumps(said))
    assert [turn.speaker for turn in one.turns] == ["Mallory", "someone named user", "user", "assistant"]
