"""Opening a model by its name: `provider:model` becomes a Model on that provider's SDK.

Importing this module also gives the layers below what they need from here: models a way to render a request that
comes without a body, sessions a way to open a model by its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from loom.engine.registry import Registry
from loom.errors import UsageError
from loom.protocols.model import Model, ModelRequest, Rendered
from loom.providers.models.anthropic import AnthropicModel
from loom.providers.models.compatible import SERVICES, CompatibleModel
from loom.providers.models.gemini import GeminiModel
from loom.providers.models.litellm import LiteLLMModel
from loom.providers.models.local import LocalModel
from loom.providers.models.offline import OfflineModel
from loom.providers.models.openai_chat import OpenAIChatModel
from loom.providers.models.openai_responses import OpenAIModel
from loom.providers.models.sdk import RENDERER
from loom.session.naming import OPENER

DEFAULT_MODEL = "LOOM_MODEL"

OpensModel: TypeAlias = Callable[..., Model]
"""Makes a model of the text behind `provider:` and the options of open_model()."""


def open_model(model: str | Model | None = None, **options: Any) -> Model:
    """The model of a name. No provider is called before the first request.

    Args:
        model: `anthropic:MODEL`, `openai:MODEL` (Responses), `openai_chat:MODEL`, `gemini:MODEL`, `compatible:MODEL`
            (any server that speaks the OpenAI Chat form, at `base_url` or LOOM_BASE_URL), `ollama:MODEL` and the like
            for a server at its usual address, `litellm:MODEL` (whatever LiteLLM knows), `local:PATH` (a GGUF file, run
            in this process), a provider that an installed package adds; or a model, which is returned as it is. None
            takes the name in LOOM_MODEL, and without one a model that needs no key and answers with what it finds in
            memory.
        options: `api_key`, `base_url`, `client`, `timeout` and whatever else that model takes.
    """
    if model is None:
        model = os.environ.get(DEFAULT_MODEL, "").strip() or OfflineModel.name
    if not isinstance(model, str):
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{model!r} is not a model; give provider:model or a Model")
        if options:
            raise UsageError(f"{', '.join(options)}: a model that is already made takes no options")
        return model
    check_name(model)
    provider, _, id = model.partition(":")
    return MODELS[provider](id, **options)


def check_name(model: str) -> None:
    """Refuse what names no model; whether its package and its key are there is not checked."""
    provider, _, id = model.partition(":")
    if not id or provider not in MODELS:
        raise UsageError(
            f"{model!r} names no model; write provider:model, where the providers are {', '.join(sorted(MODELS))}; "
            f"use compatible:MODEL with base_url= for any other server that speaks the OpenAI Chat form"
        )


def _offline(_: str) -> Model:
    return OfflineModel()


MODELS: Registry[OpensModel] = Registry(
    "loom.models",
    {
        "offline": _offline,
        "anthropic": AnthropicModel,
        "openai": OpenAIModel,
        "openai_chat": OpenAIChatModel,
        "compatible": CompatibleModel,
        "gemini": GeminiModel,
        "litellm": LiteLLMModel,
        "local": LocalModel,
        **{name: partial(CompatibleModel, service=name) for name in SERVICES},
    },
)


def _render(request: ModelRequest, provider: str, model: str) -> Rendered:
    from loom.engine.rendering import render_request  # noqa: PLC0415  (sessions render by themselves)

    return render_request(request, provider, model)


RENDERER.fill(_render)
OPENER.fill(open_model)
