"""What only Claude says, and how settings are said to it."""

import pytest

from loom.core.message import ImagePart, Message, NativePart, TextPart, ToolCallPart, ToolSpec
from loom.errors import BadResponse
from loom.protocols.model import ModelRequest, ModelSettings, Rendered
from loom.providers.models import AnthropicModel
from loom.testing.wire import AnthropicWire, Refused, Said, event, serve

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=(Message.user("hi"),))
SEARCH = ToolSpec("search", "Search the notes.")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
SERVER_TOOL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tea"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "https://tea.example", "title": "Tea", "encrypted_content": "eA=="}
    ],
}


@pytest.fixture
def service():
    with serve(AnthropicWire(), default=Said.text("Hello.")) as service:
        yield service


@pytest.fixture
async def model(service):
    model = AnthropicModel("claude-sonnet-5", base_url=service.url, api_key="test")
    yield model
    await model.aclose()


async def asked(model, service, **settings):
    tools = (SEARCH,) if settings.pop("tools", True) else ()
    await model.complete(ModelRequest(messages=ASKED.messages, tools=tools, settings=ModelSettings(**settings)))
    return service.requests[-1]


async def test_settings_in_its_own_words(model, service):
    body = await asked(
        model, service, max_output=99, temperature=0.5, stop=("END",), tool_choice="any", output_schema=SCHEMA
    )
    assert body["max_tokens"] == 99
    assert body["temperature"] == 0.5
    assert body["stop_sequences"] == ["END"]
    assert body["tool_choice"] == {"type": "any"}
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert body["stream"] is True


async def test_it_always_has_a_limit(model, service):
    body = await asked(model, service)
    assert body["max_tokens"] == 4096
    assert "temperature" not in body
    assert "output_config" not in body


@pytest.mark.parametrize(
    ("choice", "said"),
    [("auto", {"type": "auto"}), ("none", {"type": "none"}), ("search", {"type": "tool", "name": "search"})],
)
async def test_which_tool_may_be_called(model, service, choice, said):
    assert (await asked(model, service, tool_choice=choice))["tool_choice"] == said


async def test_without_tools_there_is_nothing_to_choose(model, service):
    assert "tool_choice" not in await asked(model, service, tools=False, tool_choice="any")


async def test_what_is_set_beside_counts_more(model, service):
    body = await asked(model, service, max_output=5, extra={"max_tokens": 6, "thinking": {"type": "adaptive"}})
    assert body["max_tokens"] == 6
    assert body["thinking"] == {"type": "adaptive"}


async def test_a_rendered_body_is_sent_unchanged_but_for_transport(model, service):
    body = {
        "model": "another-name",
        "max_tokens": 7,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "exactly  this\n"}]}],
    }
    await model.complete(ModelRequest(messages=ASKED.messages, rendered=Rendered("anthropic", body)))
    assert service.requests[-1] == {**body, "model": "claude-sonnet-5", "stream": True}
    assert body["model"] == "another-name", "and the body itself is left alone"


async def test_a_body_for_another_provider_is_not_sent(model, service):
    await model.complete(ModelRequest(messages=ASKED.messages, rendered=Rendered("openai", {"input": []})))
    assert "input" not in service.requests[-1]
    assert service.requests[-1]["messages"][0]["content"][0]["text"] == "hi"


async def test_a_picture_is_sent(model, service):
    picture = Message("user", (TextPart("What is it?"), ImagePart("aGk=", "image/png")))
    await model.complete(ModelRequest(messages=(picture,)))
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    blocks = service.requests[-1]["messages"][0]["content"]
    assert [block.get("source") for block in blocks] == [None, source]


async def test_a_paused_turn_comes_back_whole_with_its_own_blocks(model, service):
    parts = (TextPart("I look it up."), NativePart("anthropic", SERVER_TOOL), NativePart("anthropic", FOUND))
    service.script(Said(parts=parts, stop="pause"))
    response = await model.complete(ASKED)
    assert (response.stop, response.parts) == ("pause", parts)
    await model.complete(ModelRequest(messages=(*ASKED.messages, response.message)))
    sent = service.requests[-1]["messages"][-1]
    assert [{k: v for k, v in block.items() if k != "cache_control"} for block in sent["content"][1:]] == [
        SERVER_TOOL,
        FOUND,
    ]


@pytest.mark.parametrize(
    ("reason", "stop"),
    [("stop_sequence", "stop_sequence"), ("model_context_window_exceeded", "length"), ("something_new", "end")],
)
async def test_why_it_ended(reason, stop):
    class Ends(AnthropicWire):
        def frames(self, said):
            return [frame.replace(b'"max_tokens"', f'"{reason}"'.encode()) for frame in super().frames(said)]

    with serve(Ends()) as service:
        service.script(Said.text("So far.", stop="length"))
        model = AnthropicModel("claude-sonnet-5", base_url=service.url, api_key="test")
        response = await model.complete(ASKED)
        assert (response.text, response.stop, response.finish) == ("So far.", stop, reason)
        await model.aclose()


async def test_events_and_blocks_nobody_knows_yet_do_no_harm():
    class Newer(AnthropicWire):
        def frames(self, said):
            first, *rest = super().frames(said)
            block = {"type": "compaction", "content": None, "signature": None}
            new = [
                {"type": "content_block_start", "index": 7, "content_block": block},
                {"type": "content_block_delta", "index": 7, "delta": {"type": "compaction_delta", "content": "In "}},
                {"type": "content_block_delta", "index": 7, "delta": {"type": "compaction_delta", "content": "short"}},
                {"type": "content_block_stop", "index": 7},
                {"type": "progress_report", "percent": 3},
            ]
            return [first, *(event(data, data["type"]) for data in new), *rest]

    with serve(Newer()) as service:
        service.script(Said.text("Hello."))
        model = AnthropicModel("claude-sonnet-5", base_url=service.url, api_key="test")
        response = await model.complete(ASKED)
        assert response.text == "Hello."
        block = {"type": "compaction", "content": "In short", "signature": None}
        assert response.parts[1:] == (NativePart("anthropic", block),)
        await model.aclose()


async def test_a_page_in_place_of_a_stream_is_not_an_answer(model, service):
    service.script(Refused(200, b"<html>Log in to continue</html>", {"content-type": "text/html"}))
    with pytest.raises(BadResponse, match="ended before an answer began; check the address"):
        await model.complete(ASKED)


async def test_an_answer_that_says_it_is_whole_and_not_why_it_ended_is_unreadable(model, service):
    service.script(Refused(200, event({"type": "message_stop"}, "message_stop"), {"content-type": "text/event-stream"}))
    with pytest.raises(BadResponse, match="without a stop_reason"):
        await model.complete(ASKED)


async def test_two_calls_with_a_text_between_keep_their_order(model, service):
    parts = (ToolCallPart("a", "search", {"q": 1}), TextPart("and"), ToolCallPart("b", "search", [1, 2]))
    service.script(Said.calls(*parts))
    assert (await model.complete(ASKED)).parts == (parts[0], parts[1], ToolCallPart("b", "search", [1, 2]))
