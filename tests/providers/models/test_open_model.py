"""Opening a model by its name."""

import subprocess
import sys

import pytest

from loom.core.message import Message
from loom.engine.open import open_model
from loom.errors import UsageError
from loom.protocols.model import ModelRequest
from loom.providers.models import AnthropicModel, CompatibleModel, OfflineModel, OpenAIChatModel, OpenAIModel
from loom.testing import ScriptedModel
from loom.testing.wire import ChatWire, Said, serve


@pytest.mark.parametrize(
    ("name", "kind", "called"),
    [
        ("anthropic:claude-sonnet-5", AnthropicModel, "anthropic:claude-sonnet-5"),
        ("openai:gpt-5.6", OpenAIModel, "openai:gpt-5.6"),
        ("openai_chat:gpt-5.6", OpenAIChatModel, "openai_chat:gpt-5.6"),
        ("ollama:llama3:8b", CompatibleModel, "compatible:llama3:8b"),
        ("lmstudio:qwen3", CompatibleModel, "compatible:qwen3"),
        ("vllm:org/model", CompatibleModel, "vllm:org/model"),
        ("offline:memory", OfflineModel, "offline:memory"),
    ],
)
def test_a_name(name, kind, called):
    model = open_model(name)
    assert type(model) is kind
    assert model.name == called


def test_a_model_is_returned_as_it_is():
    model = ScriptedModel(["hi"])
    assert open_model(model) is model
    with pytest.raises(UsageError, match="api_key"):
        open_model(model, api_key="x")


def test_the_default_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("LOOM_MODEL", " openai:gpt-5.6 ")
    assert open_model().name == "openai:gpt-5.6"
    monkeypatch.setenv("LOOM_MODEL", "")
    assert isinstance(open_model(), OfflineModel), "and needs no key where there is none"


@pytest.mark.parametrize("name", ["", "gpt-5.6", "openai:", ":gpt", "opnai:gpt-5.6"])
def test_a_name_that_names_nothing_lists_the_providers(name):
    with pytest.raises(UsageError, match=r"anthropic, compatible, .*ollama.*openai, openai_chat"):
        open_model(name)


def test_anything_but_a_model_is_refused():
    with pytest.raises(UsageError, match="is not a model"):
        open_model(object())


@pytest.mark.anyio
async def test_options_are_passed_on():
    with serve(ChatWire(), default=Said.text("Hello.")) as service:
        model = open_model("compatible:qwen3", base_url=service.url, api_key="k")
        assert (await model.complete(ModelRequest(messages=(Message.user("hi"),)))).text == "Hello."
        assert service.headers[-1]["authorization"] == "Bearer k"
        await model.aclose()


def test_opening_loads_no_sdk():
    script = (
        "import sys; from loom.engine.open import open_model; open_model('anthropic:m'); open_model('openai:m');"
        "assert not {'anthropic', 'openai', 'google', 'httpx2', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
