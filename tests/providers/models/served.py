"""A model of each provider over its own scripted server, for tests that are the same for all of them."""

from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from loom.core.message import Part, ThinkingPart
from loom.providers.models import AnthropicModel, CompatibleModel, OpenAIChatModel, OpenAIModel
from loom.testing.wire import AnthropicWire, ChatWire, ResponsesWire, Wire, serve


class Kind(NamedTuple):
    """A provider: its model, its wire, and reasoning that it takes back."""

    model: type
    name: str
    wire: type[Wire]
    thinking: tuple[Part, ...] = ()


KINDS = {
    "anthropic": Kind(
        AnthropicModel,
        "claude-sonnet-5",
        AnthropicWire,
        (ThinkingPart("What do they ask?", "c2lnbmVk=="), ThinkingPart(redacted="c2VhbGVk")),
    ),
    "openai": Kind(
        OpenAIModel,
        "gpt-5.6",
        ResponsesWire,
        (ThinkingPart("What do they ask?", "rs_1", "c2VhbGVk", provider="openai"),),
    ),
    "openai_chat": Kind(OpenAIChatModel, "gpt-5.6", ChatWire),
    "compatible": Kind(CompatibleModel, "qwen3", ChatWire),
}

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@asynccontextmanager
async def served(kind, **options):
    """A model, and the server that answers it."""
    with serve(kind.wire()) as service:
        model = kind.model(kind.name, base_url=service.url, api_key="test", **options)
        yield model, service
        await model.aclose()
