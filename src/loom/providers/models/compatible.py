"""Any server that speaks the OpenAI Chat form: Ollama, vLLM, llama.cpp, LM Studio, and services on the network."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from loom.core.clock import Clock
from loom.errors import UsageError
from loom.providers.models.openai_chat import OpenAIChatModel
from loom.providers.models.sdk import DEFAULT_TIMEOUT, Render

ADDRESS = "LOOM_BASE_URL"
KEY = "LOOM_API_KEY"


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

_CATALOGUED = ("deepseek", "sglang", "vllm", "xai")
"""Those that the catalogue knows the cache rules of, and that keep their own name for it."""


class CompatibleModel(OpenAIChatModel):
    """A model of any server that speaks the OpenAI Chat form.

    Without `base_url` it is asked at the address of `service`, if one is named, else at LOOM_BASE_URL. A key is sent
    where `api_key` gives one; from LOOM_API_KEY to LOOM_BASE_URL; and to a service from that service's own variable.
    """

    _limit_field = "max_tokens"

    def __init__(
        self,
        model: str,
        *,
        service: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        client: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
        render: Render | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a model; `service` names a server of SERVICES, the rest is as for every model."""
        if service is not None and service not in SERVICES:
            raise UsageError(f"there is no service {service!r}; the services are {', '.join(SERVICES)}, or base_url=")
        known = Service(os.environ.get(ADDRESS, ""), KEY) if service is None else SERVICES[service]
        address = base_url or known.base_url
        if not address and client is None:
            raise UsageError(
                f"compatible:{model} needs an address; set {ADDRESS}, or give base_url=, such as "
                f"{SERVICES['ollama'].base_url}"
            )
        self.provider = service if service in _CATALOGUED else "compatible"
        self.key = known.key or KEY
        self._needs_key = service is not None and known.key is not None
        self._own_address = base_url is None
        super().__init__(
            model, api_key=api_key, base_url=address, client=client, timeout=timeout, render=render, clock=clock
        )

    def _found_key(self) -> str | None:
        # A key is for the address it belongs to. Where none is wanted, the SDK still has to be given something.
        own = os.environ.get(self.key) if self._own_address else "none"
        return own if own or self._needs_key else "none"
