"""GeminiModel: the real client against a loopback server that speaks the wire of Gemini."""

import base64
from dataclasses import replace

import anyio
import pytest
from anyio import to_thread

from loom.core.ids import RecordIds
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
from tests.providers.models.gemini_server import Answer, fails, gemini_service, says

pytestmark = pytest.mark.anyio

SEAL = base64.urlsafe_b64encode(b"\xfb\xff seal").decode()
PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
ASK = ModelRequest(messages=(Message.user("How is Lisbon?"),), system=("Be brief.",))
WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.fixture
def service():
    with gemini_service() as service:
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
    service.answers += [Answer(events), Answer(events)]
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
    )


async def test_what_is_sent(service, model):
    service.answers.append(Answer([says({"text": "ok"}, finish="STOP")]))
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
    assert sent["path"] == "/v1/models/gemini-3.8-flash:streamGenerateContent?alt=sse"
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
    service.answers.append(Answer([says({"text": "ok"}, finish="STOP")]))
    body = {"model": "x", "contents": [{"role": "user", "parts": [{"text": "mine"}]}], "config": {"seed": 7}}
    await model.complete(replace(ASK, rendered=Rendered("gemini", body)))
    sent = service.requests[0]
    assert sent["contents"] == body["contents"]
    assert sent["generationConfig"] == {"seed": 7}
    assert "systemInstruction" not in sent


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("none", "NONE"), ("any", "ANY")])
async def test_tool_choices(service, model, choice, mode):
    service.answers.append(Answer([says({"text": "ok"}, finish="STOP")]))
    await model.complete(replace(ASK, tools=(WEATHER,), settings=ModelSettings(tool_choice=choice)))
    assert service.requests[0]["toolConfig"]["functionCallingConfig"] == {"mode": mode}


async def test_structured_output(service, model):
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    service.answers.append(Answer([says({"text": '{"sky": "blue"}'}, finish="STOP")]))
    response = await model.complete(replace(ASK, settings=ModelSettings(output_schema=schema)))
    assert response.text == '{"sky": "blue"}'
    config = service.requests[0]["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"] == schema


async def test_parallel_calls_without_ids_get_unique_ones_that_pair_with_results(service, model):
    calls = [says(call("weather", {"city": "Lisbon"}), call("weather", {"city": "Porto"}), finish="STOP")]
    service.answers += [Answer(calls), Answer(calls), Answer([says({"text": "Sunny."}, finish="STOP")])]
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
    service.answers.append(Answer(same))
    response = await model.complete(ASK)
    assert response.tool_calls == (ToolCallPart("c1", "a", {}), ToolCallPart("c1-1", "b", {}))


async def test_without_a_response_id_the_ids_are_new(service):
    model = GeminiModel("m", base_url=service.url, ids=RecordIds(entropy=bytes))
    answer = says(call("a", {}), call("a", {}), finish="STOP", responseId=None)
    service.answers += [Answer([answer]), Answer([answer])]
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
    service.answers += [Answer(events), Answer([says({"text": "ok"}, finish="STOP")])]
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
    service.answers += [Answer(events), Answer([says({"text": "ok"}, finish="STOP")])]
    response = (await read(model, ASK))[-1]
    await model.complete(replace(ASK, messages=(*ASK.messages, response.message, Message.user("go on"))))
    sent = service.requests[1]["contents"][1]["parts"]
    sealed = [part["text"] for part in sent if part.get("thoughtSignature") == SEAL]
    assert "".join(part["text"] for part in sent) == response.text
    assert sealed == (["b"] if response.text == "abc" else ["a"])


async def test_a_part_of_its_own_kind_comes_back_verbatim(service, model):
    code = {"executableCode": {"code": "1+1", "language": "PYTHON"}}
    service.answers += [
        Answer([says(code, {"text": "2"}, finish="STOP")]),
        Answer([says({"text": "ok"}, finish="STOP")]),
    ]
    response = await model.complete(ASK)
    assert isinstance(response.parts[0], NativePart)
    await model.complete(replace(ASK, messages=(*ASK.messages, response.message, Message.user("go on"))))
    assert service.requests[1]["contents"][1]["parts"] == [code, {"text": "2"}]


