"""Opening a model by its name: `provider:model` becomes a Model on that provider's SDK."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from loom.errors import UsageError
from loom.protocols.model import Model
from loom.providers.models.compatible import SERVICES
from loom.providers.models.offline import OfflineModel

DEFAULT_MODEL = "LOOM_MODEL"

_CLASSES = {
    "anthropic": ("anthropic", "AnthropicModel"),
    "openai": ("openai_responses", "OpenAIModel"),
    "openai_chat": ("openai_chat", "OpenAIChatModel"),
    "compatible": ("compatible", "CompatibleModel"),
    "gemini": ("gemini", "GeminiModel"),
    "litellm": ("litellm", "LiteLLMModel"),
    "local": ("local", "LocalModel"),
}


def open_model(model: str | Model | None = None, **options: Any) -> Model:
    """The model of a name. Nobody is called before the first request.

    Args:
        model: `anthropic:MODEL`, `openai:MODEL` (Responses), `openai_chat:MODEL`, `gemini:MODEL`, `compatible:MODEL`
            (any server that speaks the OpenAI Chat form, at `base_url` or LOOM_BASE_URL), `ollama:MODEL` and the like
            for a server at its usual address, `litellm:MODEL` (whatever LiteLLM knows), `local:PATH` (a GGUF file, run
            in this process); or a model, which is returned as it is. None takes the name in LOOM_MODEL, and without
            one a model that needs no key and answers with what it finds in memory.
        options: `api_key`, `base_url`, `client`, `timeout` and whatever else that model takes.
    """
    if model is None:
        model = os.environ.get(DEFAULT_MODEL, "").strip() or OfflineModel.name
    if not isinstance(model, str):
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{model!r} is no model; give provider:model or a Model")
        if options:
            raise UsageError(f"{', '.join(options)}: a model that is already made takes no options")
        return model
    check_name(model)
    provider, _, id = model.partition(":")
    return _openers()[provider](id, **options)


def check_name(model: str) -> None:
    """Refuse what names no model; whether its package and its key are there is not asked."""
    provider, _, id = model.partition(":")
    if not id or provider not in _openers():
        raise UsageError(
            f"{model!r} names no model; write provider:model, where the providers are {', '.join(sorted(_openers()))}; "
            f"use compatible:MODEL with base_url= for any other server that speaks the OpenAI Chat form"
        )


def _openers() -> dict[str, Callable[..., Model]]:
    return {
        OfflineModel.name.partition(":")[0]: _offline,
        **{name: _opener(*home) for name, home in _CLASSES.items()},
        **{name: _service(name) for name in SERVICES},
    }


def _offline(_: str) -> Model:
    return OfflineModel()


def _opener(module: str, name: str) -> Callable[..., Model]:
    def open(id: str, **options: Any) -> Model:
        return getattr(import_module(f"loom.providers.models.{module}"), name)(id, **options)

    return open


def _service(name: str) -> Callable[..., Model]:
    def open(id: str, **options: Any) -> Model:
        return _opener(*_CLASSES["compatible"])(id, service=name, **options)

    return open
