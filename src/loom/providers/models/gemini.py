"""Gemini, through the official google-genai SDK."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from anyio import CancelScope, to_thread
from anyio.lowlevel import RunVar

from loom.core.clock import RecordIds
from loom.core.message import NativePart, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from loom.errors import BadResponse, LoomError, MissingExtra, ProviderError, UsageError
from loom.protocols.model import (
    Chunk,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    Stop,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)
from loom.providers._failures import Failure, as_error, ended_early, nothing_came, unreachable, unreadable
from loom.providers.models import RENDERER, Render
from loom.providers.models._answer import Repairer, ended, plain_settings, usage_or_estimate
from loom.providers.models.sdk import DEFAULT_TIMEOUT, StreamedModel

if TYPE_CHECKING:
    from google.genai import types


# Putting Gemini's chunks together into one answer.

_STOPS: dict[str, Stop] = {
    "STOP": "end",
    "MAX_TOKENS": "length",
    **dict.fromkeys(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"), "refusal"),
    **dict.fromkeys(("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"), "refusal"),
}


class GeminiAnswer:
    """Collects the pieces of one answer, whether they come in one response or in many.

    A seal (thought signature) that stands on a part which is not thinking becomes a ThinkingPart without text
    before it: that is how the renderer puts it back. Texts are joined, except around a seal, which is bound to
    the part it came on.
    """

    def __init__(self, model: str, ids: RecordIds) -> None:
        self._model = model
        self._ids = ids
        self._parts: list[Part] = []
        self._usage = Usage()
        self._reported: dict[str, int] = {}
        self._finish: str | None = None
        self._blocked = False
        self._id: str | None = None
        self._served_by: str | None = None
        self._sealed = False

    def add(self, response: types.GenerateContentResponse) -> Iterator[Chunk]:
        """Take one response of a stream, or the only one; yields what is new in it."""
        self._id = response.response_id or self._id
        self._served_by = response.model_version or self._served_by
        if response.usage_metadata is not None:
            self._usage = _usage(response.usage_metadata)
            cached = response.usage_metadata.cached_content_token_count
            self._reported = {} if cached is None else {"read": cached}
        if response.prompt_feedback is not None and response.prompt_feedback.block_reason is not None:
            self._blocked = True
        for candidate in (response.candidates or [])[:1]:
            if candidate.finish_reason is not None:
                self._finish = candidate.finish_reason.value
            for part in (candidate.content.parts or []) if candidate.content else []:
                yield from self._take(part)

    def response(self) -> ModelResponse:
        """The whole answer; raises where it is not complete."""
        parts, stop = ended(tuple(self._parts), self._stop())
        return ModelResponse(
            parts=parts,
            stop=stop,
            usage=self._usage,
            model=self._served_by or self._model,
            id=self._id,
            reported=self._reported,
            finish=self._finish or "",
        )

    def _stop(self) -> Stop:
        if self._blocked:
            return "refusal"
        if self._finish is None:
            raise ended_early(self._model)
        stop = _STOPS.get(self._finish)
        if stop is None:
            raise BadResponse(f"{self._model} ended its answer with {self._finish}; ask again, or change the request")
        return stop

    def _take(self, part: types.Part) -> Iterator[Chunk]:
        seal = base64.urlsafe_b64encode(part.thought_signature).decode() if part.thought_signature else None
        if part.thought:
            self._join(ThinkingPart(part.text or "", signature=seal, provider="gemini"), sealed=seal is not None)
            if part.text:
                yield ThinkingChunk(part.text)
            return
        if seal is not None:
            self._parts.append(ThinkingPart(signature=seal, provider="gemini"))
        if part.function_call is not None:
            call = self._call(part.function_call)
            self._parts.append(call)
            yield ToolCallChunk(call.id, call.name, json.dumps(call.input))
        elif part.text is not None:
            if part.text:
                self._join(TextPart(part.text), sealed=seal is not None)
                yield TextChunk(part.text)
        else:
            body: dict[str, Any] = part.model_dump(mode="json", exclude_none=True, exclude={"thought_signature"})
            self._parts.append(NativePart("gemini", body))

    def _join(self, part: TextPart | ThinkingPart, *, sealed: bool) -> None:
        """Append a part, or add its text to the one before it where neither carries a seal."""
        last = self._parts[-1] if self._parts else None
        free = not sealed and not self._sealed
        if free and isinstance(part, TextPart) and isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + part.text)
        elif free and isinstance(part, ThinkingPart) and isinstance(last, ThinkingPart) and last.text:
            self._parts[-1] = ThinkingPart(last.text + part.text, provider="gemini")
        else:
            self._parts.append(part)
        self._sealed = sealed

    def _call(self, call: types.FunctionCall) -> ToolCallPart:
        taken = {part.id for part in self._parts if isinstance(part, ToolCallPart)}
        id = call.id or f"{self._id or self._ids.next_id()}-{len(taken)}"
        if id in taken:
            id = f"{id}-{len(taken)}"
        return ToolCallPart(id, call.name or "", call.args or {})


def _usage(reported: types.GenerateContentResponseUsageMetadata) -> Usage:
    """Tokens with one meaning for all providers: what was cached is inside the prompt, thinking is output."""
    return Usage(
        input=(reported.prompt_token_count or 0) + (reported.tool_use_prompt_token_count or 0),
        output=(reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0),
        cache_read=reported.cached_content_token_count or 0,
    )


_MODES = {"auto": "AUTO", "none": "NONE", "any": "ANY"}
_OPENED: ContextVar[list[Any] | None] = ContextVar("_OPENED", default=None)
"""The HTTP responses of the stream that is being opened, so that it can close them."""


class GeminiModel(StreamedModel):
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

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        client = await self._connected()
        body = self._body(request)
        answer, repairer = GeminiAnswer(self.name, self._ids), Repairer()
        opened: list[Any] = []
        has_begun = False
        _OPENED.set(opened)
        try:
            responses = await client.aio.models.generate_content_stream(**body)
            async with aclosing(responses):
                async for response in responses:
                    has_begun = True
                    for chunk in repairer.chunks(answer.add(response)):
                        yield chunk
        except Exception as error:
            raise _as_loom_error(error, self.name) from error
        finally:
            # Closing the SDK's stream leaves the connection open until a garbage collection.
            with CancelScope(shield=True):
                for http_response in opened:
                    await http_response.aclose()
        if not has_begun:
            raise nothing_came(self.name)
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
    config |= plain_settings(settings, max_output="max_output_tokens", stop="stop_sequences")
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
        failed = cast("Any", error)
        failure = Failure.read(failed.details, status=failed.code, retry_after=_retry_delay(failed.details))
        return as_error(who, failure, key="GEMINI_API_KEY")
    if isinstance(error, HTTPError | OSError):
        return unreachable(who, error)
    return unreadable(who, error)


def _retry_delay(details: Any) -> float | None:
    """Seconds to wait, from the RetryInfo of an error (`retryDelay: "34.5s"`)."""
    try:
        for detail in details["error"]["details"]:
            if str(detail.get("@type", "")).endswith("RetryInfo"):
                return max(0.0, float(str(detail["retryDelay"]).removesuffix("s")))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # an error is free to say nothing about waiting
    return None
