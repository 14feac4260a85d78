"""GGUF models inside this process, with tools by constrained output."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final
from urllib.request import Request, urlopen

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
from loom.errors import BadResponse, MissingExtra, NotFound, ProviderError, UsageError
from loom.protocols.model import Chunk, ModelRequest, ModelResponse, TextChunk, ToolCallChunk
from loom.providers._failures import Failure, as_error
from loom.providers.models._answer import plain_settings
from loom.providers.models.openai import ChatReader, schema_form
from loom.providers.models.sdk import Body, StreamedModel

# A GGUF file in memory, run by llama.cpp inside this process.

_SILENT = -1


class Runtime:
    """A loaded model. llama.cpp also listens on a free port of the loopback: only who has `key` is answered there."""

    def __init__(self, path: Path, *, threads: int, context_window: int) -> None:
        try:
            import xllamacpp  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra(f"the model local:{path}", "local") from error
        if not path.is_file():
            raise NotFound(f"there is no model file {path}; give the path of a GGUF file")
        self.key = secrets.token_urlsafe()
        loader: Any = xllamacpp
        params = loader.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_window
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = False
        params.verbosity = _SILENT
        params.api_keys = [self.key]
        try:
            self._server: Any = loader.Server(params)
        except RuntimeError as error:
            raise ProviderError(
                f"{path} cannot be loaded ({error}); is it a GGUF file, and is there memory?"
            ) from error
        self.address: str = self._server.listening_address
        self.context_window = self._read_window()

    def start(self, body: Body) -> Generation:
        """Begin to answer a request in the Chat form; answers are made one after the other."""
        return Generation(self._server, body)

    def _read_window(self) -> int:
        """The window as llama.cpp made it: rounded up, and no larger than what the model was trained for."""
        asked = Request(f"{self.address}/props", headers={"authorization": f"Bearer {self.key}"})  # noqa: S310
        with urlopen(asked, timeout=30) as answer:  # noqa: S310
            return json.load(answer)["default_generation_settings"]["n_ctx"]


class Generation:
    """One answer on its way: a thread writes it, the caller reads it.

    It ends with None. It can be stopped at every token; not while the prompt is read.
    """

    def __init__(self, server: Any, body: Body) -> None:
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._stopped = Event()
        self._thread = Thread(target=self._run, args=(server, body), name="loom-local-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether something may still be written."""
        return self._thread.is_alive()

    async def next(self) -> Body | None:
        """The next event of the stream; None at its end. Raises what llama.cpp raised."""
        event = await to_thread.run_sync(self._events.get, abandon_on_cancel=True)
        if isinstance(event, Exception):
            raise ProviderError(f"llama.cpp refused the request ({event})") from event
        return event

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()

    async def ended(self) -> None:
        """Wait until nothing is written any more."""
        await to_thread.run_sync(self._thread.join)

    def _run(self, server: Any, body: Body) -> None:
        try:
            server.handle_chat_completions(body, self._take)
        except Exception as error:  # noqa: BLE001  (whatever it is, it belongs to who asked)
            self._events.put(error)
        self._events.put(None)

    def _take(self, event: Body) -> bool:
        self._events.put(event)
        return self._stopped.is_set()


# Tool calls of models that were not trained for them: the answer follows a JSON schema that has room for calls.
#
# Small models answer a native tool prompt with anything; what a grammar does not allow they cannot write.

_HOW: Final = """You can call tools. Answer with one JSON object:
{forms}
The tools, one per line:
{tools}"""
_SAY: Final = '{"say": "your answer"} to answer the user'
_CALL: Final = (
    '{"call": [{"name": "...", "input": {...}}, ...]} to call one tool or several; their results are told to you'
)


def chosen_tools(tools: Sequence[ToolSpec], choice: str | None) -> tuple[ToolSpec, ...]:
    """The tools that a tool choice leaves."""
    if choice == "none":
        return ()
    if choice in {None, "auto", "any"}:
        return tuple(tools)
    named = tuple(tool for tool in tools if tool.name == choice)
    if not named:
        raise UsageError(f"tool_choice={choice!r} is not a tool of this request; use auto, none, any, or a tool's name")
    return named


