"""Any GGUF file, run inside this process: no key, no network, no server to start."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

from anyio import CancelScope, to_thread

from loom.core.message import (
    JSON,
    DocumentPart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    plain,
)
from loom.errors import UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk, ToolCallChunk
from loom.providers.models import local_tools
from loom.providers.models.failures import Failure, as_error
from loom.providers.models.local_runtime import Generation, Runtime
from loom.providers.models.openai import schema_form
from loom.providers.models.openai_chat import ChatReader
from loom.providers.models.sdk import Body

_ROUNDED_TO = 256
"""llama.cpp makes a window a multiple of this."""


class LocalModel:
    """A GGUF file. It is loaded at the first request and unloaded by aclose().

    Answers are made one after the other. Tools are asked for through a JSON schema, because small models call none
    of their own accord: with tools, a stream brings the text in one piece. Pictures and documents are refused.
    """

    provider = "local"
    one_at_a_time = True

    def __init__(
        self, model: str | Path, *, threads: int = 1, context_window: int = 4096, max_output: int = 1024
    ) -> None:
        """Make a model. Nothing is loaded before the first request.

        Args:
            model: the path of the file.
            threads: how many cores to use. On a machine that others use too, one is faster than two that wait for
                each other.
            context_window: tokens of prompt and answer together; a larger one takes more memory.
            max_output: tokens of an answer where a request does not say; a small model may never stop by itself.
        """
        if not str(model):
            raise UsageError("a local model needs a file; write local:/path/to/model.gguf")
        for name, value in (("threads", threads), ("context_window", context_window), ("max_output", max_output)):
            if value < 1:
                raise UsageError(f"{name}={value} is out of range; give 1 or more")
        self.model = str(model)
        self._path = Path(model).expanduser()
        self._threads = threads
        self._window = -(-context_window // _ROUNDED_TO) * _ROUNDED_TO
        self._max_output = max_output
        self._runtime: Runtime | None = None
        self._lock = Lock()
        self._running: list[Generation] = []

    @property
    def name(self) -> str:
        """`local:PATH`."""
        return f"{self.provider}:{self.model}"

    @property
    def context_window(self) -> int:
        """Tokens of prompt and answer together; once the file is loaded, no more than the model was trained for."""
        return self._runtime.context_window if self._runtime else self._window

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole answer."""
        last: Chunk | None = None
        async for chunk in self.stream(request):
            last = chunk
        assert isinstance(last, ModelResponse)
        return last

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        tools = local_tools.chosen_tools(request.tools, request.settings.tool_choice)
        body = self._body(request, tools)
        runtime = await to_thread.run_sync(self._loaded)
        reader = ChatReader(self.name, self.provider, request)
        generation = self._started(runtime, body)
        try:
            while (event := await generation.next()) is not None:
                if "error" in event:
                    raise as_error(self.name, Failure.read(event, status=event["error"].get("code")))
                for chunk in reader.take(event):
                    if not (tools and isinstance(chunk, TextChunk)):
                        yield chunk
        finally:
            generation.stop()
        response = replace(reader.response(), model=self.model)
        if tools:
            response = _with_calls(response)
            for chunk in _chunks(response):
                yield chunk
        yield response

    async def aclose(self) -> None:
        """Stop every answer and unload the file. Closing twice is allowed; the next request loads it again."""
        running, self._running = self._running, []
        for generation in running:
            generation.stop()
        with CancelScope(shield=True):
            for generation in running:
                await generation.ended()
        self._runtime = None

    def _loaded(self) -> Runtime:
        with self._lock:
            if self._runtime is None:
                self._runtime = Runtime(self._path, threads=self._threads, context_window=self._window)
            return self._runtime

    def _started(self, runtime: Runtime, body: Body) -> Generation:
        generation = runtime.start(body)
        self._running = [*(other for other in self._running if other.alive), generation]
        return generation

    def _body(self, request: ModelRequest, tools: Sequence[ToolSpec]) -> Body:
        settings = request.settings
        must_call = settings.tool_choice not in {None, "auto"}
        system = list(request.system)
        schema: JSON = settings.output_schema
        if tools:
            system.append(local_tools.instruction(tools, must_call=must_call))
            schema = local_tools.schema(tools, must_call=must_call, output=schema)
        body: Body = {
            "messages": _messages("\n\n".join(system), request.messages),
            "max_tokens": settings.max_output or self._max_output,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.stop:
            body["stop"] = list(settings.stop)
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": schema_form(schema)}
        return {**body, **settings.extra}


def _messages(system: str, messages: Sequence[Message]) -> list[dict[str, str]]:
    """The conversation as text, which every chat template takes: one system text first, then turns that alternate."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    said = [("system", system), *((message.role, _text(message, names)) for message in messages)]
    turns: list[dict[str, str]] = []
    for role, text in said:
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{text}" if text else ""
        elif text:
            turns.append({"role": role, "content": text})
    return turns


def _text(message: Message, tool_names: Mapping[str, str]) -> str:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case TextPart(text):
                texts.append(text)
            case ToolResultPart(call_id):
                texts.append(f"{tool_names.get(call_id, call_id)}: {plain(part)}")
                _refuse_media(part.content)
            case ImagePart() | DocumentPart():
                _refuse_media((part,))
            case _:
                pass  # calls stand below; thinking and blocks of other providers are not for this model
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    return "\n\n".join([*texts, *([local_tools.written(calls)] if calls else [])])


def _refuse_media(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, ImagePart | DocumentPart):
            raise UsageError(f"a local model reads text only, not {plain(part)}; leave it out, or use another model")


def _with_calls(response: ModelResponse) -> ModelResponse:
    """The answer with the calls that its text makes; an answer that was cut off stays text."""
    if response.stop == "length":
        return response
    kept = [part for part in response.parts if not isinstance(part, TextPart)]
    parts = (*kept, *local_tools.read(response.text, response.id))
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    return replace(response, parts=parts, stop="tool" if calls else response.stop)


def _chunks(response: ModelResponse) -> Iterator[Chunk]:
    for part in response.parts:
        if isinstance(part, TextPart):
            yield TextChunk(part.text)
        elif isinstance(part, ToolCallPart):
            yield ToolCallChunk(part.id, part.name, json.dumps(part.input))
