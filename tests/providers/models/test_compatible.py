"""Servers that speak the Chat form in their own way, and how they are addressed."""

import pytest

from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolSpec, Usage
from loom.errors import ProviderError, UsageError
from loom.protocols.model import ModelRequest, ModelSettings, ThinkingChunk
from loom.providers.models import CompatibleModel
from loom.session.session import Session
from loom.testing.conformance.model import drained
from loom.testing.wire import ChatWire, Said, event, serve

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=(Message.user("hi"),))
CALL = {"name": "search", "arguments": '{"q": "tea"}'}


class Chunks(ChatWire):
    """Says these chunks, whatever it is asked."""

    def __init__(self, *chunks):
        self.chunks = chunks

    def frames(self, said):
        return [*(event({"id": "x", "object": "chat.completion.chunk", **chunk}) for chunk in self.chunks)]


def delta(finish=None, **delta):
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def answer(*chunks, request=ASKED):
    with serve(Chunks(*chunks), default=Said()) as service:
        model = CompatibleModel("qwen3", base_url=service.url)
        chunks, response = await drained(model, request)
        await model.aclose()
    return chunks, response


async def test_calls_that_are_not_numbered_are_told_apart_by_their_ids():
    calls = [delta(tool_calls=[{"id": id, "function": CALL}]) for id in ("a", "b")]
    _, response = await answer(*calls, delta("stop"))
    assert response.tool_calls == (ToolCallPart("a", "search", {"q": "tea"}), ToolCallPart("b", "search", {"q": "tea"}))
    assert response.stop == "tool", "whatever the server calls it"


async def test_calls_without_ids_get_their_own():
    calls = [delta(tool_calls=[{"index": n, "id": "", "function": CALL}]) for n in range(2)]
    _, response = await answer(*calls, delta("tool_calls"))
    assert [call.name for call in response.tool_calls] == ["search", "search"]
    assert len({call.id for call in response.tool_calls}) == 2
    assert all(call.id for call in response.tool_calls)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_shown(field):
    chunks, response = await answer(delta(**{field: "Hm. "}), delta(**{field: "Tea."}), delta("stop", content="Tea!"))
    assert response.parts == (ThinkingPart("Hm. Tea.", provider="compatible"), TextPart("Tea!"))
    assert [c.text for c in chunks if isinstance(c, ThinkingChunk)] == ["Hm. ", "Tea."]


async def test_content_may_be_a_list_of_parts():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. "}, {"type": "text", "text": "Tea."}]}
    text = {"type": "text", "text": "Tea!"}
    chunks, response = await answer(delta(content=[thought]), delta(content=[text]), delta("stop", content=" Hot."))
    assert response.parts == (ThinkingPart("Hm. Tea.", provider="compatible"), TextPart("Tea! Hot."))
    assert [c.text for c in chunks if isinstance(c, ThinkingChunk)] == ["Hm. Tea."]


async def test_the_input_of_a_call_may_be_an_object():
    function = {"name": "search", "arguments": {"q": "tea"}}
    _, response = await answer(delta(tool_calls=[{"index": 0, "id": "a", "function": function}]), delta("stop"))
    assert response.tool_calls == (ToolCallPart("a", "search", {"q": "tea"}),)


async def test_usage_that_is_not_told_is_estimated():
    tools = (ToolSpec("search", "Search the notes. " * 20),)
    request = ModelRequest(messages=(Message.user("word " * 100),), system=("Be brief.",), tools=tools)
    _, response = await answer(delta("stop", content="Hello there."), request=request)
    assert response.usage.input > 150
    assert 0 < response.usage.output < 20
    assert (response.usage.cache_read, response.usage.cache_write) == (0, 0)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 36,
            },
            Usage(input=100, output=5, cache_read=64),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 70}},
            Usage(input=100, output=5, cache_read=70),
        ),
        ({"prompt_tokens": 100, "completion_tokens": None, "prompt_tokens_details": None}, Usage(input=100)),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 70}},
            Usage(input=10, output=5, cache_read=10),
        ),
    ],
    ids=["DeepSeek", "OpenAI", "nulls", "more cached than sent"],
)
async def test_usage_as_others_tell_it(told, usage):
    _, response = await answer(delta("stop", content="Hello."), {"model": "m", "choices": [], "usage": told})
    assert response.usage == usage


async def test_only_the_first_of_several_answers_is_read():
    second = {"model": "m", "choices": [{"index": 1, "delta": {"content": "Two"}, "finish_reason": "stop"}]}
    _, response = await answer(delta(content="One"), second, delta("stop"))
    assert response.text == "One"


