"""GeminiModel: the real client against a loopback server that speaks the wire of Gemini."""

import base64
import json
from dataclasses import replace

import pytest

from loom.core.clock import RecordIds
from loom.core.message import (
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    Usage,
)
from loom.errors import BadResponse, ContextOverflow, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.protocols.model import (
    Model,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Rendered,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from loom.providers.models.gemini import GeminiModel
from loom.testing.conformance import WireModelSuite
from loom.testing.wire import GeminiWire, Refused, Said, serve

pytestmark = pytest.mark.anyio

SEAL = base64.urlsafe_b64encode(b"\xfb\xff seal").decode()
PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
ASK = ModelRequest(messages=(Message.user("How is Lisbon?"),), system=("Be brief.",))
WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def says(*parts, finish=None, **more):
    """One response with some parts, as the service spells it."""
    candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 12, "cachedContentTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}
    told = {"usageMetadata": usage} if finish else {}
    return {"candidates": [candidate], "modelVersion": "gemini-x-001", "responseId": "r1", **told, **more}


OK = says({"text": "ok"}, finish="STOP")


def raw(*responses):
    """A stream of these very responses."""
    body = "".join(f"data: {json.dumps(response)}\n\n" for response in responses)
    return Refused(200, body.encode(), {"content-type": "text/event-stream"})


@pytest.fixture
def service():
    with serve(GeminiWire()) as service:
        yield service


@pytest.fixture
async def model(service):
    model = GeminiModel("gemini-3.8-flash", base_url=service.url)
    yield model
    await model.aclose()
    await model.aclose()


async def read(model, request):
    return [chunk async for chunk in model.stream(request)]


def call(name, args, **more):
    return {"functionCall": {"name": name, "args": args, **more}}


def test_a_model_needs_a_name():
    with pytest.raises(UsageError, match="gemini:MODEL"):
        GeminiModel("")


def test_it_is_a_model(service):
    model = GeminiModel("gemini-3.8-flash", base_url=service.url)
    assert isinstance(model, Model)
    assert model.name == "gemini:gemini-3.8-flash"


async def test_text_streams_and_equals_the_whole_answer(service, model):
    events = [says({"text": "It is "}), says({"text": "sunny."}, finish="STOP")]
    service.script(raw(*events), raw(*events))
    whole = await model.complete(ASK)
    *chunks, last = await read(model, ASK)
    assert chunks == [TextChunk("It is "), TextChunk("sunny.")]
    assert last == whole
    assert whole == ModelResponse(
        parts=(TextPart("It is sunny."),),
        stop="end",
        usage=Usage(input=12, output=7, cache_read=5),
        model="gemini-x-001",
        id="r1",
        finish="STOP",
    )


async def test_what_is_sent(service, model):
    service.script(raw(OK))
    settings = ModelSettings(
        max_output=99,
        temperature=0.5,
        stop=("END",),
        tool_choice="weather",
        extra={"thinking_config": {"include_thoughts": True}},
    )
    picture = Message("user", (TextPart("See:"), ImagePart(PIXEL, "image/png")))
    await model.complete(replace(ASK, messages=(picture,), tools=(WEATHER,), settings=settings))
    sent = service.requests[0]
    assert sent["contents"] == [
        {"role": "user", "parts": [{"text": "See:"}, {"inlineData": {"mime_type": "image/png", "data": PIXEL}}]}
    ]
    assert sent["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert sent["tools"][0]["functionDeclarations"][0]["name"] == "weather"
    assert sent["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": ["weather"]}
    assert sent["generationConfig"] == {
        "maxOutputTokens": 99,
        "temperature": 0.5,
        "stopSequences": ["END"],
        "thinkingConfig": {"include_thoughts": True},
    }


async def test_a_body_that_was_made_already_is_sent_as_it_is(service, model):
    service.script(raw(OK))
    body = {"model": "x", "contents": [{"role": "user", "parts": [{"text": "mine"}]}], "config": {"seed": 7}}
    await model.complete(replace(ASK, rendered=Rendered("gemini", body)))
    sent = service.requests[0]
    assert sent["contents"] == body["contents"]
    assert sent["generationConfig"] == {"seed": 7}
    assert "systemInstruction" not in sent


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("none", "NONE"), ("any", "ANY")])
async def test_tool_choices(service, model, choice, mode):
    service.script(raw(OK))
    await model.complete(replace(ASK, tools=(WEATHER,), settings=ModelSettings(tool_choice=choice)))
    assert service.requests[0]["toolConfig"]["functionCallingConfig"] == {"mode": mode}


