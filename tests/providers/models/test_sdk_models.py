"""What the models on official SDKs share: keys, clients, timeouts, and being told to wait."""

import subprocess
import sys
from datetime import UTC, datetime
from email.utils import format_datetime

import anyio
import pytest

from loom.core.message import Message
from loom.errors import MissingExtra, ProviderError, ProviderUnavailable, RateLimited, UsageError
from loom.protocols.model import Model, ModelRequest, ModelSettings
from loom.providers.models import AnthropicModel, OpenAIChatModel, OpenAIModel
from loom.testing import FakeClock
from loom.testing.wire import AnthropicWire, ChatWire, Refused, ResponsesWire, Said, serve
from tests.providers.models.served import each_kind, served

pytestmark = pytest.mark.anyio

ASKED = ModelRequest(messages=(Message.user("hi"),))
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE", "OPENAI_API_KEY")


@pytest.fixture
def no_keys(monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@each_kind
def test_it_is_a_model(kind):
    assert isinstance(kind.model(kind.name, base_url="http://127.0.0.1:1"), Model)


@each_kind
def test_it_needs_a_name(kind):
    with pytest.raises(UsageError, match="needs a name"):
        kind.model("", base_url="http://127.0.0.1:1")


@pytest.mark.parametrize("model", [AnthropicModel, OpenAIModel, OpenAIChatModel])
@pytest.mark.parametrize("profile", [True, False])
async def test_without_a_key_it_says_which_is_missing(model, profile, no_keys, monkeypatch, tmp_path):
    if not profile:
        monkeypatch.delenv("ANTHROPIC_CONFIG_DIR")
        monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ProviderError, match=model.key):
        await model("m").complete(ASKED)


@pytest.mark.parametrize(
    ("model", "wire"), [(AnthropicModel, AnthropicWire), (OpenAIModel, ResponsesWire), (OpenAIChatModel, ChatWire)]
)
async def test_the_users_key_is_not_sent_to_another_address(model, wire, monkeypatch):
    for name in KEYS:
        monkeypatch.setenv(name, "secret")
    with serve(wire(), default=Said.text("Hello.")) as service:
        elsewhere = model("m", base_url=service.url)
        await elsewhere.complete(ASKED)
        assert "secret" not in str(service.headers[-1])
        await elsewhere.aclose()


@each_kind
async def test_a_client_that_is_given_is_used_without_its_retries_and_left_open(kind):
    with serve(kind.wire(), default=Said.text("Hello.")) as service:
        import anthropic
        import openai

        made = anthropic.AsyncAnthropic if kind.model is AnthropicModel else openai.AsyncOpenAI
        async with made(
            api_key="test", base_url=service.url, default_headers={"x-mine": "yes"}, max_retries=5
        ) as client:
            model = kind.model(kind.name, client=client)
            service.script("overloaded")
            with pytest.raises(ProviderUnavailable):
                await model.complete(ASKED)
            assert len(service.requests) == 1
            await model.aclose()
            assert (await model.complete(ASKED)).text == "Hello."
            assert service.headers[-1]["x-mine"] == "yes"


@each_kind
@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "1500", "retry-after": "3"}, 1.5),
        ({"retry-after": format_datetime(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC), usegmt=True)}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
async def test_how_long_to_wait_is_read_in_every_form(kind, headers, wait):
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    async with served(kind, clock=clock) as (model, service):
        service.script(Refused(429, b"{}", headers))
        with pytest.raises(RateLimited) as caught:
            await model.complete(ASKED)
        assert caught.value.retry_after == wait


@each_kind
async def test_silence_is_given_up(kind):
    async with served(kind, timeout=0.2) as (model, service):
        service.script("stalled")
        with pytest.raises(ProviderUnavailable):
            await model.complete(ASKED)


@each_kind
async def test_nobody_at_the_address(kind):
    with serve(kind.wire()) as service:
        url = service.url
    model = kind.model(kind.name, base_url=url, api_key="test")
    with pytest.raises(ProviderUnavailable, match="connection"):
        await model.complete(ASKED)
    await model.aclose()


@each_kind
async def test_a_request_that_cannot_be_said_is_the_callers_error(kind):
    async with served(kind) as (model, service):
        extra = {"temperature": object()}
        with pytest.raises(UsageError, match="cannot be sent"):
            await model.complete(ModelRequest(messages=ASKED.messages, settings=ModelSettings(extra=extra)))
        assert service.requests == []


@each_kind
def test_one_model_serves_one_event_loop_after_the_other(kind):
    async def ask():
        answer = await model.complete(ASKED)
        await model.aclose()
        return answer.text

    with serve(kind.wire(), default=Said.text("Hello.")) as service:
        model = kind.model(kind.name, base_url=service.url, api_key="test")
        assert [anyio.run(ask), anyio.run(ask)] == ["Hello.", "Hello."]


@each_kind
async def test_requests_at_the_same_time_do_not_mix(kind):
    async with served(kind) as (model, service):
        texts = [f"Answer number {n}, and no other." for n in range(6)]
        service.script(*(Said.text(text, id=f"id{n}") for n, text in enumerate(texts)))
        answers = []

        async def ask():
            answers.append((await model.complete(ASKED)).text)

        async with anyio.create_task_group() as tasks:
            for _ in texts:
                tasks.start_soon(ask)
        assert sorted(answers) == texts


@pytest.mark.parametrize(("model", "sdk"), [("AnthropicModel", "anthropic"), ("OpenAIModel", "openai")])
def test_without_its_sdk_it_says_what_to_install(model, sdk):
    script = f"import sys; sys.modules[{sdk!r}] = None; from loom.providers.models import {model}; {model}('m')"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert MissingExtra.__name__ in done.stderr
    assert f"loom-engine[{sdk}]" in done.stderr


def test_making_one_loads_no_sdk():
    script = (
        "import sys; from loom.providers.models import AnthropicModel, CompatibleModel, OpenAIModel;"
        "AnthropicModel('m'); OpenAIModel('m'); CompatibleModel('m', service='ollama');"
        "assert not {'anthropic', 'openai', 'httpx2', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
