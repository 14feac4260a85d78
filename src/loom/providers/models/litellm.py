"""Any model that LiteLLM knows, through its one function for all of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from anyio import to_thread

from loom.core.clock import Clock, SystemClock
from loom.errors import LoomError, MissingExtra, UsageError
from loom.protocols.model import Chunk, ModelRequest
from loom.providers._failures import Failure, as_error, retry_after, unreachable, unreadable
from loom.providers.models import RENDERER, Render
from loom.providers.models._answer import Repairer
from loom.providers.models.openai import ChatReader, chat_settings
from loom.providers.models.sdk import DEFAULT_TIMEOUT, Body, StreamedModel


class LiteLLMModel(StreamedModel):
    """A model by LiteLLM's own name for it (`groq/llama-4`, `bedrock/...`).

    LiteLLM reads keys from the environment variables of each provider, and fetches a price list when it is first used
    unless LITELLM_LOCAL_MODEL_COST_MAP is true. It speaks the Chat form, so thinking is shown but not sent back, and it
    hides two failures: a stream that ends too early looks whole, and an unreadable one looks like a lost connection.
    """

    provider = "litellm"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        render: Render | None = None,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        """Make a model. Nothing is imported or called before the first request.

        Args:
            model: the model's name, as LiteLLM writes it.
            api_key: the key; LiteLLM looks for one itself if not given.
            base_url: where the provider answers, if not at its own address.
            timeout: seconds without a word from the provider after which a call is given up.
            render: who makes request bodies; Loom's own renderer of the Chat form if not given.
            clock: what time it is, for a date in `retry-after`.
            options: further arguments of `litellm.acompletion`.
        """
        if not model:
            raise UsageError("a model of litellm needs a name; write litellm:PROVIDER/MODEL")
        if find_spec("litellm") is None:
            raise MissingExtra(f"the model litellm:{model}", "litellm")
        self.model = model
        given = {"api_key": api_key, "base_url": base_url, "timeout": timeout, **options}
        self._options = {name: value for name, value in given.items() if value is not None}
        self._render = render
        self._clock = clock or SystemClock()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        body = self._body(request)
        if "litellm" not in sys.modules:
            await to_thread.run_sync(import_module, "litellm")  # it takes seconds, in which others may work
        reader, repairer = ChatReader(self.name, self.provider, request), Repairer()
        events: Any = None
        try:
            events = await import_module("litellm").acompletion(**self._options, **body)
            async for event in events:
                for chunk in repairer.chunks(reader.take(event.model_dump(mode="json", warnings=False))):
                    yield chunk
            response = reader.response()
        except Exception as error:
            raise self._as_loom_error(error) from error
        finally:
            if events is not None:
                await events.aclose()
        for chunk in repairer.chunks([response]):
            yield chunk

    async def aclose(self) -> None:
        """Nothing to release: LiteLLM keeps its connections for all of its users."""

    def _body(self, request: ModelRequest) -> Body:
        render = self._render or RENDERER.get()
        body = {**render(request, "compatible", self.model).body, "model": self.model}
        settled = chat_settings(body, request.settings, limit_field="max_tokens")
        return {**settled, **request.settings.extra, "stream": True, "num_retries": 0, "max_retries": 0}

    def _as_loom_error(self, error: Any) -> LoomError:
        sdk = import_module("openai")  # whose errors LiteLLM's are made of
        if isinstance(error, LoomError):
            return error
        if isinstance(error, sdk.APIConnectionError | OSError):
            return unreachable(self.name, error)
        status = getattr(error, "status_code", None)
        if isinstance(error, sdk.APIError) or status is not None:
            wait = retry_after(getattr(error, "litellm_response_headers", None) or {}, self._clock)
            codes = ("context_length_exceeded",) if "ContextWindowExceeded" in type(error).__name__ else ()
            return as_error(self.name, Failure(status=status, codes=codes, message=str(error), retry_after=wait))
        return unreadable(self.name, error)