async def test_structured_output(service, model):
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    service.script(raw(says({"text": '{"sky": "blue"}'}, finish="STOP")))
    response = await model.complete(replace(ASK, settings=ModelSettings(output_schema=schema)))
    assert response.text == '{"sky": "blue"}'
    config = service.requests[0]["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"] == schema


async def test_parallel_calls_without_ids_get_unique_ones_that_pair_with_results(service, model):
    calls = [says(call("weather", {"city": "Lisbon"}), call("weather", {"city": "Porto"}), finish="STOP")]
    service.script(raw(*calls), raw(*calls), raw(OK))
    whole = await model.complete(ASK)
    *chunks, last = await read(model, ASK)
    assert last == whole
    assert whole.stop == "tool"
    first, second = whole.tool_calls
    assert first.id != second.id
    assert chunks[0] == ToolCallChunk(first.id, "weather", '{"city": "Lisbon"}')
    results = tuple(ToolResultPart(c.id, (TextPart("sunny"),)) for c in whole.tool_calls)
    await model.complete(replace(ASK, messages=(*ASK.messages, whole.message, Message("user", results))))
    asked, answered = service.requests[2]["contents"][1:]
    assert [p["functionCall"]["id"] for p in asked["parts"]] == [first.id, second.id]
    assert [p["functionResponse"]["id"] for p in answered["parts"]] == [first.id, second.id]


async def test_ids_of_the_service_are_kept_and_doubled_ones_told_apart(service, model):
    same = [says(call("a", {}, id="c1"), call("b", None, id="c1"), finish="STOP")]
    service.script(raw(*same))
    response = await model.complete(ASK)
    assert response.tool_calls == (ToolCallPart("c1", "a", {}), ToolCallPart("c1-1", "b", {}))


async def test_without_a_response_id_the_ids_are_new(service):
    model = GeminiModel("m", base_url=service.url, ids=RecordIds(entropy=bytes))
    answer = says(call("a", {}), call("a", {}), finish="STOP", responseId=None)
    service.script(raw(answer), raw(answer))
    ids = [c.id for _ in range(2) for c in (await model.complete(ASK)).tool_calls]
    assert len(set(ids)) == 4
    await model.aclose()


async def test_thinking_comes_back_exactly(service, model):
    parts = [
        {"text": "Let me see.", "thought": True},
        {"text": " Yes.", "thought": True},
        {"text": "I look it up."},
        {**call("weather", {"city": "Lisbon"}), "thoughtSignature": SEAL},
    ]
    events = [says(parts[0]), says(parts[1]), says(parts[2]), says(parts[3], finish="STOP")]
    service.script(raw(*events), raw(OK))
    *chunks, response = await read(model, ASK)
    assert chunks[:2] == [ThinkingChunk("Let me see."), ThinkingChunk(" Yes.")]
    assert response.parts[0] == ThinkingPart("Let me see. Yes.", provider="gemini")
    assert response.parts[2] == ThinkingPart(signature=SEAL, provider="gemini")
    result = Message("user", (ToolResultPart(response.tool_calls[0].id, (TextPart("sunny"),)),))
    await model.complete(replace(ASK, messages=(*ASK.messages, response.message, result)))
    sent = service.requests[1]["contents"][1]["parts"]
    assert sent[-2] == {"text": "I look it up."}
    assert sent[-1]["thoughtSignature"] == SEAL
    assert sent[-1]["functionCall"]["args"] == {"city": "Lisbon"}


@pytest.mark.parametrize(
    "events",
    [
        [says({"text": "a"}), says({"text": "b", "thoughtSignature": SEAL}), says({"text": "c"}, finish="STOP")],
        [says({"text": "a"}), says({"text": "", "thoughtSignature": SEAL}, finish="STOP")],
    ],
)
async def test_a_seal_on_text_comes_back_on_that_text(service, model, events):
    service.script(raw(*events), raw(OK))
    response = (await read(model, ASK))[-1]
    await model.complete(replace(ASK, messages=(*ASK.messages, response.message, Message.user("go on"))))
    sent = service.requests[1]["contents"][1]["parts"]
    sealed = [part["text"] for part in sent if part.get("thoughtSignature") == SEAL]
    assert "".join(part["text"] for part in sent) == response.text
    assert sealed == (["b"] if response.text == "abc" else ["a"])


