"""The Gemini renderer. `LOOM_REWRITE_GOLDENS=1 pytest tests/context/render` rewrites the goldens; read the diff then."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from typing import Any

import pytest

from loom.context.context import Context
from loom.context.render import gemini
from loom.context.render.layout import Layout, lay_out
from loom.core.message import ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.window import Window
from loom.errors import BadCacheTTL, UsageError
from tests.context.render.sdk import at, check_gemini, check_gemini_cache

MODEL = "gemini-3.1-pro"


def laid_out(*messages: Message) -> Layout:
    context = Context("test")
    for message in messages:
        context.convo.add(message)
    return lay_out(context.compile(), gemini.DIALECT)


def contents_of(layout: Layout) -> list[dict[str, Any]]:
    body = gemini.render(layout, MODEL, {}, {}).body
    check_gemini(body)
    return body["contents"]


def test_golden(window: Window, golden) -> None:
    layout = lay_out(window, gemini.DIALECT)
    body = gemini.render(layout, MODEL, {}, {"temperature": 0.5, "max_output_tokens": 500}).body
    check_gemini(body)
    golden("gemini", body)


def test_two_renders_are_equal_bytes(window: Window) -> None:
    first, second = (gemini.render(lay_out(window, gemini.DIALECT), MODEL, {}, {}).body for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_every_slot_has_one_place_and_is_found_there(window: Window) -> None:
    layout = lay_out(window, gemini.DIALECT)
    out = gemini.render(layout, MODEL, {}, {})
    assert Counter(out.origins.values()) == Counter(layout.slots())
    for path, slot in out.origins.items():
        block = at(out.body, path)
        if isinstance(slot.content, TextPart):
            assert block["text"] == slot.content.text


def test_the_sdk_reads_the_data_as_it_was_meant() -> None:
    from google.genai import types

    picture = ImagePart("+/8=", "image/png")
    (content,) = contents_of(laid_out(Message("user", (picture, TextPart("What is it?")))))
    read = types.Content.model_validate(content)
    assert read.parts
    assert read.parts[0].inline_data
    assert read.parts[0].inline_data.data == b64decode("+/8=")


def test_an_exchange_becomes_contents() -> None:
    calls = (ToolCallPart("1", "see", {"at": "door"}), ToolCallPart("2", "hear"))
    results = (
        ToolResultPart("2", (TextPart("deaf"),), is_error=True),
        ToolResultPart("1", (TextPart("a cat"), ImagePart("aGk=", "image/png", "cat.png"))),
    )
    sent = contents_of(laid_out(Message.user("Who is it?"), Message("assistant", calls), Message("user", results)))
    assert sent == [
        {"role": "user", "parts": [{"text": "Who is it?"}]},
        {
            "role": "model",
            "parts": [
                {"function_call": {"id": "1", "name": "see", "args": {"at": "door"}}},
                {"function_call": {"id": "2", "name": "hear", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"function_response": {"id": "2", "name": "hear", "response": {"error": "deaf"}}},
                {
                    "function_response": {
                        "id": "1",
                        "name": "see",
                        "response": {"result": "a cat\n[Image: cat.png]"},
                        "parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}],
                    }
                },
            ],
        },
    ]


def test_an_id_used_again_names_the_tool_that_was_called_last() -> None:
    def exchange(tool: str) -> list[Message]:
        return [
            Message("assistant", (ToolCallPart("1", tool),)),
            Message("user", (ToolResultPart("1", (TextPart("ok"),)),)),
        ]

    sent = contents_of(laid_out(*exchange("see"), *exchange("hear")))
    assert [c["parts"][0]["function_response"]["name"] for c in sent[1::2]] == ["see", "hear"]


def test_arguments_that_are_no_object_are_put_into_one() -> None:
    call, result = ToolCallPart("1", "see", ["door"]), ToolResultPart("1", (TextPart("ok"),))
    sent = contents_of(laid_out(Message("assistant", (call,)), Message("user", (result,))))
    assert sent[0]["parts"][0]["function_call"]["args"] == {"input": ["door"]}


def seal(text: str) -> ThinkingPart:
    return ThinkingPart(signature=text, provider="gemini")


@pytest.mark.parametrize(
    ("parts", "sent"),
    [
        ((seal("aaaa"), TextPart("x")), [{"text": "x", "thought_signature": "aaaa"}]),
        ((TextPart("x"), seal("aaaa")), [{"text": "x", "thought_signature": "aaaa"}]),
        (
            (TextPart("x"), seal("aaaa"), TextPart("y"), seal("bbbb")),
            [{"text": "x"}, {"text": "y", "thought_signature": "aaaa"}],
        ),
        (
            (ThinkingPart("Hm.", "aaaa", provider="gemini"), TextPart("x")),
            [{"text": "Hm.", "thought": True, "thought_signature": "aaaa"}, {"text": "x"}],
        ),
        ((ThinkingPart("Hm.", provider="gemini"), TextPart("x")), [{"text": "Hm.", "thought": True}, {"text": "x"}]),
        ((seal("aaaa"),), []),
        ((ThinkingPart(provider="gemini"), TextPart("x")), [{"text": "x"}]),
    ],
)
def test_where_a_signature_goes(parts: tuple[Part, ...], sent: list[dict[str, Any]]) -> None:
    contents = contents_of(laid_out(Message.user("hi"), Message("assistant", parts)))
    assert [part for content in contents[1:] for part in content["parts"]] == sent


def test_a_signature_never_moves_to_a_message_that_was_sent_before() -> None:
    alone = Message("assistant", (seal("aaaa"),))
    sent = contents_of(laid_out(Message.assistant("x"), alone))
    assert sent == [{"role": "model", "parts": [{"text": "x"}]}]
    sent = contents_of(laid_out(Message.assistant("x"), alone, Message.assistant("y")))
    assert sent[0]["parts"] == [{"text": "x"}, {"text": "y"}]


def test_nothing_may_be_marked(window: Window) -> None:
    layout = lay_out(window, gemini.DIALECT)
    assert [gemini.may_mark(slot) for slot in layout.slots()] == [False] * len(window.parts)
    plain, marked = (gemini.render(layout, MODEL, m, {}).body for m in ({}, dict.fromkeys(layout.slots(), "1h")))
    assert plain == marked


def test_cache_and_rest_are_the_whole(window: Window) -> None:
    layout = lay_out(window, gemini.DIALECT)
    whole = gemini.render(layout, MODEL, {}, {"temperature": 0.5}).body
    cache = gemini.cache_resource(layout, MODEL, 3600, "incident")
    out = gemini.render(layout, MODEL, {}, {"temperature": 0.5}, cached_content="cachedContents/7")
    check_gemini_cache(cache)
    check_gemini(out.body)
    assert out.body["config"] == {"temperature": 0.5, "cached_content": "cachedContents/7"}
    kept = cache["config"]
    assert (kept["ttl"], kept["display_name"]) == ("3600s", "incident")
    assert {k: kept[k] for k in ("tools", "system_instruction")} == {
        k: whole["config"][k] for k in ("tools", "system_instruction")
    }
    parts = [[p for c in contents for p in c["parts"]] for contents in (kept["contents"], out.body["contents"])]
    assert parts[0] + parts[1] == [p for c in whole["contents"] for p in c["parts"]]
    assert parts[1][0] == {"text": "Why is billing slow?"}
    live = {slot for slot in layout.slots() if slot.section in {"convo", "step", "attention"}}
    assert set(out.origins.values()) == live


def test_a_cache_of_tools_alone_has_no_empty_fields() -> None:
    context = Context("test", tools=[ToolSpec("see")])
    context.convo.add("hi")
    cache = gemini.cache_resource(lay_out(context.compile(), gemini.DIALECT), MODEL, 60)
    check_gemini_cache(cache)
    assert cache["config"].keys() == {"tools", "ttl"}


def test_a_cache_of_nothing_or_for_no_time_is_refused(window: Window) -> None:
    with pytest.raises(UsageError, match="nothing static"):
        gemini.cache_resource(laid_out(Message.user("hi")), MODEL, 60)
    for seconds in (0, -1, True, 1.5, "60"):
        with pytest.raises(BadCacheTTL):
            gemini.cache_resource(lay_out(window, gemini.DIALECT), MODEL, seconds)  # pyright: ignore[reportArgumentType]
