"""Models: the official SDKs behind one protocol. Each is loaded when it is first asked for."""

from loom.core.doors import door

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