@pytest.mark.parametrize(
    ("finish", "stop"), [("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "refusal"), ("RECITATION", "refusal")]
)
async def test_why_it_stopped(service, model, finish, stop):
    service.answers.append(Answer([says({"text": "a"}, finish=finish)]))
    assert (await model.complete(ASK)).stop == stop


async def test_a_blocked_prompt_is_a_refusal(service, model):
    service.answers.append(Answer([{"promptFeedback": {"blockReason": "SAFETY"}, "responseId": "r"}]))
    response = await model.complete(ASK)
    assert (response.stop, response.parts) == ("refusal", ())


async def test_a_malformed_call_is_a_bad_response(service, model):
    service.answers.append(Answer([says(finish="MALFORMED_FUNCTION_CALL")]))
    with pytest.raises(BadResponse, match="MALFORMED"):
        await model.complete(ASK)


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
TOO_LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."


@pytest.mark.parametrize("ask", [lambda m: m.complete(ASK), lambda m: read(m, ASK)], ids=["complete", "stream"])
class TestFailures:
    async def test_rate_limit(self, service, model, ask):
        service.answers.append(fails(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", {"@type": "Help"}, RETRY))
        with pytest.raises(RateLimited) as caught:
            await ask(model)
        assert caught.value.retry_after == 34.5
        assert len(service.requests) == 1  # it never retries

    async def test_rate_limit_without_a_time(self, service, model, ask):
        service.answers.append(fails(429, "RESOURCE_EXHAUSTED", "Quota exceeded."))
        with pytest.raises(RateLimited) as caught:
            await ask(model)
        assert caught.value.retry_after is None

    @pytest.mark.parametrize(("message", "size"), [(TOO_LONG, 1_200_000), (TOO_LONG.replace(" (1200000)", ""), None)])
    async def test_overflow(self, service, model, ask, message, size):
        service.answers.append(fails(400, "INVALID_ARGUMENT", message))
        with pytest.raises(ContextOverflow) as caught:
            await ask(model)
        assert (caught.value.limit, caught.value.size) == (1_048_576, size)

    @pytest.mark.parametrize("code", [500, 503, 529])
    async def test_the_service_is_down(self, service, model, ask, code):
        service.answers.append(fails(code, "UNAVAILABLE", "The model is overloaded."))
        with pytest.raises(ProviderUnavailable, match="overloaded"):
            await ask(model)
        assert len(service.requests) == 1

    async def test_a_refused_request_is_not_worth_a_retry(self, service, model, ask):
        service.answers.append(fails(400, "INVALID_ARGUMENT", "Unknown field."))
        with pytest.raises(ProviderError, match="Unknown field") as caught:
            await ask(model)
        assert not caught.value.retryable

    async def test_the_connection_drops(self, service, model, ask):
        service.answers.append(Answer([says({"text": "It is"})], cut=True))
        with pytest.raises(ProviderUnavailable):
            await ask(model)

    async def test_the_answer_ends_without_an_end(self, service, model, ask):
        service.answers.append(Answer([says({"text": "It is"})]))
        with pytest.raises(BadResponse, match="ended before"):
            await ask(model)

    async def test_garbage(self, service, model, ask):
        service.answers.append(Answer(["garbage"]))
        with pytest.raises(BadResponse):
            await ask(model)

    async def test_nobody_listens(self, service, model, ask):
        away = GeminiModel("m", base_url="http://127.0.0.1:9")
        with pytest.raises(ProviderUnavailable):
            await ask(away)
        await away.aclose()


async def test_an_error_inside_a_stream(service, model):
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Lost the backend."}}
    service.answers.append(Answer([says({"text": "It is"}), error]))
    with pytest.raises(ProviderUnavailable, match="Lost the backend"):
        await read(model, ASK)


async def test_closing_a_stream_stops_the_request(service, model):
    service.answers.append(Answer([says({"text": "It is"})], hang=True))
    stream = model.stream(ASK)
    assert await anext(stream) == TextChunk("It is")
    await stream.aclose()
    assert await to_thread.run_sync(service.gone.wait, 20)


@pytest.mark.parametrize("ask", [lambda m: m.complete(ASK), lambda m: read(m, ASK)], ids=["complete", "stream"])
async def test_cancelling_stops_the_request(service, model, ask):
    service.answers.append(Answer([says({"text": "It is"})], hang=True, cut=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, model)
        while not service.requests:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await to_thread.run_sync(service.gone.wait, 20)


async def test_a_key_is_needed(monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        await GeminiModel("m").complete(ASK)


async def test_the_users_key_goes_to_nobody_else(service, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    service.answers += [Answer([says({"text": "ok"}, finish="STOP")])] * 2
    for key, sent in ((None, "none"), ("mine", "mine")):
        model = GeminiModel("m", base_url=service.url, api_key=key)
        await model.complete(ASK)
        await model.aclose()
        assert service.requests[-1]["key"] == sent