async def test_the_address_and_key_come_from_the_environment(monkeypatch):
    with serve(ChatWire(), default=Said.text("Hello.")) as service:
        monkeypatch.setenv("LOOM_BASE_URL", service.url)
        monkeypatch.setenv("LOOM_API_KEY", "the-key")
        model = CompatibleModel("qwen3")
        await model.complete(ModelRequest(messages=ASKED.messages, settings=ModelSettings(max_output=9)))
        assert service.headers[-1]["authorization"] == "Bearer the-key"
        assert service.requests[-1]["max_tokens"] == 9
        await model.aclose()


async def test_a_key_is_not_sent_to_another_address(monkeypatch):
    for name in ("LOOM_API_KEY", "OPENAI_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.setenv(name, "secret")
    with serve(ChatWire(), default=Said.text("Hello.")) as service:
        for service_name in (None, "ollama", "deepseek"):
            model = CompatibleModel("m", service=service_name, base_url=service.url)
            await model.complete(ASKED)
            assert "secret" not in str(service.headers[-1])
            await model.aclose()


async def test_a_service_that_wants_a_key_says_which(monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    model = CompatibleModel("deepseek-chat", service="deepseek")
    with pytest.raises(ProviderError, match="DEEPSEEK_API_KEY"):
        await model.complete(ASKED)


def test_it_needs_an_address(monkeypatch):
    monkeypatch.delenv("LOOM_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="LOOM_BASE_URL"):
        CompatibleModel("qwen3")
    with pytest.raises(UsageError, match="ollama"):
        CompatibleModel("qwen3", service="olama")


@pytest.mark.parametrize(
    ("service", "name"), [(None, "compatible:m"), ("ollama", "compatible:m"), ("vllm", "vllm:m"), ("xai", "xai:m")]
)
def test_a_service_that_the_catalogue_knows_keeps_its_name(service, name):
    assert CompatibleModel("m", service=service, base_url="http://127.0.0.1:1/v1").name == name


async def test_a_call_may_say_its_name_late():
    first = delta(tool_calls=[{"index": 0, "id": "a", "function": {"arguments": ""}}])
    _, response = await answer(first, delta(tool_calls=[{"index": 0, "function": CALL}]), delta("tool_calls"))
    assert response.tool_calls == (ToolCallPart("a", "search", {"q": "tea"}),)


async def test_reasoning_that_is_empty_is_none():
    chunks, response = await answer(delta(reasoning="", content="Tea!"), delta("stop"))
    assert response.parts == (TextPart("Tea!"),)
    assert not [chunk for chunk in chunks if isinstance(chunk, ThinkingChunk)]


@pytest.mark.parametrize("arguments", ['{"q": 1e999}', '{"q": NaN}', "[" * 5000], ids=["too large", "NaN", "too deep"])
async def test_an_input_that_could_not_be_sent_back_stays_text(arguments):
    call = {"index": 0, "id": "a", "function": {"name": "search", "arguments": arguments}}
    _, response = await answer(delta(tool_calls=[call]), delta("tool_calls"))
    assert response.tool_calls == (ToolCallPart("a", "search", arguments),)


@pytest.mark.parametrize("service", ["deepseek", "xai"])
async def test_reasoning_goes_back_to_those_who_want_it(service):
    thinking = ThinkingPart("Search first.", provider=service)
    rounds = [
        Said.calls(thinking, TextPart("Looking."), ToolCallPart("a", "search", {"q": "tea"}), id="a1"),
        Said.calls(ToolCallPart("b", "search", {"q": "milk"}), id="a2"),
        Said(parts=(ThinkingPart("Enough.", provider=service), TextPart("Tea and milk.")), id="a3"),
        Said.text("Bye."),
    ]
    with serve(ChatWire()) as server:
        server.script(*rounds)
        model = CompatibleModel("some-model", service=service, base_url=server.url)
        session = Session(model=model, tools=[Search()])
        await session.send("What have I got?")
        await session.send("Bye")
        await model.aclose()
    answers = [message for message in server.requests[-1]["messages"] if message["role"] == "assistant"]
    assert [message.get("reasoning_content") for message in answers] == ["Search first.", "", "Enough."]
    assert [len(message.get("tool_calls", ())) for message in answers] == [1, 1, 0]


async def test_reasoning_does_not_go_back_to_others():
    with serve(ChatWire()) as server:
        server.script(Said.calls(ThinkingPart("Hm."), ToolCallPart("a", "search", {"q": "tea"})), Said.text("Tea."))
        model = CompatibleModel("qwen3", base_url=server.url)
        await Session(model=model, tools=[Search()]).send("What have I got?")
        await model.aclose()
    assert not [message for message in server.requests[-1]["messages"] if "reasoning_content" in message]


class Search:
    """A tool that finds what it is asked for."""

    def __init__(self):
        self.spec = ToolSpec("search", "Search the notes.", {"type": "object"})

    async def run(self, input):
        return f"found {input['q']}"
