"""The checks themselves: what a provider would refuse, they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from loom.context.render import anthropic, gemini, openai
from loom.context.render.layout import lay_out
from loom.core.window import Window
from tests.context.render import sdk

Body = dict[str, Any]
RENDERERS = {
    "anthropic": (anthropic.render, anthropic.DIALECT, sdk.check_anthropic),
    "openai_chat": (openai.render_chat, openai.CHAT_DIALECT, sdk.check_openai_chat),
    "openai_responses": (openai.render_responses, openai.RESPONSES_DIALECT, sdk.check_openai_responses),
    "gemini": (gemini.render, gemini.DIALECT, sdk.check_gemini),
}


def put(path: str, key: str | int, value: Any) -> Callable[[Body], None]:
    return lambda body: sdk.at(body, path).__setitem__(key, value)


def drop(path: str, key: str) -> Callable[[Body], None]:
    return lambda body: sdk.at(body, path).pop(key)


def add(path: str, value: Any) -> Callable[[Body], None]:
    return lambda body: sdk.at(body, path).append(value)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}

WRONG = [
    ("anthropic", put("system[0]", "cache_control", {"type": "ephemeral", "ttl": "30m"}), "'30m' is not one of"),
    ("anthropic", put("messages[0].content[0]", "note", 1), "has no key note"),
    ("anthropic", put("tools[0]", "strictly", True), "has no key strictly"),
    ("anthropic", add("system", IMAGE), "system"),
    ("anthropic", put("messages[0].content[1].source", "media_type", "image/bmp"), "'image/bmp' is not one of"),
    ("anthropic", drop("messages[2].content[0]", "tool_use_id"), "needs tool_use_id"),
    ("anthropic", put("messages[0]", "content", []), "content is empty"),
    ("anthropic", put("messages[0].content[0]", "text", " "), "text is blank"),
    ("anthropic", drop("messages[0]", "role"), "messages"),
    ("anthropic", drop(".", "max_tokens"), "needs max_tokens"),
    ("anthropic", put(".", "max_tokens", "many"), "'many' is not int"),
    ("openai_chat", drop("messages[3]", "tool_call_id"), "needs tool_call_id"),
    ("openai_chat", add("messages[3].content", {"type": "image_url", "image_url": {"url": "data:"}}), "content"),
    ("openai_chat", put("messages[0].content[0]", "prompt_cache_breakpoint", {"mode": "implicit"}), "is not one of"),
    ("openai_chat", put("messages[0].content[0]", "cache_control", {"type": "ephemeral"}), "has no key cache_control"),
    ("openai_chat", put("messages[2].tool_calls[0].function", "arguments", {}), "is not str"),
    ("openai_chat", put(".", "input", "hi"), "has no key input"),
    (
        "openai_responses",
        put("input[0].content[0]", "prompt_cache_breakpoint", {"mode": "explicit", "ttl": "1h"}),
        "'1h'",
    ),
    ("openai_responses", put("input[0].content[0]", "type", "text"), "is none of"),
    ("openai_responses", put("input[2]", "note", 1), "has no key note"),
    ("openai_responses", drop("input[2]", "id"), "needs id"),
    ("openai_responses", drop("tools[0]", "strict"), "needs strict"),
    ("openai_responses", add("input", {"role": "tool", "content": "x"}), "input"),
    ("openai_responses", put("input[6]", "output", []), "output is empty"),
    ("gemini", put("contents[0]", "role", "assistant"), "role"),
    ("gemini", put("contents[0].parts[0]", "note", 1), "Extra inputs are not permitted"),
    ("gemini", put("config", "max_tokens", 5), "Extra inputs are not permitted"),
    (
        "gemini",
        put("config.system_instruction", "parts", [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}]),
        "only text",
    ),
    ("gemini", add("contents", {"role": "user", "parts": []}), "parts is empty"),
    ("gemini", add("contents[0].parts", {"text": ""}), "blank"),
    (
        "gemini",
        add("contents[0].parts", {"text": "x", "inline_data": {"mime_type": "image/png", "data": "aGk="}}),
        "one thing",
    ),
    ("gemini", drop("contents[2].parts[0].function_response", "name"), "names its tool"),
    ("gemini", put(".", "tools", []), "the keys are"),
]


@pytest.mark.parametrize(("name", "spoil", "reason"), WRONG)
def test_a_wrong_body_is_refused(window: Window, name: str, spoil: Callable[[Body], None], reason: str) -> None:
    render, dialect, check = RENDERERS[name]
    body = render(lay_out(window, dialect), "m", {}, {}).body
    check(body)
    spoiled = copy.deepcopy(body)
    spoil(spoiled)
    assert spoiled != body
    with pytest.raises(AssertionError, match=reason):
        check(spoiled)


@pytest.mark.parametrize("name", RENDERERS)
def test_what_is_not_json_is_refused(window: Window, name: str) -> None:
    render, dialect, check = RENDERERS[name]
    body = render(lay_out(window, dialect), "m", {}, {"metadata": b"bytes"}).body
    with pytest.raises(TypeError, match="bytes"):
        check(body)
