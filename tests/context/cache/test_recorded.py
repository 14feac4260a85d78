"""Recorded requests: Anthropic and Gemini bodies, whose a request is, and the log around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest

from loom import plan
from loom.errors import LoomError
from loom.protocols.token_counter import TokenCounter
from loom.traces.request import read_recorded, read_request
from tests.context.cache.bodies import BODY, CLAUDE, PIXELS, Letters, messages, places, read, refused, user


def test_the_counter_of_these_tests_is_a_counter() -> None:
    assert isinstance(Letters(), TokenCounter)


def test_anthropic_blocks_stand_in_the_order_of_the_cache() -> None:
    body: dict[str, Any] = {
        "model": CLAUDE,
        "messages": [
            user("Read it."),
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "AAAA"},
                    {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "id": "t1", "name": "cat", "input": {"path": "a"}},
                    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                ],
            },
            user([{"type": "tool_result", "tool_use_id": "t1", "content": "text of a"}]),
        ],
        "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
        "tools": [{"name": "cat", "input_schema": {"type": "object"}}],
    }
    prompt = read(body, model=None)
    assert places(prompt) == [
        ("tools[0]", "tools", "system", "tool"),
        ("system[0]", "system", "system", "text"),
        ("system[1]", "system", "system", "text"),
        ("messages[0].content", "messages", "user", "text"),
        ("messages[1].content[0]", "messages", "assistant", "thinking"),
        ("messages[1].content[1]", "messages", "assistant", "redacted_thinking"),
        ("messages[1].content[2]", "messages", "assistant", "text"),
        ("messages[1].content[3]", "messages", "assistant", "tool_use"),
        ("messages[1].content[4]", "messages", "assistant", "other"),
        ("messages[2].content[0]", "messages", "user", "tool_result"),
    ]
    assert (prompt.provider, prompt.model, prompt.automatic, prompt.at) == ("anthropic", CLAUDE, None, None)
    assert [b.tokens for b in prompt.blocks[1:8]] == [4, 4, 8, 3, 4, 4, 3 + len('{"path": "a"}')]
    assert prompt.blocks[9].tokens == len("text of a")


def test_a_string_is_a_list_of_one_text() -> None:
    plain = read(messages(user("Hello, wörld."), user([{"type": "tool_result", "tool_use_id": "t", "content": "ok"}])))
    listed = read(
        messages(
            user([{"type": "text", "text": "Hello, wörld.", "citations": None}]),
            user([{"type": "tool_result", "tool_use_id": "t", "content": [{"text": "ok", "type": "text"}]}]),
            system=[{"type": "text", "text": "Be brief."}],
        )
    )
    assert [b.key for b in plain.blocks] == [b.key for b in listed.blocks]
    assert plain.blocks[1].content == '{"type":"text","text":"Hello, wörld."}'
    assert [b.path for b in plain.blocks[:2]] == ["system", "messages[0].content"]
    assert [b.path for b in listed.blocks[:2]] == ["system[0]", "messages[0].content[0]"]


def test_markers_are_read_and_are_no_content() -> None:
    ephemeral = {"type": "ephemeral"}
    marked = read(
        messages(
            user([{"type": "text", "text": "a", "cache_control": ephemeral}, {"type": "text", "text": "b"}]),
            user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "c", "cache_control": ephemeral}],
                    }
                ]
            ),
            tools=[{"name": "t", "input_schema": {}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            system=[{"type": "text", "text": "s", "cache_control": None}],
        )
    )
    bare = read(
        messages(
            user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "c"}]}]),
            tools=[{"name": "t", "input_schema": {}}],
            system="s",
        )
    )
    assert [b.marker for b in marked.blocks] == ["1h", None, "5m", None, "5m"]
    assert [b.key for b in marked.blocks] == [b.key for b in bare.blocks]
    assert bare.markers == ()


def test_a_tool_argument_called_like_a_marker_is_content() -> None:
    call = {"type": "tool_use", "id": "1", "name": "n", "input": {"cache_control": {"ttl": "1h"}}}
    block = read(messages({"role": "assistant", "content": [call]})).blocks[-1]
    assert block.marker is None
    assert "cache_control" in block.content


def test_the_order_of_keys_is_content() -> None:
    def call(input: dict[str, int]) -> bytes:
        block = {"type": "tool_use", "id": "1", "name": "n", "input": input}
        return read(messages({"role": "assistant", "content": [block]})).blocks[-1].key

    assert call({"a": 1, "b": 2}) == call({"a": 1, "b": 2})
    assert call({"a": 1, "b": 2}) != call({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("given", "ttl"),
    [({"type": "ephemeral"}, "5m"), ({"type": "ephemeral", "ttl": "1h"}, "1h"), (None, None)],
)
def test_anthropic_automatic_caching(given: Any, ttl: str | None) -> None:
    assert read(messages(user("a"), cache_control=given), model=None).automatic == ttl


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, {}),
        ({"tool_choice": {"type": "auto"}}, {}),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, {}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}, "speed": "standard"}, {}),
        ({"temperature": 1, "max_tokens": 5, "metadata": {"user_id": "u"}, "stream": True}, {}),
        ({"tool_choice": {"type": "any"}}, {"messages": '{"tool_choice":{"type":"any"}}'}),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"messages": '{"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}'},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"}},
            {"messages": '{"thinking":{"type":"enabled","budget_tokens":9},"effort":"low"}'},
        ),
        ({"speed": "fast"}, {"system": '{"speed":"fast"}'}),
    ],
)
def test_anthropic_settings(given: dict[str, Any], settings: dict[str, str]) -> None:
    assert read(messages(user("a"), **given)).settings == settings


def test_citations_invalidate_from_system_on() -> None:
    page = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}}
    assert read(messages(user([page]))).settings == {}
    cited = read(messages(user([{**page, "citations": {"enabled": True}}])))
    assert cited.settings == {"system": '{"citations":true}'}
    assert cited.blocks[-1].tokens == 4


def test_pictures_and_documents_are_not_counted_as_text() -> None:
    def source(data: str, media: str = "image/png") -> dict[str, str]:
        return {"type": "base64", "media_type": media, "data": data}

    prompt = read(
        messages(
            user(
                [
                    {"type": "image", "source": source(PIXELS)},
                    {"type": "image", "source": source(PIXELS, "image/heic")},
                    {"type": "image", "source": source("<cut out of the log>")},
                    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                    {"type": "document", "source": source(PIXELS, "application/pdf")},
                    {"type": "document", "source": {"type": "file", "file_id": "f"}},
                    {"type": "container_upload", "data": PIXELS},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "image", "source": source(PIXELS)}, {"type": "text", "text": "shot"}],
                    },
                ]
            )
        )
    )
    kinds = [(b.kind, b.tokens) for b in prompt.blocks[1:]]
    assert kinds == [
        ("image", 1_000),
        ("image", 1_000),
        ("image", 1_600),
        ("image", 1_600),
        ("document", 2_000),
        ("document", 3_000),
        ("other", len('{"type":"container_upload","data":""}')),
        ("tool_result", 1_004),
    ]
    assert PIXELS in prompt.blocks[1].content


def test_gemini_in_both_spellings() -> None:
    declared = [{"name": "cat", "parameters": {"type": "OBJECT"}}, {"name": "ls"}]
    rest = {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": declared}, {"googleSearch": {}}],
        "contents": [
            {"role": "user", "parts": [{"text": "See."}, {"inlineData": {"mimeType": "image/png", "data": PIXELS}}]},
            {
                "role": "model",
                "parts": [{"text": "Hm.", "thought": True}, {"functionCall": {"name": "cat", "args": {}}}],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "cat", "response": {"a": 1}}}]},
            {"role": "user", "parts": [{"fileData": {"mimeType": "application/pdf", "fileUri": "gs://a"}}]},
            {"role": "user", "parts": [{"inlineData": {"mimeType": "audio/wav", "data": PIXELS}}]},
        ],
    }
    sdk = {
        "model": "gemini-3-pro",
        "contents": [
            {"role": "user", "parts": [{"text": "See."}, {"inline_data": {"mime_type": "image/png", "data": PIXELS}}]},
            {
                "role": "model",
                "parts": [{"text": "Hm.", "thought": True}, {"function_call": {"name": "cat", "args": {}}}],
            },
        ],
        "config": {
            "system_instruction": {"parts": [{"text": "Be brief."}]},
            "tools": [{"function_declarations": declared}, {"google_search": {}}],
        },
    }
    wire, written = read(rest, model="models/gemini-3-pro"), read(sdk, model=None)
    assert [b.path for b in wire.blocks] == [
        "tools[0].functionDeclarations[0]",
        "tools[0].functionDeclarations[1]",
        "tools[1]",
        "systemInstruction.parts[0]",
        "contents[0].parts[0]",
        "contents[0].parts[1]",
        "contents[1].parts[0]",
        "contents[1].parts[1]",
        "contents[2].parts[0]",
        "contents[3].parts[0]",
        "contents[4].parts[0]",
    ]
    assert [b.path for b in written.blocks] == [
        "config.tools[0].function_declarations[0]",
        "config.tools[0].function_declarations[1]",
        "config.tools[1]",
        "config.system_instruction.parts[0]",
        "contents[0].parts[0]",
        "contents[0].parts[1]",
        "contents[1].parts[0]",
        "contents[1].parts[1]",
    ]
    kinds = [(b.level, b.role, b.kind) for b in wire.blocks]
    assert kinds[:8] == [(b.level, b.role, b.kind) for b in written.blocks]
    assert kinds[2:] == [
        ("tools", "system", "tool"),
        ("system", "system", "text"),
        ("messages", "user", "text"),
        ("messages", "user", "image"),
        ("messages", "assistant", "thinking"),
        ("messages", "assistant", "tool_use"),
        ("messages", "user", "tool_result"),
        ("messages", "user", "document"),
        ("messages", "user", "other"),
    ]
    assert [b.tokens for b in wire.blocks[3:7]] == [9, 4, 1_000, 3]
    assert wire.blocks[9].tokens == 3_000
    assert wire.blocks[10].tokens < 100
    assert written.provider == "gemini"


@pytest.mark.parametrize(
    ("contents", "paths"),
    [
        ("Hi", ["contents"]),
        (["Hi"], ["contents[0]"]),
        ([{"text": "Hi"}], ["contents[0]"]),
        ({"role": "user", "parts": [{"text": "Hi"}]}, ["contents.parts[0]"]),
        ([{"parts": {"text": "Hi"}}], ["contents[0].parts"]),
    ],
)
def test_gemini_contents_in_short(contents: Any, paths: list[str]) -> None:
    prompt = read({"contents": contents, "config": {"system_instruction": "Be brief.", "cached_content": "c/1"}})
    assert [b.path for b in prompt.blocks] == ["config.system_instruction", *paths]
    assert prompt.blocks[1].content == '{"type":"text","text":"Hi"}'
    assert prompt.blocks[1].role == "user"
    assert prompt.settings == {"tools": '{"cached_content":"c/1"}'}


@pytest.mark.parametrize(
    ("body", "provider", "expected"),
    [
        ({"model": CLAUDE, "messages": [user("a")]}, None, "anthropic"),
        ({"model": "us.anthropic.claude-sonnet-4-5", "messages": [user("a")]}, None, "bedrock"),
        ({"model": "x", "anthropic_version": "bedrock-2023-05-31", "messages": [user("a")]}, None, "bedrock"),
        ({"model": "deepseek-chat", "messages": [user("a")]}, None, "deepseek"),
        ({"model": "my-model", "messages": [user("a")]}, None, "generic"),
        ({"model": "my-model", "messages": [user("a")]}, "vllm", "vllm"),
        ({"model": "my-model", "system": "s", "messages": [user("a")]}, None, "anthropic"),
        ({"model": "my-model", "contents": "a"}, None, "gemini"),
    ],
)
def test_whose_request_it_is(body: dict[str, Any], provider: str | None, expected: str) -> None:
    assert read_request(body, provider=provider, counter=Letters()).provider == expected


def test_a_body_that_could_be_either_is_read_for_its_owner() -> None:
    body = {"model": "m", "messages": [user("a")], "tool_choice": {"type": "any"}}
    assert read_request(body, provider="anthropic", counter=Letters()).settings != {}
    assert read_request(body, provider="openai", counter=Letters()).settings == {}


def test_the_model_that_is_given_replaces_the_recorded_one() -> None:
    prompt = read_request(messages(user("a")), model="claude-opus-5", counter=Letters(), at=7.0)
    assert (prompt.model, prompt.at) == ("claude-opus-5", 7.0)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({}, "record with nothing at all; give an Anthropic"),
        ({"foo": 1, "bar": 2}, "no request was found in a record with foo, bar"),
        ({"choices": [], "usage": {}}, "a model's answer, not a request"),
        ({"object": "response", "instructions": None, "output": []}, "a model's answer"),
        ({"messages": [user("a")]}, "or --model NAME"),
        ({"model": "m", "messages": []}, "no content at all"),
        ({"model": "m", "messages": "hi"}, "messages is 'hi', but must be a list"),
        ({"model": "m", "messages": ["hi"]}, r"messages\[0\] is 'hi', but must be a message"),
        ({"model": "m", "messages": [{"content": "hi"}]}, r"messages\[0\]\.role is None"),
        ({"model": "m", "messages": [user([{"text": "hi"}])]}, r"messages\[0\]\.content\[0\] is .*\"type\""),
        ({"model": CLAUDE, "messages": [user([{"text": "hi"}])]}, r"messages\[0\]\.content\[0\] is .*\"type\""),
        ({"model": CLAUDE, "messages": [user(3)]}, r"messages\[0\]\.content is 3, but must be a list"),
        (messages(user([{"type": "text", "text": "a", "cache_control": "5m"}])), r"cache_control is '5m'"),
        (messages(user("a"), tools=["cat"]), r"tools\[0\] is 'cat', but must be a JSON object"),
        (messages({"role": "user", "content": [{"type": "x", "y": {1}}]}), "not JSON"),
        (messages(user("a"), thread={"type": "continue", "previous_message_id": "msg_1"}), "continues 'msg_1'"),
        ({"model": "m", "input": [3]}, r"input\[0\] is 3"),
        ({"model": "m", "contents": [{}]}, r"contents\[0\] is \{\}"),
    ],
)
def test_other_json_is_refused_with_the_reason(body: dict[str, Any], match: str) -> None:
    refused(body, match=match)


WHOLE: list[dict[str, Any]] = [
    {
        "model": CLAUDE,
        "tools": [{"name": "cat", "input_schema": {"type": "object"}}],
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            user([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}]),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "cat", "input": {}}]},
            user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]}]),
        ],
    },
    {
        "model": "gpt-5.6",
        "response_format": {"type": "json_object"},
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "assistant", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "cat"}}]},
            {"role": "tool", "tool_call_id": "t", "content": [{"type": "text", "text": "a"}]},
        ],
    },
    {
        "model": "gpt-5.6",
        "instructions": "Be brief.",
        "reasoning": {"effort": "low"},
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
            {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_text", "text": "a"}]},
        ],
    },
    {"model": "gemini-3.1-pro", "contents": [{"role": "user", "parts": [{"text": "a"}]}], "cachedContent": "c"},
]
ODD: tuple[Any, ...] = (None, True, -1, 1e400, "", "\ud800", "{", [], {}, [None], [[]], {"a": None})


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a value: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _inside(value[key])


@pytest.mark.parametrize("whole", WHOLE, ids=["anthropic", "chat", "responses", "gemini"])
def test_whatever_stands_anywhere_in_a_body_is_read_or_refused(whole: dict[str, Any]) -> None:
    for place in range(sum(1 for _ in _inside(whole))):
        for odd in ODD:
            body = deepcopy(whole)
            holder, key = next(islice(_inside(body), place, None))
            holder[key] = odd
            with suppress(LoomError):
                str(plan(body, previous=[whole]))


@pytest.mark.parametrize(
    ("record", "at"),
    [
        (BODY, None),
        ({**BODY, "at": 5}, 5.0),
        ({"request": BODY, "at": 12.5, "response": {"usage": {}}}, 12.5),
        ({"request": BODY, "timestamp": "2026-11-15T08:30:00Z"}, 1794731400.0),
        ({"request": BODY, "timestamp": "2026-11-15T08:30:00"}, 1794731400.0),
        ({"request": BODY, "timestamp": "2026-11-15T10:30:00+02:00"}, 1794731400.0),
        ({"request": BODY, "timestamp": 1794731400000}, 1794731400.0),
        ({"request": BODY, "timestamp": 1794731400_000_000}, 1794731400.0),
        ({"request": BODY, "timestamp": str(1794731400 * 10**9)}, 1794731400.0),
        ({"request": BODY, "timestamp": "1794731400.5"}, 1794731400.5),
        ({"body": BODY}, None),
        ({"url": "https://example.org/v1/messages", "body": json.dumps(BODY)}, None),
        ({"url": "https://example.org/v1/messages", "json": BODY}, None),
        ({"url": "https://example.org/v1/messages", "content": json.dumps(BODY)}, None),
        ({"custom_id": "1", "params": BODY}, None),
        ({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}, None),
        ({"id": "r", "request": {"method": "POST", "url": "/x", "body": json.dumps(BODY)}, "at": 3}, 3.0),
    ],
)
def test_the_log_around_a_request(record: dict[str, Any], at: float | None) -> None:
    assert read_recorded(record) == (BODY, at)
    prompt = read_request(record, counter=Letters())
    assert (prompt.at, [b.path for b in prompt.blocks]) == (at, ["messages[0].content"])


@pytest.mark.parametrize(
    ("record", "model"),
    [
        (
            {"url": "https://example.org/v1beta/models/gemini-3-pro:generateContent", "body": {"contents": "a"}},
            "gemini-3-pro",
        ),
        ({"url": "/openai/deployments/mine/chat/completions?v=1", "body": {"messages": [user("a")]}}, "mine"),
        ({"model": "gpt-5.6", "request": {"messages": [user("a")]}}, "gpt-5.6"),
        ({"model": "outer", "request": {"model": "inner", "messages": [user("a")]}}, "inner"),
    ],
)
def test_the_model_may_stand_in_the_log(record: dict[str, Any], model: str) -> None:
    assert read_request(record, counter=Letters()).model == model


def test_a_broken_log_is_refused() -> None:
    refused({"url": "/x", "body": '{"model": "m", "mess'}, match="body is text, but not whole JSON")
    refused({"request": BODY, "at": "yesterday"}, match="at is 'yesterday', but must be a time")
    refused({"request": BODY, "at": True}, match="at is True, but must be a time")
