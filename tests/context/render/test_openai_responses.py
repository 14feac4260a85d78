"""The Responses renderer. `LOOM_REWRITE_GOLDENS=1 pytest tests/context/render` rewrites the goldens; read the diff then."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from loom.context.context import Context
from loom.context.render import openai
from loom.context.render.layout import Layout, lay_out
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
from tests.context.render.sdk import at, check_openai_responses

MODEL = "gpt-5.6"


def laid_out(*messages: Message) -> Layout:
    context = Context("test")
    context.foundation.add("Be brief.")
    for message in messages:
        context.convo.add(message)
    return lay_out(context.compile(), openai.RESPONSES_DIALECT)


def items_of(layout: Layout) -> list[dict[str, Any]]:
    body = openai.render_responses(layout, MODEL, {}, {}).body
    check_openai_responses(body)
    return body["input"]


def test_golden(window: Window, golden, marks) -> None:
    layout = lay_out(window, openai.RESPONSES_DIALECT)
    markers = marks(layout, openai.may_mark, "12h", "30m")
    settings = {"store": False, "include": ["reasoning.encrypted_content"]}
    body = openai.render_responses(layout, MODEL, markers, settings).body
    check_openai_responses(body)
    golden("openai_responses", body)


def test_two_renders_are_equal_bytes(window: Window) -> None:
    dialect = openai.RESPONSES_DIALECT
    first, second = (openai.render_responses(lay_out(window, dialect), MODEL, {}, {}).body for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_every_slot_is_found_where_the_origins_say(window: Window) -> None:
    layout = lay_out(window, openai.RESPONSES_DIALECT)
    out = openai.render_responses(layout, MODEL, {}, {})
    for path, slot in out.origins.items():
        block = at(out.body, path)
        if isinstance(slot.content, TextPart):
            assert block in (slot.content.text, {"type": "input_text", "text": slot.content.text})
    paths = Counter(out.origins.values())
    assert set(paths) == set(layout.slots())
    several = {
        slot.content.call_id: n for slot, n in paths.items() if isinstance(slot.content, ToolResultPart) and n > 1
    }
    assert several == {"call_2": 2}, "a text and a picture"
    assert sum(paths.values()) == len(list(layout.slots())) + 1


def test_an_exchange_becomes_items() -> None:
    calls = (
        ThinkingPart("Look.", "rs_1", "sealed", "openai"),
        TextPart("I look."),
        ToolCallPart("c", "see", {"b": 1, "a": 2}),
    )
    seen = (TextPart("a cat"), ImagePart("aGk=", "image/png", "cat.png"), DocumentPart("aGk=", name="cat.pdf"))
    items = items_of(
        laid_out(
            Message.user("What is it?"), Message("assistant", calls), Message("user", (ToolResultPart("c", seen),))
        )
    )
    assert items == [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "What is it?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Look."}],
            "encrypted_content": "sealed",
        },
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c", "name": "see", "arguments": '{"b":1,"a":2}'},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [
                {"type": "input_text", "text": "a cat"},
                {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aGk="},
                {"type": "input_file", "filename": "cat.pdf", "file_data": "data:application/pdf;base64,aGk="},
            ],
        },
    ]


def test_reasoning_comes_back_only_under_its_id() -> None:
    without_id = ThinkingPart("I guess.", redacted="sealed", provider="openai")
    without_text = ThinkingPart(signature="rs_2", provider="openai")
    foreign = ThinkingPart("Mine.", "sig", provider="anthropic")
    layout = laid_out(Message.user("hi"), Message("assistant", (without_id, without_text, foreign, TextPart("Yes."))))
    assert [slot.content for slot in layout.dropped] == [without_id, foreign]
    assert items_of(layout)[2:] == [
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"role": "assistant", "content": "Yes."},
    ]


def test_a_compaction_block_comes_back_verbatim_and_stands_for_what_it_covers() -> None:
    block = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}
    items = items_of(
        laid_out(Message.user("old"), Message("user", (NativePart("openai", block),)), Message.user("new"))
    )
    assert items[1:] == [block, {"role": "user", "content": [{"type": "input_text", "text": "new"}]}]


def test_markers_stand_on_what_goes_in_and_nowhere_else(window: Window) -> None:
    layout = lay_out(window, openai.RESPONSES_DIALECT)
    out = openai.render_responses(layout, MODEL, dict.fromkeys(layout.slots(), "12h"), {})
    check_openai_responses(out.body)
    marked = [path for path in out.origins if "prompt_cache_breakpoint" in at(out.body, path)]
    assert {out.origins[path] for path in marked} == {s for s in layout.slots() if openai.may_mark(s)}
    assert len(marked) == len({out.origins[path] for path in marked}), "one marker for each slot"
    kinds = {type(slot.content) for slot in layout.slots() if not openai.may_mark(slot)}
    assert {ToolCallPart, ThinkingPart, TextPart} <= kinds
    assert marked
    assert all(at(out.body, path)["prompt_cache_breakpoint"] == {"mode": "explicit", "ttl": "12h"} for path in marked)


def test_the_end_of_a_result_carries_its_marker(window: Window) -> None:
    layout = lay_out(window, openai.RESPONSES_DIALECT)
    *_, result = (s for s in layout.slots() if isinstance(s.content, ToolResultPart))
    out = openai.render_responses(layout, MODEL, {result: "30m"}, {})
    (place,) = (path for path in out.origins if "prompt_cache_breakpoint" in at(out.body, path))
    assert place.endswith(".output[1]")
    assert at(out.body, place)["type"] == "input_image"


def test_the_callers_cache_options_stay_and_set_what_a_marker_has_to_say() -> None:
    layout = laid_out(Message.user("hi"))
    markers = {layout.system[0]: "30m"}
    options = {"mode": "implicit", "ttl": "12h"}
    body = openai.render_responses(layout, MODEL, markers, {"prompt_cache_options": options}).body
    check_openai_responses(body)
    assert body["prompt_cache_options"] == options
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit", "ttl": "30m"}
    assert openai.render_responses(layout, MODEL, markers, {}).body["prompt_cache_options"] == {"mode": "explicit"}
    assert "prompt_cache" not in json.dumps(openai.render_responses(layout, MODEL, {}, {}).body)


def test_reasoning_that_led_to_nothing_stays_out() -> None:
    """OpenAI refuses a reasoning item without the one that it led to: an answer may be cut off inside its reasoning."""
    thought = ThinkingPart("a", "rs_1", "sealed", provider="openai")
    native = NativePart("openai", {"type": "reasoning", "id": "rs_2", "summary": [], "content": []})
    cut = Message("assistant", (thought, TextPart("so far"), thought, native))
    whole = Message("assistant", (thought, ToolCallPart("c", "run")))
    result = Message("user", (ToolResultPart("c", "done"),))  # pyright: ignore[reportArgumentType]
    layout = laid_out(Message.user("hi"), cut, Message.user("go on"), Message("assistant", (thought,)), whole, result)
    assert [slot.content for slot in layout.dropped] == [native, thought, thought]
    kinds = [item.get("type", item.get("role")) for item in items_of(layout)]
    assert kinds[1:] == ["user", "reasoning", "assistant", "user", "reasoning", "function_call", "function_call_output"]
