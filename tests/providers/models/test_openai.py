"""What only OpenAI says over Responses, and how settings are said to it, there and over Chat."""

import json

import pytest

from loom.core.message import (
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.errors import ContextOverflow, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.protocols.model import ModelRequest, ModelSettings
from loom.providers.models import OpenAIChatModel, OpenAIModel
from loom.testing.wire import ChatWire, ResponsesWire, Said, event, serve

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=(Message.user("hi"),))
SEARCH = ToolSpec("search", "Search the notes.")
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
NESTED = {"type": "object", "properties": {"a": OPEN}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def responses():
    with serve(ResponsesWire(), default=Said.text("Hello.")) as service:
        yield service


@pytest.fixture
async def model(responses):
    model = OpenAIModel("gpt-5.6", base_url=responses.url, api_key="test")
    yield model
    await model.aclose()


@pytest.fixture
def chat():
    with serve(ChatWire(), default=Said.text("Hello.")) as service:
        yield service


@pytest.fixture
async def chat_model(chat):
    model = OpenAIChatModel("gpt-5.6", base_url=chat.url, api_key="test")
    yield model
    await model.aclose()


async def asked(model, service, **settings):
    await model.complete(ModelRequest(messages=ASKED.messages, tools=(SEARCH,), settings=ModelSettings(**settings)))
    return service.requests[-1]


async def test_responses_settings_in_its_own_words(model, responses):
    body = await asked(model, responses, max_output=99, temperature=0.5, tool_choice="any", output_schema=CLOSED)
    assert body["max_output_tokens"] == 99
    assert body["temperature"] == 0.5
    assert body["tool_choice"] == "required"
    form = {"type": "json_schema", "name": "answer", "schema": CLOSED, "strict": True}
    assert body["text"] == {"format": form}
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


async def test_chat_settings_in_its_own_words(chat_model, chat):
    body = await asked(
        chat_model, chat, max_output=99, temperature=0.5, stop=("END",), tool_choice="any", output_schema=CLOSED
    )
    assert body["max_completion_tokens"] == 99
    assert (body["temperature"], body["stop"], body["tool_choice"]) == (0.5, ["END"], "required")
    form = {"name": "answer", "schema": CLOSED, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_whether_tools_may_be_called(model, responses, chat_model, chat, choice):
    assert (await asked(model, responses, tool_choice=choice))["tool_choice"] == choice
    assert (await asked(chat_model, chat, tool_choice=choice))["tool_choice"] == choice


async def test_which_tool_must_be_called(model, responses, chat_model, chat):
    said = (await asked(model, responses, tool_choice="search"))["tool_choice"]
    assert said == {"type": "function", "name": "search"}
    said = (await asked(chat_model, chat, tool_choice="search"))["tool_choice"]
    assert said == {"type": "function", "function": {"name": "search"}}


@pytest.mark.parametrize("schema", [OPEN, NESTED])
async def test_a_schema_that_leaves_things_open_is_not_held_to_exactly(model, responses, schema):
    body = await asked(model, responses, output_schema=schema)
    assert body["text"]["format"]["strict"] is False


async def test_responses_has_no_stop_texts_and_says_so(model, responses):
    with pytest.raises(UsageError, match=r"openai_chat:gpt-5\.6"):
        await asked(model, responses, stop=("END",))
    assert responses.requests == []


async def test_a_model_without_reasoning_is_not_asked_for_it(responses):
    model = OpenAIModel("gpt-4o", base_url=responses.url, api_key="test")
    await model.complete(ASKED)
    assert "include" not in responses.requests[-1]
    await model.aclose()


async def test_a_picture_is_sent(model, responses, chat_model, chat):
    request = ModelRequest(messages=(Message("user", (TextPart("What?"), ImagePart("aGk=", "image/png"))),))
    await model.complete(request)
    await chat_model.complete(request)
    assert responses.requests[-1]["input"][0]["content"][1]["image_url"] == "data:image/png;base64,aGk="
    assert chat.requests[-1]["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}],
            "encrypted_content": "c2VhbGVk",
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Open thoughts."}],
        },
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2hvcnQ="},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "tea"}},
    ],
    ids=["two summaries", "open reasoning", "compaction", "search"],
)
async def test_an_item_of_its_own_comes_back_verbatim(model, responses, item):
    parts = (NativePart("openai", item), TextPart("So."))
    responses.script(Said(parts=parts))
    response = await model.complete(ASKED)
    assert response.parts == parts
    await model.complete(ModelRequest(messages=(*ASKED.messages, response.message)))
    assert item in responses.requests[-1]["input"]