async def test_a_part_of_its_own_kind_comes_back_verbatim(service, model):
    code = {"executableCode": {"code": "1+1", "language": "PYTHON"}}
    service.script(raw(says(code, {"text": "2"}, finish="STOP")), raw(OK))
    response = await model.complete(ASK)
    assert isinstance(response.parts[0], NativePart)
    await model.complete(replace(ASK, messages=(*ASK.messages, response.message, Message.user("go on"))))
    assert service.requests[1]["contents"][1]["parts"] == [code, {"text": "2"}]


@pytest.mark.parametrize(
    ("finish", "stop"), [("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "refusal"), ("RECITATION", "refusal")]
)
async def test_why_it_stopped(service, model, finish, stop):
    service.script(raw(says({"text": "a"}, finish=finish)))
    response = await model.complete(ASK)
    assert (response.stop, response.finish) == (stop, finish)


async def test_a_blocked_prompt_is_a_refusal(service, model):
    service.script(raw({"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r"}))
    response = await model.complete(ASK)
    assert (response.stop, response.parts) == ("refusal", ())


async def test_a_stream_without_an_answer_is_told_from_one_that_broke(service, model):
    service.script(raw(), raw(says({"text": "half"})))
    with pytest.raises(BadResponse, match="ended before an answer began"):
        await model.complete(ASK)
    with pytest.raises(ProviderUnavailable, match="ended before the answer did"):
        await model.complete(ASK)


async def test_a_malformed_call_is_a_bad_response(service, model):
    service.script(raw(says(finish="MALFORMED_FUNCTION_CALL")))
    with pytest.raises(BadResponse, match="MALFORMED"):
        await model.complete(ASK)


async def test_a_rate_limit_may_not_say_how_long(service, model):
    service.script(
        Refused(429, b'{"error": {"code": 429, "message": "Quota exceeded.", "details": [{"@type": "Help"}]}}')
    )
    with pytest.raises(RateLimited) as caught:
        await model.complete(ASK)
    assert caught.value.retry_after is None


async def test_an_overflow_may_tell_its_limit_alone(service, model):
    words = b"The input token count exceeds the maximum number of tokens allowed 1048576."
    service.script(Refused(400, b'{"error": {"code": 400, "message": "%s"}}' % words))
    with pytest.raises(ContextOverflow) as caught:
        await model.complete(ASK)
    assert (caught.value.limit, caught.value.size) == (1_048_576, None)


async def test_nobody_listens():
    away = GeminiModel("m", base_url="http://127.0.0.1:9")
    with pytest.raises(ProviderUnavailable):
        await away.complete(ASK)
    await away.aclose()


async def test_a_key_is_needed(monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        await GeminiModel("m").complete(ASK)


async def test_the_users_key_goes_to_nobody_else(service, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    service.script(raw(OK), raw(OK))
    for key, sent in ((None, "none"), ("mine", "mine")):
        model = GeminiModel("m", base_url=service.url, api_key=key)
        await model.complete(ASK)
        await model.aclose()
        assert service.headers[-1]["x-goog-api-key"] == sent


class TestLaws(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(GeminiWire(), default=Said.text("Hello there.")) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = GeminiModel("gemini-3.8-flash", base_url=service.url, api_key="test")
        yield model
        await model.aclose()

    def thinking(self):
        return (ThinkingPart("First, the tea.", SEAL, provider="gemini"),)

    @pytest.mark.xfail(reason="Gemini tells what was read from its cache, never what was written")
    async def test_usage_counts_the_whole_prompt_with_the_cache_inside(self, model, service):
        await super().test_usage_counts_the_whole_prompt_with_the_cache_inside(model, service)

    @pytest.mark.xfail(reason="Gemini sends the input of a call as an object, never as text")
    async def test_input_that_is_not_json_stays_text(self, model, service):
        await super().test_input_that_is_not_json_stays_text(model, service)


async def test_a_setting_that_makes_no_sense_is_refused_before_it_is_sent(service, model):
    with pytest.raises(UsageError, match="cannot be sent"):
        await model.complete(replace(ASK, settings=ModelSettings(extra={"temperature": "hot"})))
    assert service.requests == []
