"""The laws of Model, for each model on an official SDK, through its real client and over a real connection."""

import pytest

from loom.core.message import ThinkingPart
from loom.providers.models import AnthropicModel, CompatibleModel, OpenAIChatModel, OpenAIModel
from loom.testing.conformance import WireModelSuite
from loom.testing.wire import AnthropicWire, ChatWire, ResponsesWire, Said, serve

HELLO = Said.text("Hello there.")


class TestAnthropic(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(AnthropicWire(), default=HELLO) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = AnthropicModel("claude-sonnet-5", base_url=service.url, api_key="test")
        yield model
        await model.aclose()

    def thinking(self):
        return ThinkingPart("First, the tea.", "c2lnbmVk=="), ThinkingPart(redacted="c2VhbGVk")


class TestOpenAIResponses(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(ResponsesWire(), default=HELLO) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = OpenAIModel("gpt-5.6", base_url=service.url, api_key="test")
        yield model
        await model.aclose()

    def thinking(self):
        sealed = ThinkingPart("", "rs_2", "c2VhbGVkIHRvbw==", provider="openai")
        return ThinkingPart("First, the tea.", "rs_1", "c2VhbGVk", provider="openai"), sealed


class TestOpenAIChat(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(ChatWire(), default=HELLO) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = OpenAIChatModel("gpt-5.6", base_url=service.url, api_key="test")
        yield model
        await model.aclose()


class TestCompatible(WireModelSuite):
    @pytest.fixture
    def service(self):
        with serve(ChatWire(), default=HELLO) as service:
            yield service

    @pytest.fixture
    async def model(self, service):
        model = CompatibleModel("qwen3", base_url=service.url)
        yield model
        await model.aclose()