async def test_reasoning_is_taken_when_it_is_sealed(model, responses):
    thought = ThinkingPart("Hm.", "rs_1", "c2VhbGVk", provider="openai")
    responses.script(Said(parts=(thought, TextPart("So."))))
    assert (await model.complete(ASKED)).parts[0] == thought, "the seal of an item that has only begun is not its own"


def ends_with(*events):
    """A wire whose answers end like this."""

    class Ends(ResponsesWire):
        def frames(self, said):
            return [*super().frames(said)[:-1], *(event(data, data.get("type")) for data in events)]

    return Ends()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down"}, RateLimited),
        ({"type": "error", "code": "context_length_exceeded", "message": "Too long"}, ContextOverflow),
        ({"type": "error", "code": "server_error", "message": "Oops"}, ProviderUnavailable),
        ({"type": "error", "code": "invalid_prompt", "message": "No"}, ProviderError),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}},
            ProviderUnavailable,
        ),
        ({"type": "response.failed", "response": {"error": {"code": "bio_policy", "message": "x"}}}, ProviderError),
    ],
)
async def test_a_failure_in_the_stream(data, error):
    with serve(ends_with(data)) as service:
        service.script(Said.text("Hello."))
        model = OpenAIModel("gpt-5.6", base_url=service.url, api_key="test")
        with pytest.raises(ProviderError) as caught:
            await model.complete(ASKED)
        assert type(caught.value) is error
        await model.aclose()


async def test_a_filtered_answer_is_a_refusal():
    final = {"id": "r", "model": "m", "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    with serve(ends_with({"type": "response.incomplete", "response": final})) as service:
        service.script(Said.text("I"))
        model = OpenAIModel("gpt-5.6", base_url=service.url, api_key="test")
        response = await model.complete(ASKED)
        assert (response.text, response.stop, response.finish) == ("I", "refusal", "content_filter")
        assert response.usage.input > 0, "what is not told is estimated"
        await model.aclose()


async def test_the_phase_of_a_text_goes_back(model, responses):
    said = (TextPart("Let me look.", "commentary"), TextPart("It is tea.", "final_answer"), TextPart(" Bye."))
    responses.script(Said(parts=said), Said.text("Yes."))
    response = await model.complete(ASKED)
    assert response.parts == said
    assert response.text == "Let me look.It is tea. Bye."
    await model.complete(ModelRequest(messages=(*ASKED.messages, response.message, Message.user("Sure?"))))
    assert responses.requests[-1]["input"][1:4] == [
        {"role": "assistant", "content": "Let me look.", "phase": "commentary"},
        {"role": "assistant", "content": "It is tea.", "phase": "final_answer"},
        {"role": "assistant", "content": " Bye."},
    ]


async def test_reasoning_without_an_id_is_kept_as_it_is(model, responses):
    item = {"type": "reasoning", "summary": [], "encrypted_content": "c2VhbGVk"}
    responses.script(Said(parts=(NativePart("openai", item), TextPart("Tea."))), Said.text("Yes."))
    response = await model.complete(ASKED)
    assert response.parts == (NativePart("openai", item), TextPart("Tea."))
    await model.complete(ModelRequest(messages=(*ASKED.messages, response.message, Message.user("Sure?"))))
    assert responses.requests[-1]["input"][1] == item


@pytest.mark.parametrize("input", ['{"q": "te', ["tea"]], ids=["cut off", "a list"])
async def test_a_call_goes_back_with_an_object_whatever_the_model_sent(model, responses, chat_model, chat, input):
    said = Message("assistant", (ToolCallPart("a", "search", input),))
    asked = ModelRequest(messages=(*ASKED.messages, said, Message("user", (ToolResultPart("a", "no"),))))
    await model.complete(asked)
    await chat_model.complete(asked)
    sent = (responses.requests[-1]["input"][1], chat.requests[-1]["messages"][1]["tool_calls"][0]["function"])
    assert [json.loads(call["arguments"]) for call in sent] == [{"input": input}] * 2