def instruction(tools: Sequence[ToolSpec], *, must_call: bool) -> str:
    """The instruction that lists the tools."""
    forms_of_tools = [{"name": t.name, "description": t.description, "input": t.input_schema} for t in tools]
    forms = _CALL if must_call else f"{_SAY}\n{_CALL}"
    return _HOW.format(forms=forms, tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in forms_of_tools))


def answer_schema(tools: Sequence[ToolSpec], *, must_call: bool, output: JSON = None) -> JSON:
    """The schema of an answer: something to say (after `output`, if given), or calls."""
    call = {
        "type": "array",
        "items": {"anyOf": [_object({"name": {"const": t.name}, "input": t.input_schema}) for t in tools]},
        "minItems": 1,
    }
    calls = _object({"call": call})
    return calls if must_call else {"anyOf": [_object({"say": output or {"type": "string"}}), calls]}


def read(text: str, answer_id: str | None) -> tuple[TextPart | ToolCallPart, ...]:
    """The parts of an answer that followed the schema.

    Raises:
        BadResponse: it did not; most often it was cut off.
    """
    try:
        answer: Any = json.loads(text)
        if "say" in answer:
            said = answer["say"] if isinstance(answer["say"], str) else json.dumps(answer["say"], ensure_ascii=False)
            return (TextPart(said),) if said else ()
        return tuple(
            ToolCallPart(f"call_{answer_id or 'answer'}_{place}", call["name"], call["input"])
            for place, call in enumerate(answer["call"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadResponse(f"the answer calls no tool and says nothing ({error!r}): {text:.200}") from error


def written(calls: Sequence[ToolCallPart]) -> str:
    """Calls that were made before, as the model wrote them."""
    return json.dumps({"call": [{"name": call.name, "input": call.input} for call in calls]}, ensure_ascii=False)


def _object(properties: dict[str, JSON]) -> JSON:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_ROUNDED_TO = 256
"""llama.cpp makes a window a multiple of this."""


class LocalModel(StreamedModel):
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
    def context_window(self) -> int:
        """Tokens of prompt and answer together; once the file is loaded, no more than the model was trained for."""
        return self._runtime.context_window if self._runtime else self._window

    @property
    def is_loaded(self) -> bool:
        """Whether the file is in memory; the first request loads it."""
        return self._runtime is not None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The answer as it comes; the last item is the whole ModelResponse."""
        tools = chosen_tools(request.tools, request.settings.tool_choice)
        body = self._body(request, tools)
        runtime = await to_thread.run_sync(self._loaded)
        reader = ChatReader(self.name, self.provider, request)
        generation = runtime.start(body)
        self._running = [*(other for other in self._running if other.alive), generation]
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
            for part in response.parts:
                if isinstance(part, TextPart):
                    yield TextChunk(part.text)
                elif isinstance(part, ToolCallPart):
                    yield ToolCallChunk(part.id, part.name, json.dumps(part.input))
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

    def _body(self, request: ModelRequest, tools: Sequence[ToolSpec]) -> Body:
        settings = request.settings
        must_call = settings.tool_choice not in {None, "auto"}
        system = list(request.system)
        schema: JSON = settings.output_schema
        if tools:
            system.append(instruction(tools, must_call=must_call))
            schema = answer_schema(tools, must_call=must_call, output=schema)
        body: Body = {
            "messages": _messages("\n\n".join(system), request.messages),
            "max_tokens": settings.max_output or self._max_output,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= plain_settings(settings, max_output=None, stop="stop")
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
    return "\n\n".join([*texts, *([written(calls)] if calls else [])])


def _refuse_media(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, ImagePart | DocumentPart):
            raise UsageError(f"a local model reads text only, not {plain(part)}; leave it out, or use another model")


def _with_calls(response: ModelResponse) -> ModelResponse:
    """The answer with the calls that its text makes; an answer that was cut off stays text."""
    if response.stop == "length":
        return response
    kept = [part for part in response.parts if not isinstance(part, TextPart)]
    parts = (*kept, *read(response.text, response.id))
    calls = any(isinstance(part, ToolCallPart) for part in parts)
    return replace(response, parts=parts, stop="tool" if calls else response.stop)
