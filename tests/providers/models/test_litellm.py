"""LiteLLMModel: LiteLLM itself against a loopback server that speaks the Chat form."""

import importlib.util

import pytest

from loom.engine.models import open_model
from loom.errors import MissingExtra
from loom.providers.models.litellm import LiteLLMModel
from loom.testing.conformance import WireModelSuite
from loom.testing.wire import Said, serve
from loom.testing.wire.openai import ChatWire

pytestmark = pytest.mark.anyio
installed = importlib.util.find_spec("litellm") is not None


@pytest.mark.skipif(installed, reason="litellm is installed")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(MissingExtra, match=r"loom-engine\[litellm\]"):
        open_model("litellm:groq/llama-4")


@pytest.mark.skipif(not installed, reason="litellm (300 MB, and openai < 3) is not installed here")
class TestLaws(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(ChatWire(), default=Said.text("Hello there.")) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = LiteLLMModel("openai/served-model", base_url=service.url, api_key="test")
        yield model
        await model.aclose()
