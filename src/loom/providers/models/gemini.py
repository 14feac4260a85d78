"""Gemini, through the official google-genai SDK."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from typing import Any

from anyio import CancelScope, to_thread
from anyio.lowlevel import RunVar

from loom.core.ids import RecordIds
from loom.errors import LoomError, MissingExtra, ProviderError, UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, ModelSettings
from loom.providers.models.failures import Failure, as_error, unreachable, unreadable
from loom.providers.models.gemini_answer import GeminiAnswer
from loom.providers.models.parts import Repairer
from loom.providers.models.sdk import DEFAULT_TIMEOUT, RENDERER, Render
from loom.providers.models.usage import usage_or_estimate

_MODES = {"auto": "AUTO", "none": "NONE", "any": "ANY"}
_OPENED: ContextVar[list[Any] | None] = ContextVar("_OPENED", default=None)
"""The HTTP responses of the stream that is being opened, so that it can close them."""


class GeminiModel:
    """A Gemini model. The key is read from GEMINI_API_KEY, or else from GOOGLE_API_KEY.

    Where the service gives a tool call no id, one is made of the id of the answer.
    """

    provider = "gemini"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        render: Render | None = None,
        ids: RecordIds | None = None,
    ) -> None:
        """Make a model. Nothing is imported or called before the first request.

        Args:
            model: the model's id, as Gemini writes it.
            api_key: the key; read from the environment if not given, unless `base_url` names another address.
            base_url: where the service answers, if not at its own address.
            timeout: seconds without a word from the service after which a call is given up.
            render: who makes request bodies; Loom's own renderer if not given.
            ids: where ids of tool calls come from if neither the call nor the answer has one.
        """
        if not model:
            raise UsageError("a model of gemini needs a name; write gemini:MODEL")
        self.model = model
        self._api_key, self._base_url, self._timeout = api_key, base_url, timeout
        self._render = render
        self._ids = ids or RecordIds()
        # A connection belongs to the event loop it was made in, so each loop has a client of its own.
        self._clients: RunVar[tuple[Any, Any] | None] = RunVar("clients")

    @property
    def name(self) -> str:
        """`gemini:MODEL`."""
        return f"{self.provider}:{self.model}"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole answer. It is streamed too: a long answer must not look like a dead connection."""
        last: Chunk | None = None
        async for chunk in self.stream(request):
            last = chunk
        assert isinstance(last, ModelResponse)
        return last

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        client = await self._connected()
        body = self._body(request)
        answer, repairer = GeminiAnswer(self.name, self._ids), Repairer()
        opened: list[Any] = []
        _OPENED.set(opened)
        try:
            responses = await client.aio.models.generate_content_stream(**body)
            async with aclosing(responses):
                async for response in responses:
                    for chunk in repairer.chunks(answer.add(response)):
                        yield chunk
        except Exception as error:
            raise _as_loom_error(error, self.name) from error
        finally:
            # Closing the SDK's stream leaves the connection open until a garbage collection.
            with CancelScope(shield=True):
                for http_response in opened:
                    await http_response.aclose()
        done = answer.response()
        done = replace(done, usage=usage_or_estimate(done.usage, request, done.parts))
        for chunk in repairer.chunks([done]):
            yield chunk

    async def aclose(self) -> None:
        """Close the connections of this event loop. Closing twice is allowed."""
        clients = self._clients.get(None)
        self._clients.set(None)
        if clients is not None:
            sdk, http = clients
            await http.aclose()
            sdk.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        """The arguments of the SDK's call; settings that it has no field for are sent as they are."""
        from google.genai import types  # noqa: PLC0415

        render = self._render or RENDERER.get()
        body = render(request, self.provider, self.model).body
        given = {**body.get("config", {}), **_config(request.settings)}
        known = types.GenerateContentConfig.model_fields
        unknown = {name: value for name, value in given.items() if name not in known}
        config = {name: value for name, value in given.items() if name in known}
        if unknown:
            config["http_options"] = {"extra_body": unknown}
        try:
            checked = types.GenerateContentConfig.model_validate(config)
        except ValueError as error:
            raise UsageError(f"the request to {self.name} cannot be sent: {error}") from error
        return {**body, "model": self.model, "config": checked}

    async def _connected(self) -> Any:
        clients = self._clients.get(None)
        if clients is None:
            try:
                await to_thread.run_sync(import_module, "google.genai")  # it takes seconds, in which others may work
            except ImportError as error:
                raise MissingExtra(f"the model {self.name}", "gemini") from error
            clients = self._connect()
            self._clients.set(clients)
        return clients[0]

    def _connect(self) -> tuple[Any, Any]:
        """A client of the SDK, and the HTTP client it uses: only there its connections can be seen and closed."""
        from google.genai import Client, types  # noqa: PLC0415
        from httpx2 import AsyncClient  # noqa: PLC0415

        key = self._api_key
        if key is None:
            # The user's key is not for a server at another address.
            own = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")
            key = "none" if self._base_url is not None else own
        if not key:
            raise ProviderError(f"there is no key for {self.name}; set GEMINI_API_KEY, or give api_key=")
        http = AsyncClient(event_hooks={"response": [_opened]}, timeout=self._timeout)
        options = types.HttpOptions(
            base_url=self._base_url,
            httpx_async_client=http,
            timeout=int(self._timeout * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        return Client(api_key=key, vertexai=False, http_options=options), http


async def _opened(http_response: Any) -> None:
    opened = _OPENED.get()
    if opened is not None:
        opened.append(http_response)


def _config(settings: ModelSettings) -> dict[str, Any]:
    """The settings as fields of a Gemini config."""
    config: dict[str, Any] = {"automatic_function_calling": {"disable": True}}  # the session runs the tools
    if settings.max_output is not None:
        config["max_output_tokens"] = settings.max_output
    if settings.temperature is not None:
        config["temperature"] = settings.temperature
    if settings.stop:
        config["stop_sequences"] = list(settings.stop)
    if settings.tool_choice is not None:
        mode = _MODES.get(settings.tool_choice)
        chosen = {"mode": mode} if mode else {"mode": "ANY", "allowed_function_names": [settings.tool_choice]}
        config["tool_config"] = {"function_calling_config": chosen}
    if settings.output_schema is not None:
        config["response_mime_type"] = "application/json"
        config["response_json_schema"] = settings.output_schema
    return {**config, **settings.extra}


def _as_loom_error(error: Exception, who: str) -> LoomError:
    """The Loom error for an error that was raised while an answer was fetched."""
    from google.genai import errors  # noqa: PLC0415
    from httpx2 import HTTPError  # noqa: PLC0415

    if isinstance(error, LoomError):
        return error
    if isinstance(error, errors.APIError):
        return as_error(who, _failure(error), key="GEMINI_API_KEY")
    if isinstance(error, HTTPError | OSError):
        return unreachable(who, error)
    return unreadable(who, error)


def _failure(error: Any) -> Failure:
    return Failure.read(error.details, status=error.code, retry_after=_retry_delay(error.details))


def _retry_delay(details: Any) -> float | None:
    """Seconds to wait, from the RetryInfo of an error (`retryDelay: "34.5s"`)."""
    try:
        for detail in details["error"]["details"]:
            if str(detail.get("@type", "")).endswith("RetryInfo"):
                return max(0.0, float(str(detail["retryDelay"]).removesuffix("s")))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # an error is free to say nothing about waiting
    return None
