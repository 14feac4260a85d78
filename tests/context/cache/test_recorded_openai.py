"""Recorded requests: the two formats of OpenAI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.context.cache.bodies import PIXELS, places, read, refused, user


def chat(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-5.6", "messages": list(items), **more}


def test_chat_blocks() -> None:
    body = chat(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "And kind."}]},
        user(
            [
                {"type": "text", "text": "See."},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}"}},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PIXELS}"}},
                {"type": "input_audio", "input_audio": {"data": PIXELS, "format": "wav"}},
            ]
        ),
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "cat", "arguments": '{"p":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text of a"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "system", "content": "Late."},
        tools=[{"type": "function", "function": {"name": "cat", "parameters": {"type": "object"}}}],
    )
    prompt = read(body, model=None)
    assert places(prompt) == [
        ("tools[0]", "tools", "system", "tool"),
        ("messages[0].content", "system", "system", "text"),
        ("messages[1].content[0]", "system", "developer", "text"),
        ("messages[2].content[0]", "messages", "user", "text"),
        ("messages[2].content[1]", "messages", "user", "image"),
        ("messages[2].content[2]", "messages", "user", "image"),
        ("messages[2].content[3]", "messages", "user", "document"),
        ("messages[2].content[4]", "messages", "user", "other"),
        ("messages[3].reasoning_content", "messages", "assistant", "thinking"),
        ("messages[3].tool_calls[0]", "messages", "assistant", "tool_use"),
        ("messages[3].tool_calls[1]", "messages", "assistant", "tool_use"),
        ("messages[4].content", "messages", "tool", "tool_result"),
        ("messages[5].content[0]", "messages", "tool", "tool_result"),
        ("messages[5].content[1]", "messages", "tool", "tool_result"),
        ("messages[6].content", "messages", "system", "text"),
    ]
    assert (prompt.provider, prompt.automatic) == ("openai", "30m")
    assert [b.tokens for b in prompt.blocks[3:7]] == [4, 1_000, 1_600, 2_000]
    assert prompt.blocks[7].tokens < 100
    assert [b.tokens for b in prompt.blocks[11:14]] == [9, 1, 1]
    assert '"tool_call_id":"c1"' in prompt.blocks[11].content


def test_a_chat_string_is_a_list_of_one_text() -> None:
    plain = read(chat({"role": "system", "content": "s"}, {"role": "tool", "tool_call_id": "c", "content": "r"}))
    listed = read(
        chat(
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
        )
    )
    assert [b.key for b in plain.blocks] == [b.key for b in listed.blocks]


def test_the_author_of_a_message_is_content() -> None:
    ann, bob, nobody = (read(chat({**user("hi"), "name": name})).blocks[0] for name in ("ann", "bob", None))
    assert len({ann.key, bob.key, nobody.key}) == 3
    assert nobody.key == read(chat(user("hi"))).blocks[0].key


@pytest.mark.parametrize(
    ("point", "options", "ttl"),
    [
        ({"mode": "explicit"}, None, "30m"),
        ({"mode": "explicit", "ttl": "12h"}, None, "12h"),
        ({"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"}, "12h"),
    ],
)
def test_openai_breakpoints(point: Any, options: Any, ttl: str) -> None:
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": point}
    marked = read(chat(user([part]), prompt_cache_options=options))
    assert marked.blocks[0].marker == ttl
    assert marked.blocks[0].key == read(chat(user("a"))).blocks[0].key


@pytest.mark.parametrize(
    ("model", "options", "ttl"),
    [
        ("gpt-5.6", None, "30m"),
        ("gpt-5.6", {"mode": "implicit"}, "30m"),
        ("gpt-5.6", {"mode": "implicit", "ttl": "12h"}, "12h"),
        ("gpt-5.6", {"mode": "explicit"}, None),
        ("gpt-4o", None, None),
        ("some-local-model", None, None),
    ],
)
def test_openai_implicit_breakpoint(model: str, options: Any, ttl: str | None) -> None:
    assert read(chat(user("a"), prompt_cache_options=options), model=model).automatic == ttl


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"parallel_tool_calls": True, "response_format": {"type": "text"}, "verbosity": "medium"}, {}),
        ({"service_tier": "auto", "tool_choice": "required", "temperature": 0, "n": 1}, {}),
        (
            {"parallel_tool_calls": False, "reasoning_effort": "low", "service_tier": "flex"},
            {"tools": '{"parallel_tool_calls":false,"effort":"low","service_tier":"flex"}'},
        ),
        ({"prompt_cache_key": "k"}, {"tools": '{"prompt_cache_key":"k"}'}),
        ({"response_format": {"type": "json_object"}}, {"tools": '{"format":{"type":"json_object"}}'}),
    ],
)
def test_openai_settings(given: dict[str, Any], settings: dict[str, str]) -> None:
    assert read(chat(user("a"), **given)).settings == settings


def test_responses_say_the_same_settings_in_other_places() -> None:
    said = {"text": {"format": {"type": "json_object"}, "verbosity": "low"}, "reasoning": {"effort": "low"}}
    same = {"response_format": {"type": "json_object"}, "verbosity": "low", "reasoning_effort": "low"}
    assert read({"input": "a", **said}).settings == read(chat(user("a"), **same)).settings != {}


def test_a_gateway_passes_anthropic_markers_on() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    prompt = read(
        chat({"role": "system", "content": "Be brief.", **mark}, user([{"type": "text", "text": "a", **mark}])),
        model="anthropic/claude-sonnet-5",
    )
    assert [b.marker for b in prompt.blocks] == ["5m", "5m"]
    assert (prompt.provider, prompt.automatic) == ("anthropic", None)


def test_responses_blocks() -> None:
    body = {
        "model": "gpt-5.6",
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "cat", "parameters": {"type": "object"}}, {"type": "web_search"}],
        "input": [
            {"role": "developer", "content": "Be kind."},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See."},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"},
                    {"type": "input_file", "file_id": "f"},
                ],
            },
            {"type": "reasoning", "summary": [], "encrypted_content": "AAAA"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hm.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "cat", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "text of a"},
            {"type": "function_call", "call_id": "c2", "name": "cat", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [
                    {"type": "input_text", "text": "shot"},
                    {"type": "input_image", "image_url": "u", "prompt_cache_breakpoint": {"mode": "explicit"}},
                ],
            },
            {"type": "compaction", "encrypted_content": "AAAA"},
            {"type": "additional_tools", "role": "developer", "tools": []},
        ],
    }
    prompt = read(body, model=None)
    assert places(prompt) == [
        ("tools[0]", "tools", "system", "tool"),
        ("tools[1]", "tools", "system", "tool"),
        ("instructions", "system", "system", "text"),
        ("input[0].content", "system", "developer", "text"),
        ("input[1].content[0]", "messages", "user", "text"),
        ("input[1].content[1]", "messages", "user", "image"),
        ("input[1].content[2]", "messages", "user", "document"),
        ("input[2]", "messages", "assistant", "thinking"),
        ("input[3].content[0]", "messages", "assistant", "text"),
        ("input[4]", "messages", "assistant", "tool_use"),
        ("input[5].output", "messages", "tool", "tool_result"),
        ("input[6]", "messages", "assistant", "tool_use"),
        ("input[7].output[0]", "messages", "tool", "tool_result"),
        ("input[7].output[1]", "messages", "tool", "tool_result"),
        ("input[8]", "messages", "assistant", "compaction"),
        ("input[9]", "messages", "developer", "other"),
    ]
    assert prompt.blocks[13].marker == "30m"
    assert [b.tokens for b in prompt.blocks[4:7]] == [4, 1_000, 3_000]
    assert [b.tokens for b in prompt.blocks[12:14]] == [4, 1_600]
    assert (prompt.provider, prompt.automatic) == ("openai", "30m")


def test_a_responses_string_is_a_list_of_one_text() -> None:
    plain = read({"input": [{"role": "user", "content": "a"}, output("r")]})
    parts = [{"type": "input_text", "text": "a"}]
    listed = read(
        {
            "input": [
                {"type": "message", "role": "user", "content": parts},
                output([{"type": "input_text", "text": "r"}]),
            ]
        }
    )
    assert [b.key for b in plain.blocks] == [b.key for b in listed.blocks]
    alone = read({"input": "a"}).blocks[0]
    assert (alone.key, alone.path) == (plain.blocks[0].key, "input")


def output(value: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c", "output": value}


def test_a_prompt_that_only_the_provider_has_is_refused() -> None:
    refused(
        {"model": "gpt-5.6", "input": "a", "previous_response_id": "resp_1"}, match=r"previous_response_id is 'resp_1'"
    )


@pytest.mark.parametrize(
    ("arguments", "counted"),
    [
        ('{"p":1}', '{"p": 1}'),
        ('{"p":', '{"input": "{\\"p\\":"}'),
        ("[1]", '{"input": "[1]"}'),
        (None, '{"input": null}'),
    ],
)
def test_a_call_is_counted_whatever_the_model_wrote(arguments: str | None, counted: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "cat", "arguments": arguments}}
    item = {"type": "function_call", "call_id": "c", "name": "cat", "arguments": arguments}
    by_chat = read(chat({"role": "assistant", "tool_calls": [call]})).blocks[0]
    by_item = read({"input": [item]}).blocks[0]
    assert by_chat.tokens == by_item.tokens == len("cat") + len(counted)
