"""The Anthropic renderer. `LOOM_REWRITE_GOLDENS=1 pytest tests/context/render` rewrites the goldens; read the diff then."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from loom.context.context import Context
from loom.context.render import anthropic
from loom.context.render.layout import NO_OUTPUT, Layout, lay_out
from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from loom.core.window import Window
from tests.context.render.sdk import at, check_anthropic

MODEL = "claude-sonnet-5-5"


def laid_out(*messages: Message, binds_thinking: bool = True) -> Layout:
    context = Context("test")
    context.foundation.add("Be brief.")
    for message in messages:
        context.convo.add(message)
    return lay_out(context.compile(), replace(anthropic.DIALECT, binds_thinking=binds_thinking))


def messages_of(layout: Layout) -> list[dict[str, Any]]:
    body = anthropic.render(layout, MODEL, {}, {}).body
    check_anthropic(body)
    return body["messages"]


def test_golden(window: Window, golden, marks) -> None:
    layout = lay_out(window, anthropic.DIALECT)
    body = anthropic.render(layout, MODEL, marks(layout, anthropic.may_mark, "1h", "5m"), {"max_tokens": 500}).body
    check_anthropic(body)
    golden("anthropic", body)


def test_two_renders_are_equal_bytes(window: Window) -> None:
    first, second = (anthropic.render(lay_out(window, anthropic.DIALECT), MODEL, {}, {}).body for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_every_slot_has_one_place_and_is_found_there(window: Window) -> None:
    layout = lay_out(window, anthropic.DIALECT)
    out = anthropic.render(layout, MODEL, {}, {})
    assert Counter(out.origins.values()) == Counter(layout.slots())
    for path, slot in out.origins.items():
        block = at(out.body, path)
        if isinstance(slot.content, TextPart):
            assert block == {"type": "text", "text": slot.content.text}


def test_an_exchange_becomes_blocks() -> None:
    asked = (ImagePart("aGk=", "image/png"), DocumentPart("aGk=", name="cat.pdf"), TextPart("Who is it?"))
    said = (
        ThinkingPart("Hm.", "sig"),
        ThinkingPart(redacted="sealed"),
        TextPart("I look."),
        ToolCallPart("1", "see", {"at": "door"}),
    )
    seen = ToolResultPart("1", (TextPart("a cat"), ImagePart("aGk=", "image/png")), is_error=True)
    assert messages_of(laid_out(Message("user", asked), Message("assistant", said), Message("user", (seen,)))) == [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
                    "title": "cat.pdf",
                },
                {"type": "text", "text": "Who is it?"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
                {"type": "redacted_thinking", "data": "sealed"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "see", "input": {"at": "door"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [
                        {"type": "text", "text": "a cat"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    ],
                    "is_error": True,
                }
            ],
        },
    ]


def test_a_system_message_of_the_conversation_joins_a_user_turn() -> None:
    sent = messages_of(
        laid_out(Message.user("hi"), Message("system", (TextPart("Stop at five."),)), Message.user("go"))
    )
    assert sent == [{"role": "user", "content": [{"type": "text", "text": t} for t in ("hi", "Stop at five.", "go")]}]


def test_an_answer_of_nothing_is_said_in_words() -> None:
    calls = Message("assistant", (ToolCallPart("a", "run"), ToolCallPart("b", "run")))
    results = (ToolResultPart("a", ()), ToolResultPart("b", (TextPart(""), TextPart("ok"))))
    sent = messages_of(laid_out(calls, Message("user", results)))
    assert [[p["text"] for p in block["content"]] for block in sent[1]["content"]] == [[NO_OUTPUT], ["ok"]]


def test_thinking_of_others_and_empty_thinking_stay_out() -> None:
    parts = (ThinkingPart("a", "rs_1", provider="openai"), ThinkingPart(), ThinkingPart("b", "sig"), TextPart("x"))
    layout = laid_out(Message.user("hi"), Message("assistant", parts))
    assert [slot.content for slot in layout.dropped] == list(parts[:2])
    assert [b["type"] for b in messages_of(layout)[1]["content"]] == ["thinking", "text"]


def test_a_compaction_block_comes_back_verbatim() -> None:
    block = {"type": "compaction", "content": "so far", "signature": "sig"}
    layout = laid_out(Message.user("old"), Message("assistant", (NativePart("anthropic", block),)), Message.user("new"))
    body = anthropic.render(layout, MODEL, {}, {}).body
    assert body["messages"][0] == {"role": "assistant", "content": [block]}
    assert len(body["messages"]) == 2


def test_markers_carry_their_lifetime_and_reasoning_carries_none(window: Window) -> None:
    layout = lay_out(window, anthropic.DIALECT)
    out = anthropic.render(layout, MODEL, dict.fromkeys(layout.slots(), "1h"), {})
    check_anthropic(out.body)
    marked = {slot for path, slot in out.origins.items() if "cache_control" in at(out.body, path)}
    assert {type(slot.content) for slot in set(layout.slots()) - marked} == {ThinkingPart}
    assert out.body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    short = anthropic.render(layout, MODEL, {layout.system[0]: "5m"}, {}).body
    assert short["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_ids_of_calls_have_letters_that_anthropic_takes() -> None:
    """A conversation may have been begun with a model whose calls are called `functions.run:0`."""
    calls = Message("assistant", (ToolCallPart("functions.run:0", "run"), ToolCallPart("functions_run_0", "run")))
    results = (ToolResultPart("functions.run:0", "a"), ToolResultPart("functions_run_0", "b"))  # pyright: ignore[reportArgumentType]
    _, called, answered = messages_of(laid_out(Message.user("hi"), calls, Message("user", results)))
    first, second = [block["id"] for block in called["content"]]
    assert second == "functions_run_0"
    assert first.startswith("functions_run_0_")
    assert first.replace("_", "").isalnum()
    assert [block["tool_use_id"] for block in answered["content"]] == [first, second]
