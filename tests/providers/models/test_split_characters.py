"""Characters that a stream cuts in two: servers that count in UTF-16 send the halves of one in two events."""

import json

import pytest

from loom import Agent
from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart
from loom.protocols.model import ModelRequest, TextChunk, ThinkingChunk
from loom.providers.models import GeminiModel
from loom.testing.conformance.model import drained
from loom.testing.wire import GeminiWire, Said, serve
from tests.providers.models.served import KINDS, Kind

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=(Message.user("hi"),))
PIECES = {
    "whole": (["Tea \ud83c", "\udf75!"], "Tea \U0001f375!"),
    "lost": (["Tea \ud83c", "!"], "Tea \ufffd!"),
    "at the end": (["Tea", " \ud83c"], "Tea \ufffd"),
    "the second only": (["Tea ", "\udf75!"], "Tea \ufffd!"),
}


def chat(pieces):
    deltas = [*({"content": piece} for piece in pieces), *({"reasoning": piece} for piece in pieces)]
    steps = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [{"id": "x", "object": "chat.completion.chunk", "model": "m", **step} for step in (*steps, end)]


def anthropic(pieces):
    usage = {"input_tokens": 5, "output_tokens": 1}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    steps = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in pieces
    ]
    return [
        {"type": "message_start", "message": {"id": "m", "model": "m", "content": [], "usage": usage}},
        block,
        *steps,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]


def responses(pieces):
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
    item = {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}
    steps = [{"type": "response.output_text.delta", "item_id": "msg", "delta": piece} for piece in pieces]
    done = {"id": "r", "model": "m", "output": [item], "usage": {"input_tokens": 5, "output_tokens": 1}}
    return [
        *steps,
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": done},
    ]


def gemini(pieces):
    parts = [[{"text": piece}] for piece in pieces]
    steps = [{"candidates": [{"content": {"role": "model", "parts": part}, "index": 0}]} for part in parts]
    return [*steps, {"candidates": [{"finishReason": "STOP", "index": 0}]}]


WAYS = {"compatible": chat, "anthropic": anthropic, "openai": responses, "gemini": gemini}
GEMINI = Kind(GeminiModel, "gemini-3-pro", GeminiWire)


def served_raw(kind, events):
    class Raw(kind.wire):  # pyright: ignore[reportUntypedBaseClass]
        def frames(self, said):
            heads = (f"event: {event['type']}\n" if "type" in event else "" for event in events)
            return [f"{head}data: {json.dumps(event)}\n\n".encode() for head, event in zip(heads, events, strict=True)]

    return serve(Raw(), default=Said())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", PIECES)
async def test_a_text_is_whole_in_the_stream_and_in_the_answer(way, cut):
    pieces, text = PIECES[cut]
    kind = {**KINDS, "gemini": GEMINI}[way]
    with served_raw(kind, WAYS[way](pieces)) as service:
        model = kind.model(kind.name, base_url=service.url, api_key="test")
        chunks, response = await drained(model, ASKED)
        await model.aclose()
    assert response.text == text
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == text
    for chunk in chunks:
        if isinstance(chunk, TextChunk | ThinkingChunk):
            chunk.text.encode()
    assert response.usage.input, "told or estimated"
    assert response.parts
    for part in response.parts:
        assert isinstance(part, TextPart | ThinkingPart)
        assert part.text == text


async def test_half_a_character_in_a_call_does_not_end_the_conversation():
    kind = KINDS["compatible"]
    function = {"name": "search", "arguments": '{"q": "tea \\ud83c"}'}
    steps = [
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": function}]}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    ]
    events = [{"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [step]} for step in steps]
    with served_raw(kind, events) as service:
        model = kind.model(kind.name, base_url=service.url, api_key="test")
        result = await Agent(model=model, config={"max_steps": 2}).run("hi")
        response = await model.complete(ASKED)
        await model.aclose()
    assert result.stop == "steps"
    assert response.tool_calls == (ToolCallPart("a", "search", {"q": "tea \ufffd"}),)
