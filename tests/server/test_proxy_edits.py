"""Edits of a request: what is asked for changes, and every other byte stays as it was sent."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from benchmarks.proxy_traces import random_trace
from loom.server.proxy import edits
from loom.server.proxy.edits import WIRES, NotEditable, RequestText, TextEdit

ODD = (
    '{ "model":"claude-sonnet-5" ,\n "max_tokens": 1E2, "messages" : [ {"role":"user","content":"sn\\u00f6 \\ud83d"} ,'
    '{"content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{"n":1.50,"z":-0.0}},'
    '{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"encrypted_content":"x=="}]},'
    '{"type":"tool_use","id":"t1","name":"run","input":{}}],"role":"assistant"},'
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"a"},'
    '{"type":"image","source":{"type":"url","url":"u"}},{"type":"text","text":"b"}]}]}], "x_new":{"a":[null,1e400]}}'
)


def read(text: str = ODD, wire: Any = "messages") -> RequestText:
    return RequestText.of(text.encode("utf-8", "surrogatepass"), wire)


def test_no_edit_gives_the_same_text() -> None:
    assert read().edited([]).text == ODD


class Counted:
    """Reads JSON, and notes how long the lists and objects are that are read at once."""

    def __init__(self) -> None:
        self._reader, self.longest, self.calls = json.JSONDecoder(), 0, 0

    def raw_decode(self, text: str, at: int = 0) -> tuple[Any, int]:
        self.calls += 1
        value, end = self._reader.raw_decode(text, at)
        if isinstance(value, dict | list):
            self.longest = max(self.longest, end - at)
        return value, end


def test_a_long_body_is_read_in_pieces_between_which_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [{"type": "text", "text": f"Part {n}."} for n in range(2_000)]
    body = {"messages": [{"role": "user", "content": [*said, {"type": "text", "text": "x" * 500_000}]}] * 3}
    counted = Counted()
    monkeypatch.setattr(edits, "_DECODER", counted)
    assert edits.json_object(json.dumps(body, indent=1).encode()) == body
    assert 0 < counted.longest <= edits._PIECE


@pytest.mark.parametrize(
    "part",
    [1, "ab", {}, [], {"a": ["x"] * 1_500}, {"role": "user", "content": [{"type": "text", "text": "a, [b"}]}, [[[1]]]],
    ids=["number", "text", "object", "list", "long lists", "messages", "nested"],
)
def test_many_small_values_are_read_many_at_once(monkeypatch: pytest.MonkeyPatch, part: Any) -> None:
    counted = Counted()
    monkeypatch.setattr(edits, "_DECODER", counted)
    many = 1_000_000 // len(json.dumps(part))
    for body in ({"messages": [part] * many}, {str(number): part for number in range(many)}):
        text = json.dumps(body)
        assert edits.json_object(text) == body
        assert counted.calls < 4 * len(text) / edits._PIECE
        assert counted.longest <= edits._PIECE
        counted.calls = 0


def test_more_messages_than_a_provider_takes_are_not_looked_for() -> None:
    message = '{"role":"user","content":"a"}'
    assert len(read('{"messages":[' + f"{message}," * 99_999 + message + "]}").messages) == 100_000
    with pytest.raises(NotEditable):
        read('{"messages":[' + f"{message}," * 100_000 + message + "]}")


def test_a_number_that_is_too_long_to_be_read_is_not_edited() -> None:
    with pytest.raises(NotEditable):
        read('{"messages":[],"n":%s}' % ("1" * 5_000))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_in_pieces_is_what_is_read_at_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(edits, "_PIECE", 16)
    chance = Random(seed)

    def value(depth: int) -> object:
        kind = chance.random()
        if depth > 10 or kind < 0.4:
            return chance.choice([1, -2.5e10, 'a"b\\é\ud800', "", True, None, 1e400, "x" * 30])
        if kind < 0.7:
            return [value(depth + 1) for _ in range(chance.randrange(5))]
        return {chance.choice("abcd") + '"' * chance.randrange(2): value(depth + 1) for _ in range(chance.randrange(5))}

    for _ in range(200):
        text = json.dumps({"a": value(0)}, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5)
        at = chance.randrange(len(text))
        for changed in (
            text,
            text[:at],
            text[:at] + text[at + 1 :],
            text[:at] + chance.choice(',:]}["{ 0') + text[at:],
        ):
            try:
                expected = json.loads(changed)
            except ValueError:
                expected = {}
            assert edits.json_object(changed) == (expected if isinstance(expected, dict) else {})


def test_a_text_behind_a_message_changes_nothing_else() -> None:
    request = read()
    edited = request.edited([request.append_text(0, 'new "words"\n')])
    first = '{"role":"user","content":[{"type":"text","text":"sn\\u00f6 \\ud83d"},'
    added = '{"type":"text","text":"new \\"words\\"\\n"}]}'
    assert edited.text == ODD.replace('{"role":"user","content":"sn\\u00f6 \\ud83d"}', first + added)
    again = edited.edited([edited.append_text(0, "more")])
    assert [block["text"] for block in again.body["messages"][0]["content"][1:]] == ['new "words"\n', "more"]


def test_an_empty_list_and_a_plain_input_take_a_text() -> None:
    request = read('{"model":"m","messages":[{"role":"user","content":[]}]}')
    assert request.edited([request.append_text(0, "x")]).body["messages"][0]["content"] == [
        {"type": "text", "text": "x"}
    ]
    responses = read('{"model":"m","input":"hi"}', "responses")
    assert responses.edited([responses.append_text(0, "x")]).body["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_text", "text": "x"}]}
    ]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("messages[0].content", lambda b: b["messages"][0]["content"][0]),
        ("messages[1].content[2]", lambda b: b["messages"][1]["content"][2]),
        ("messages[2].content[0]", lambda b: b["messages"][2]["content"][0]),
    ],
)
def test_a_marker_stands_on_its_block_and_nowhere_else(path: str, found: Any) -> None:
    request = read()
    marked = request.edited([request.mark(path)])
    assert found(marked.body)["cache_control"] == {"type": "ephemeral"}
    assert marked.text.count("cache_control") == 1
    edit = request.mark(path)
    assert marked.text == ODD[: edit.start] + edit.text + ODD[edit.end :]
    assert found(request.edited([request.mark(path, "1h")]).body)["cache_control"]["ttl"] == "1h"


def test_a_marker_that_is_null_becomes_one() -> None:
    request = read('{"model":"m","system":[{"type":"text","text":"s","cache_control":null}],"messages":[]}')
    assert request.edited([request.mark("system[0]")]).body["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_the_texts_of_results_are_found_in_every_format() -> None:
    assert [(one.call_id, one.text) for one in read().result_texts()] == [("t1", "a"), ("t1", "b")]
    assert len({one.key for one in read().result_texts()}) == 2
    chat = read('{"model":"m","messages":[{"role":"tool","tool_call_id":"c1","content":"out"}]}', "chat")
    assert [(one.call_id, one.text) for one in chat.result_texts()] == [("c1", "out")]
    items = '[{"type":"function_call_output","call_id":"c2","output":"out"},{"type":"reasoning","summary":[]}]'
    responses = read(f'{{"model":"m","input":{items}}}', "responses")
    assert [(one.call_id, one.text) for one in responses.result_texts()] == [("c2", "out")]


def test_messages_are_replaced_with_what_was_changed_inside_them() -> None:
    request = read()
    kept = request.append_text(0, "kept")
    edit = request.replace_messages(
        0, 2, ['{"role":"user","content":"sum"}', request.slice(*_span(request, 0), [kept])]
    )
    body = request.edited([edit]).body
    assert [message["role"] for message in body["messages"]] == ["user", "user", "user"]
    assert body["messages"][1]["content"][1]["text"] == "kept"
    assert ODD[request.messages[2].start :] in request.edited([edit]).text


def _span(request: RequestText, i: int) -> tuple[int, int]:
    return request.messages[i].start, request.messages[i].end


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}", '{"messages":{}}', '{"messages":[1]}', '{"messages":[]} x', "\ufeff{}"),
        *('{"model":"a","model":"b","messages":[]}', "[" * 100_000),
    ],
)
def test_what_is_not_a_request_is_not_edited(text: str) -> None:
    with pytest.raises(NotEditable):
        read(text)


def test_bytes_that_are_not_utf_8_and_state_that_only_the_provider_has_are_not_edited() -> None:
    with pytest.raises(NotEditable):
        RequestText.of(b'{"messages":[],"x":"\xff"}', "messages")
    with pytest.raises(NotEditable):
        read('{"model":"m","input":"hi","previous_response_id":"r1"}', "responses")


def test_a_name_that_comes_twice_in_a_message_is_not_touched() -> None:
    request = read('{"messages":[{"role":"user","content":"a","content":"b"}]}')
    with pytest.raises(NotEditable):
        request.append_text(0, "x")


def test_random_requests_keep_every_byte_that_is_not_edited() -> None:
    """Take the edits out of the edited text again, and the text is the one before."""
    count = 0
    for seed in range(60):
        random = Random(seed)
        sent = random.choice(random_trace(seed))
        request = RequestText.of(sent.body, WIRES[sent.path])
        users = [i for i in range(len(request.messages)) if request.is_users(i) and random.random() < 0.5]
        edits = [request.append_text(i, f"\u2603 {i}\n") for i in users]
        edits += [TextEdit(r.node.start, r.node.end, json.dumps("short")) for r in request.result_texts()]
        edited = request.edited(edits)
        text = edited.text
        for edit in sorted(edits, key=lambda one: one.start):
            assert text[edit.start : edit.start + len(edit.text)] == edit.text
            text = text[: edit.start] + request.text[edit.start : edit.end] + text[edit.start + len(edit.text) :]
        count += len(edits)
        assert text == request.text
        assert edited.body["new_field"] == request.body["new_field"]
        assert request.text.encode() == sent.body
    assert count > 100
