"""The Chat renderer. `LOOM_REWRITE_GOLDENS=1 pytest tests/context/render` rewrites the goldens; read the diff then."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from loom.context.context import Context
from loom.context.render import openai
from loom.context.render.layout import NO_OUTPUT, Layout, WireSlot, lay_out
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
from tests.context.render.sdk import at, check_openai_chat

MODEL = "gpt-5.6"


def laid_out(*messages: Message, system: str = "Be brief.") -> Layout:
    context = Context("test")
    context.foundation.add(system)
    for message in messages:
        context.convo.add(message)
    return lay_out(context.compile(), openai.CHAT_DIALECT)


def messages_of(layout: Layout) -> list[dict[str, Any]]:
    body = openai.render_chat(layout, MODEL, {}, {}).body
    check_openai_chat(body)
    return body["messages"]


def slot_of(layout: Layout, kind: type) -> WireSlot:
    return next(slot for slot in layout.slots() if isinstance(slot.content, kind))


def test_golden(window: Window, golden, marks) -> None:
    layout = lay_out(window, openai.CHAT_DIALECT)
    markers = marks(layout, openai.may_mark, "12h", "30m")
    body = openai.render_chat(layout, MODEL, markers, {"max_completion_tokens": 500}).body
    check_openai_chat(body)
    golden("openai_chat", body)


def test_two_renders_are_equal_bytes(window: Window) -> None:
    first, second = (openai.render_chat(lay_out(window, openai.CHAT_DIALECT), MODEL, {}, {}).body for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_every_slot_is_found_where_the_origins_say(window: Window) -> None:
    layout = lay_out(window, openai.CHAT_DIALECT)
    out = openai.render_chat(layout, MODEL, {}, {})
    for path, slot in out.origins.items():
        block = at(out.body, path)
        if isinstance(slot.content, TextPart):
            assert block == {"type": "text", "text": slot.content.text}
    paths = Counter(out.origins.values())
    assert set(paths) == set(layout.slots())
    spread = {slot.content.call_id: n for slot, n in paths.items() if isinstance(slot.content, ToolResultPart)}
    assert spread == {"call_1": 1, "call_2": 3}, "two texts of the second result, and its picture"
    assert all(n == 1 for slot, n in paths.items() if not isinstance(slot.content, ToolResultPart))


def test_reasoning_and_blocks_of_responses_stay_out(window: Window) -> None:
    layout = lay_out(window, openai.CHAT_DIALECT)
    assert {s.content.provider for s in layout.dropped if isinstance(s.content, ThinkingPart)} == {
        "anthropic",
        "openai",
        "gemini",
    }
    native = NativePart("openai", {"type": "compaction", "encrypted_content": "x"})
    assert len(messages_of(laid_out(Message.user("hi"), Message("user", (native,))))) == 2


def test_instructions_are_one_message_with_the_role_the_server_knows() -> None:
    layout = laid_out(Message.user("hi"), Message("system", (TextPart("Stop at five."),)), Message.assistant("Yes."))
    assert [m["role"] for m in messages_of(layout)] == ["developer", "user", "developer", "assistant"]
    body = openai.render_chat(layout, MODEL, {}, {}, system_role="system").body
    check_openai_chat(body)
    assert [m["role"] for m in body["messages"]] == ["system", "user", "system", "assistant"]


def test_pictures_of_results_follow_the_run_of_tool_messages() -> None:
    calls = Message("assistant", (ToolCallPart("a", "draw"), ToolCallPart("b", "print")))
    picture = ImagePart("aGk=", "image/jpeg", "cat.jpg")
    paper = DocumentPart("aGk=")
    results = Message("user", (ToolResultPart("a", (picture,)), ToolResultPart("b", (TextPart("done"), paper))))
    sent = messages_of(laid_out(Message.user("go"), calls, results, Message.user("Thanks.")))
    assert sent[2] == {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "draw", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "print", "arguments": "{}"}},
        ],
    }
    assert sent[3] == {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "[Image: cat.jpg]"}]}
    assert [p["text"] for p in sent[4]["content"]] == ["done", "[Document: unnamed]"]
    assert sent[5] == {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}},
            {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        ],
    }
    assert sent[6] == {"role": "user", "content": [{"type": "text", "text": "Thanks."}]}


def test_a_failed_call_says_so_and_an_empty_answer_too() -> None:
    calls = Message("assistant", tuple(ToolCallPart(c, "run") for c in "abc"))
    results = (
        ToolResultPart("a", (TextPart("timeout"),), is_error=True),
        ToolResultPart("b", (TextPart(" "),)),
        ToolResultPart("c", (ImagePart("aGk=", "image/png"),), is_error=True),
    )
    sent = messages_of(laid_out(Message.user("go"), calls, Message("user", results)))
    assert [[p["text"] for p in m["content"]] for m in sent if m["role"] == "tool"] == [
        [f"{openai.FAILED}\ntimeout"],
        [NO_OUTPUT],
        [openai.FAILED, "[Image: unnamed]"],
    ]


def test_arguments_are_compact_and_keep_their_order() -> None:
    call = ToolCallPart("a", "f", {"z": 1, "a": ["ü", None]})
    result = Message("user", (ToolResultPart("a", (TextPart("ok"),)),))
    sent = messages_of(laid_out(Message("assistant", (call,)), result))
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"z":1,"a":["ü",null]}'


def test_markers_stand_on_what_goes_in_and_nowhere_else(window: Window) -> None:
    layout = lay_out(window, openai.CHAT_DIALECT)
    out = openai.render_chat(layout, MODEL, dict.fromkeys(layout.slots(), "30m"), {})
    check_openai_chat(out.body)
    marked = {slot for path, slot in out.origins.items() if "prompt_cache_breakpoint" in at(out.body, path)}
    assert marked == {slot for slot in layout.slots() if openai.may_mark(slot)}
    assert {type(slot.content) for slot in set(layout.slots()) - marked} >= {ToolCallPart}
    assert {slot.role for slot in marked} >= {"user"}
    assert not any(slot.role == "assistant" for slot in marked)
    assert out.body["prompt_cache_options"] == {"mode": "explicit"}


def test_a_result_is_marked_where_it_ends(window: Window) -> None:
    layout = lay_out(window, openai.CHAT_DIALECT)
    *_, with_picture = (s for s in layout.slots() if isinstance(s.content, ToolResultPart))
    out = openai.render_chat(layout, MODEL, {with_picture: "30m"}, {})
    (place,) = (path for path in out.origins if "prompt_cache_breakpoint" in at(out.body, path))
    assert at(out.body, place)["type"] == "image_url"
    assert out.origins[place] is with_picture


@pytest.mark.parametrize(
    ("ttl", "settings", "marker"),
    [
        ("30m", {}, {"mode": "explicit"}),
        ("12h", {}, {"mode": "explicit", "ttl": "12h"}),
        ("30m", {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}, {"mode": "explicit"}),
    ],
)
def test_the_lifetime_of_a_marker(ttl: str, settings: dict[str, Any], marker: dict[str, str]) -> None:
    layout = laid_out(Message.user("hi"))
    body = openai.render_chat(layout, MODEL, {layout.system[0]: ttl}, settings).body
    check_openai_chat(body)
    assert body["messages"][0]["content"][0]["prompt_cache_breakpoint"] == marker
    assert body["prompt_cache_options"] == settings.get("prompt_cache_options", {"mode": "explicit"})


def test_without_a_marker_that_stands_older_models_see_no_new_field() -> None:
    layout = laid_out(Message.user("hi"), Message.assistant("hello"))
    answer = layout.turns[-1].slots[0]
    for markers in ({}, {answer: "30m"}):
        assert "prompt_cache" not in json.dumps(openai.render_chat(layout, MODEL, markers, {}).body)


def test_a_growing_conversation_leaves_the_earlier_messages_as_they_were(window: Window) -> None:
    context = Context("grows")
    context.foundation.add("Be brief.")
    before: list[str] = []
    for message in (
        Message.user("draw"),
        Message("assistant", (ToolCallPart("a", "draw"),)),
        Message("user", (ToolResultPart("a", (ImagePart("aGk=", "image/png"),)),)),
        Message.user("Thanks."),
        Message.assistant("You are welcome."),
    ):
        context.convo.add(message)
        layout = lay_out(context.compile(), openai.CHAT_DIALECT)
        now = [json.dumps(m) for m in openai.render_chat(layout, MODEL, {}, {}).body["messages"]]
        assert now[: len(before)] == before
        before = now
    assert len(before) == 7
