"""Models: the official SDKs behind one protocol. Each is loaded when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from loom.core.doors import Port, door
from loom.protocols.model import ModelRequest, Rendered

if TYPE_CHECKING:
    from loom.providers.models.anthropic import AnthropicModel
    from loom.providers.models.gemini import GeminiModel
    from loom.providers.models.litellm import LiteLLMModel
    from loom.providers.models.local import LocalModel
    from loom.providers.models.offline import OfflineModel
    from loom.providers.models.openai import CompatibleModel, OpenAIChatModel, OpenAIModel

__all__ = [
    "RENDERER",
    "SERVICES",
    "AnthropicModel",
    "CompatibleModel",
    "GeminiModel",
    "LiteLLMModel",
    "LocalModel",
    "OfflineModel",
    "OpenAIChatModel",
    "OpenAIModel",
    "Render",
    "Service",
]

Render: TypeAlias = Callable[[ModelRequest, str, str], Rendered]
"""Makes the body of a request, given the provider and the model."""
RENDERER: Port[Render] = Port("the renderer of requests")
"""For models that were made without `render`; filled by the composition root, which knows the context engine."""


class Service(NamedTuple):
    """A server that is known by name."""

    base_url: str
    key: str | None = None
    """The environment variable that holds its key; a server on this machine needs none."""


SERVICES = {
    "deepseek": Service("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "llamacpp": Service("http://127.0.0.1:8080/v1"),
    "lmstudio": Service("http://127.0.0.1:1234/v1"),
    "ollama": Service("http://127.0.0.1:11434/v1"),
    "sglang": Service("http://127.0.0.1:30000/v1"),
    "vllm": Service("http://127.0.0.1:8000/v1"),
    "xai": Service("https://api.x.ai/v1", "XAI_API_KEY"),
}
"""The address that a server listens at by default."""

_HOMES = {
    "AnthropicModel": f"{__name__}.anthropic",
    "CompatibleModel": f"{__name__}.openai",
    "GeminiModel": f"{__name__}.gemini",
    "LiteLLMModel": f"{__name__}.litellm",
    "LocalModel": f"{__name__}.local",
    "OfflineModel": f"{__name__}.offline",
    "OpenAIChatModel": f"{__name__}.openai",
    "OpenAIModel": f"{__name__}.openai",
}
__getattr__, __dir__ = door(__name__, _HOMES)
