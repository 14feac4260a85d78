"""Logs of calls: OpenTelemetry, LiteLLM, Langfuse, recorded requests. Each call repeats the conversation before it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, cast

from loom.errors import BadRequestFile
from loom.traces._blocks import JsonObject, maybe_table, maybe_text
from loom.traces.claude_code import call_of, count_of
from loom.traces.request import read_recorded, read_usage
from loom.traces.transcript import (
    EVENT,
    HARNESS,
    REPEATED_LINE,
    TOOL,
    RecordedCall,
    SkippedLine,
    SpokenText,
    Transcript,
    Writer,
    time_of,
    without_harness,
)

OTEL: Final = "opentelemetry"
LITELLM: Final = "litellm"
LANGFUSE: Final = "langfuse"
REQUESTS: Final = "requests"

_CALLS: Final = ("chat", "text_completion", "generate_content", "")
"""Operations that are one call of a model; others, such as invoke_agent, add up what their calls used."""
_IDS: Final = ("session_id", "sessionId", "litellm_session_id", "conversation_id", "trace_id", "traceId")
_STARTS: Final = ("startTime", "start_time", "startTimeUnixNano", "timestamp", "time", "at", "created_at")


@dataclass(frozen=True, slots=True)
class _LoggedCall:
    """One call in a log: what was sent, what came back, and what it used."""

    session: str
    id: str
    at: float | None
    model: str
    messages: list[JsonObject]
    usage: JsonObject | None = None
    effort: str = ""
    version: str = ""


@dataclass(slots=True)
class _Talk:
    """A conversation that is put together from its calls."""

    session_id: str
    known: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    texts: list[SpokenText] = field(default_factory=list[SpokenText])
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    skipped: list[SkippedLine] = field(default_factory=list[SkippedLine])


def is_log(record: JsonObject) -> bool:
    """Whether an object is a call, or an envelope of some."""
    return _program(record) is not None


def _program(record: JsonObject) -> str | None:
    if {"resourceSpans", "resource_spans"} & record.keys() or (
        isinstance(record.get("attributes"), dict | list)
        and {"context", "traceId", "trace_id", "spanId", "span_id"} & record.keys()
    ):
        return OTEL
    if isinstance(record.get("observations"), list) or {"usageDetails", "usage_details"} & record.keys():
        return LANGFUSE
    if {"input", "output"} <= record.keys() and {"sessionId", "userId", "traceId"} & record.keys():  # a trace alone
        return LANGFUSE
    if record.get("type") in ("GENERATION", "SPAN", "EVENT") and ("traceId" in record or "trace_id" in record):
        return LANGFUSE
    if {"prompt_tokens", "completion_tokens"} <= record.keys() and {"call_type", "startTime", "request_id"} & (
        record.keys()
    ):
        return LITELLM
    has_body = isinstance(record.get("model"), str) and {"messages", "input", "contents"} & record.keys()
    has_envelope = {"request", "body", "json"} & record.keys() and not {"role", "uuid"} & record.keys()
    return REQUESTS if has_body or has_envelope else None


def read_logs(values: Iterable[tuple[int, Any]], path: str, name: str) -> Iterator[Transcript]:
    """The conversations in a log, put together from its calls: what several calls repeat was said once.

    `name` is for those without an id.
    """
    talks: dict[str, _Talk] = {}
    ends: dict[bytes, str] = {}
    seen: set[str] = set()
    program, left = "", list[SkippedLine]()
    for line, value in values:
        if isinstance(value, str):
            left.append(SkippedLine(line, value))
            continue
        record = maybe_table(value)
        found = 0
        for written_by, call in _calls(record):
            found += 1
            program = program or written_by
            if call.id and call.id in seen:
                left.append(SkippedLine(line, REPEATED_LINE))
                continue
            seen.add(call.id or f"line {line}")
            session = call.session
            if not session:
                marks = _marks(call.messages)
                session = _continued(marks, ends, name)
                ends[marks[-1] if marks else b""] = session
            _add(talks.setdefault(session, _Talk(session)), call, line)
        if not found:
            left.append(SkippedLine(line, EVENT))
    for talk in talks.values():
        yield Transcript(
            program=program,
            session_id=talk.session_id,
            path=path,
            texts=tuple(talk.texts),
            calls=tuple(sorted(talk.calls, key=lambda one: one.at or 0.0)),
            skipped=(*left, *talk.skipped),
        )
        left = []
    if left:
        yield Transcript(program=program or REQUESTS, session_id=name, path=path, skipped=tuple(left))


def _continued(marks: list[bytes], ends: dict[bytes, str], stem: str) -> str:
    """The conversation that a call without an id goes on with: the one whose messages it begins with."""
    found = next((session for mark in reversed(marks) if (session := ends.get(mark))), None)
    return found or f"{stem}-{len(set(ends.values()))}"


def _marks(messages: list[JsonObject]) -> list[bytes]:
    """A digest of the messages up to each one."""
    marks, mark = list[bytes](), b""
    for one in messages:
        said = json.dumps([_role(one), _words(one)]).encode()
        mark = blake2b(mark + said, digest_size=12).digest()
        marks.append(mark)
    return marks


def _add(talk: _Talk, call: _LoggedCall, line: int) -> None:
    """Add a call, and what it says that the calls before it did not."""
    now = Counter[tuple[str, str]]()
    number = len(talk.texts)
    for message in call.messages:
        role, text = _role(message), _words(message)
        words = without_harness(text) if role == "user" else text.strip()
        now[role, text] += 1
        if now[role, text] <= talk.known[role, text]:
            continue
        talk.known[role, text] += 1
        if role not in {"user", "assistant"} or not words:
            reason = TOOL if role == "tool" or not text.strip() else HARNESS
            talk.skipped.append(SkippedLine(line, reason))
            continue
        writer: Writer = "user" if role == "user" else "assistant"
        # The id is that of the text in its conversation: the same words may be said again.
        place = f"{talk.session_id}:{len(talk.texts)}"
        talk.texts.append(SpokenText(id=place, writer=writer, text=words, at=call.at, line=line))
        number += role == "user"
    if call.usage is not None:
        what: dict[str, Any] = {"id": call.id or f"{talk.session_id}:{line}", "at": call.at, "model": call.model}
        more: dict[str, Any] = {"effort": call.effort, "program_version": call.version, "number": number, "line": line}
        talk.calls.append(_used(call.usage, {**what, **more}))


def _used(usage: JsonObject, what: dict[str, Any]) -> RecordedCall:
    if "input_tokens" in usage and "cache_creation" in usage:
        return call_of(usage, **what)
    found = read_usage({"usage": usage})
    if found is None:
        return RecordedCall(fresh=0, output=0, **what)
    # A record that never mentions the cache does not say that nothing was read.
    says = '"cach' in json.dumps(usage) or "_cach" in json.dumps(usage)
    return RecordedCall(
        fresh=max(0, found.input - found.cache_read - found.cache_write),
        output=found.output,
        read=found.cache_read if says else None,
        written_short=found.cache_write if says and found.cache_write else None,
        **what,
    )


def _calls(record: JsonObject) -> Iterator[tuple[str, _LoggedCall]]:
    """The calls in one value of a log, with the program that wrote it."""
    program = _program(record)
    if program == OTEL:
        for span in _spans(record):
            if call := _of_span(span):
                yield OTEL, call
    elif program == LANGFUSE:
        session = maybe_text(record.get("sessionId"))
        for row in _objects(record.get("observations")) or [record]:
            if call := _of_langfuse(row, session):
                yield LANGFUSE, call
    elif program == LITELLM:
        yield LITELLM, _of_litellm(record)
    elif program == REQUESTS and (call := _of_request(record)):
        yield REQUESTS, call


# OpenTelemetry: OTLP as JSON, whole or one on each line, and spans as the SDKs print them.


def _spans(record: JsonObject) -> Iterator[JsonObject]:
    resources = _objects(record.get("resourceSpans", record.get("resource_spans")))
    if not resources:
        yield record
    for resource in resources:
        name = next((name for name in _SCOPES if name in resource), "")
        for scope in _objects(resource.get(name)):
            yield from _objects(scope.get("spans"))


_SCOPES: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_MESSAGES: Final = (
    ("gen_ai.input.messages", "gen_ai.output.messages"),
    ("gen_ai.prompt", "gen_ai.completion"),
    ("llm.input_messages", "llm.output_messages"),
    ("ai.prompt.messages", "ai.response.text"),
)
"""Where messages are: by today's convention, by those before it and OpenLLMetry, by OpenInference, by Vercel's SDK."""
_SPOKEN_EVENT: Final = re.compile(r"gen_ai\.(?:(system|user|assistant|tool)\.message|choice)")
_LLM_KIND: Final = "openinference.span.kind"


def _of_span(span: JsonObject) -> _LoggedCall | None:
    named = _named(span.get("attributes"))
    events = [(maybe_text(one.get("name")), _named(one.get("attributes"))) for one in _objects(span.get("events"))]
    for _, inside in events:  # some programs write the messages in an event of the span
        named = {**inside, **named}
    is_call = named.get("gen_ai.operation.name", "") in _CALLS and any(key.startswith("gen_ai.") for key in named)
    if not is_call and named.get(_LLM_KIND) != "LLM":
        return None
    usage = _span_usage(named)
    messages = _span_messages(named) or [message for event in events for message in _spoken_event(*event)]
    if not usage and not messages:
        return None
    context = maybe_table(span.get("context"))
    trace = _first(span, ("traceId", "trace_id")) or maybe_text(context.get("trace_id"))
    session = _first(named, ("gen_ai.conversation.id", "session.id")) or trace
    id = _first(span, ("spanId", "span_id")) or maybe_text(context.get("span_id"))
    model = _first(named, ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"))
    effort = _first(named, ("gen_ai.request.reasoning_effort", "gen_ai.openai.request.reasoning_effort"))
    return _LoggedCall(session, id, _when(span), model, messages, usage, effort)


def _named(attributes: Any) -> JsonObject:
    """Attributes by name, from a list of OTLP or an object."""
    return {maybe_text(one.get("key")): _otlp(one.get("value")) for one in _objects(attributes)} or maybe_table(
        attributes
    )


def _span_messages(named: JsonObject) -> list[JsonObject]:
    """The messages of a span, by the first convention that it keeps."""
    for sent, came in _MESSAGES:
        found = [*_messages(_numbered(named, sent)), *_messages(_numbered(named, came), role="assistant")]
        if found:
            return found
    return []


def _numbered(named: JsonObject, name: str) -> Any:
    """The value of an attribute, or the list that stands in attributes such as `NAME.0.content`."""
    if name in named:
        return named[name]
    found: dict[int, JsonObject] = {}
    for key, value in named.items():
        number, _, field = key.removeprefix(f"{name}.").partition(".")
        if key.startswith(f"{name}.") and number.isdecimal() and len(number) < 9:
            field = field.removeprefix("message.")  # OpenInference
            parts = _json(value) if field == "content" and isinstance(value, str) else None
            found.setdefault(int(number), {})[field] = parts if isinstance(parts, list) else value
            if field.startswith("contents.") and field.endswith(".message_content.text"):
                found[int(number)].setdefault("parts", []).append({"type": "text", "text": value})
    return [found[number] for number in sorted(found)]


def _spoken_event(name: str, inside: JsonObject) -> list[JsonObject]:
    """The message that an event of a span is, by the conventions of 2024 and 2025."""
    match = _SPOKEN_EVENT.fullmatch(name)
    if not match:
        return []
    body = _opened(inside.get("gen_ai.event.content")) or inside
    return _messages({"content": "", **body, **_opened(body.get("message")), "role": match[1] or "assistant"})


def _span_usage(named: JsonObject) -> JsonObject | None:
    """Usage by today's names: what was read and written lies inside the input."""
    input = _used_by(named, "input_tokens", "prompt_tokens", "llm.token_count.prompt")
    output = _used_by(named, "output_tokens", "completion_tokens", "llm.token_count.completion")
    if input is None and output is None:
        return None
    details = "llm.token_count.prompt_details"
    read = _used_by(named, "cache_read.input_tokens", "cache_read_input_tokens", f"{details}.cache_read")
    written = _used_by(named, "cache_creation.input_tokens", "cache_creation_input_tokens", f"{details}.cache_write")
    inside = (read or 0) + (written or 0)
    # Some instrumentations pass on Anthropic's input, which leaves them out.
    total = (input or 0) if (input or 0) >= inside else (input or 0) + inside
    cache = {"cached_tokens": read, "cache_write_tokens": written}
    usage: JsonObject = {"prompt_tokens": total, "completion_tokens": output or 0}
    return usage if read is None and written is None else {**usage, "prompt_tokens_details": cache}


def _used_by(named: JsonObject, *names: str) -> int | None:
    """A count by today's name, or by one before; without a prefix it is one of `gen_ai.usage`."""
    found = (count_of(named.get(name if name.startswith("llm.") else f"gen_ai.usage.{name}")) for name in names)
    return next((count for count in found if count is not None), None)


_OTLP_NAMES: Final = {"int_value": "intValue", "array_value": "arrayValue", "kvlist_value": "kvlistValue"}
"""Names of OTLP as some programs write them, in JSON of another form."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
"""A whole number as OTLP has them, of 64 bits."""


def _otlp(value: Any, depth: int = 20) -> Any:
    """A value of OTLP, which names its type."""
    given = maybe_table(value)
    for given_name, inner in given.items():
        name = _OTLP_NAMES.get(given_name, given_name)
        if name == "intValue":
            return int(inner) if _WHOLE.fullmatch(str(inner)) else None
        if name == "arrayValue":
            return [_otlp(one, depth - 1) for one in _objects(maybe_table(inner).get("values"))] if depth else None
        if name == "kvlistValue":
            pairs = _objects(maybe_table(inner).get("values")) if depth else []
            return {maybe_text(one.get("key")): _otlp(one.get("value"), depth - 1) for one in pairs}
        return inner
    return None


# Langfuse: traces with their observations, or observations alone. Its kinds of tokens add up, none lies in another.


def _of_langfuse(row: JsonObject, session: str) -> _LoggedCall | None:
    if row.get("type", "GENERATION") != "GENERATION":
        return None
    details = _opened(row.get("usageDetails")) or _opened(row.get("usage_details")) or _opened(row.get("usage"))
    model = _first(row, ("model", "provided_model_name"))
    messages = [*_messages(row.get("input")), *_messages(row.get("output"), role="assistant")]
    if not details and not messages:
        return None
    session = session or _first(row, _IDS)
    return _LoggedCall(session, maybe_text(row.get("id")), _when(row), model, messages, _added_up(details))


def _added_up(details: JsonObject) -> JsonObject | None:
    if not details:
        return None
    read = written = None
    fresh = 0
    for name, value in details.items():
        count = count_of(value) or 0
        if "cost" in name.casefold():
            continue
        if "cach" in name and ("creation" in name or "write" in name):
            written = (written or 0) + count
        elif "cach" in name:
            read = (read or 0) + count
        elif name.startswith(("input", "prompt")):
            fresh += count
    output = count_of(details.get("output")) or count_of(details.get("completionTokens")) or 0
    usage: JsonObject = {"prompt_tokens": fresh + (read or 0) + (written or 0), "completion_tokens": output}
    cache = {"cached_tokens": read, "cache_write_tokens": written}
    return usage if read is None and written is None else {**usage, "prompt_tokens_details": cache}


# LiteLLM: rows of its spend logs, and its standard payload.


def _of_litellm(row: JsonObject) -> _LoggedCall:
    metadata = _opened(row.get("metadata"))
    response = _opened(row.get("response"))
    given = (maybe_table(response.get("usage")), maybe_table(metadata.get("usage_object")))
    plain = {name: row[name] for name in ("prompt_tokens", "completion_tokens")}
    usage = next((one for one in given if one), {**plain, **maybe_table(metadata.get("additional_usage_values"))})
    sent = _messages(row.get("messages")) or _messages(_opened(row.get("proxy_server_request")))
    messages = [*sent, *_answer(response)]
    session = _first(row, _IDS) or _first(metadata, _IDS)
    id = maybe_text(row.get("id")) or maybe_text(row.get("request_id"))
    return _LoggedCall(session, id, _when(row), maybe_text(row.get("model")), messages, usage)


# Requests as they were sent, alone or with their answer.


def _of_request(record: JsonObject) -> _LoggedCall | None:
    try:
        body, at = read_recorded(record)
    except BadRequestFile:
        return None
    sent = next((body[name] for name in ("messages", "input", "contents") if name in body), None)
    response = _opened(record.get("response")) or _opened(record.get("result"))
    answer = _opened(response.get("body")) or response
    messages = [*_messages(sent), *_answer(answer)]
    if not messages:
        return None
    usage = next((u for place in (answer, record) if (u := _usage_in(place))), None)
    effort = maybe_text(maybe_table(body.get("reasoning")).get("effort")) or maybe_text(body.get("reasoning_effort"))
    id = maybe_text(answer.get("id"))
    return _LoggedCall(_first(record, _IDS), id, at, maybe_text(body.get("model")), messages, usage, effort)


def _usage_in(place: JsonObject) -> JsonObject:
    return maybe_table(place.get("usage")) or maybe_table(place.get("usageMetadata"))


def _answer(response: JsonObject) -> list[JsonObject]:
    """The message of the model in a response of any provider."""
    for choice in _objects(response.get("choices"))[:1]:
        return [{"role": "assistant", **maybe_table(choice.get("message"))}]
    for candidate in _objects(response.get("candidates"))[:1]:
        return [{**maybe_table(candidate.get("content")), "role": "assistant"}]
    for one in _objects(_first_of(response.get("generations")))[:1]:  # LangChain: of the first conversation
        message = _plain_message(maybe_table(one.get("message")))
        return [{"content": one.get("text"), **message, "role": "assistant"}]
    output = response.get("output")
    if isinstance(output, list):
        return [one for one in _objects(cast("object", output)) if one.get("type", "message") == "message"]
    return [{"role": "assistant", "content": response["content"]}] if response.get("content") else []


# Messages of every provider.


_LANGCHAIN: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
"""Who wrote a message of LangChain, by its type; a piece of a stream is called AIMessageChunk."""
_TEXTS: Final = ("text", "input_text", "output_text")


def _messages(value: Any, role: str = "user") -> list[JsonObject]:
    """The messages in a value: a list of them, an object with one, a text, or any of these as JSON text.

    `role` is that of a text, and of a message that does not say who wrote it.
    """
    if isinstance(value, str):
        text, value = value, _json(value)
        if value is None:
            return [{"role": role, "content": text}] if text.strip() else []
    if isinstance(value, dict):
        record = _plain_message(cast("JsonObject", value))
        inner = next((record[name] for name in ("messages", "input", "contents", "kwargs") if name in record), None)
        if inner is not None and "role" not in record:
            return _messages(inner, role)
        return [{"role": role, **record}] if {"content", "parts", "role"} & record.keys() else _answer(record)
    rows = cast("list[object]", value) if isinstance(value, list) else []
    if rows and all(maybe_table(row).get("type") in _TEXTS and "role" not in maybe_table(row) for row in rows):
        return [{"role": role, "content": rows}]
    found: list[JsonObject] = []
    for row in rows:
        if isinstance(row, dict):
            found.append({"role": role, **_plain_message(cast("JsonObject", row))})
        elif isinstance(row, list):  # LangChain calls a model with several conversations at once
            found += _messages(row, role)
    return found


def _plain_message(record: JsonObject) -> JsonObject:
    """A message of LangChain in either of the ways it is written, with its role; any other as it is."""
    kind, inside = maybe_text(record.get("type")), record
    if kind == "constructor":
        inside = maybe_table(record.get("kwargs"))
        names = record.get("id")
        last = maybe_text(cast("list[Any]", names)[-1]) if isinstance(names, list) and names else ""
        kind = maybe_text(inside.get("type")) or last
    elif kind in _LANGCHAIN and isinstance(record.get("data"), dict):
        inside = maybe_table(record["data"])
    kind = kind.removesuffix("Chunk").removesuffix("Message").lower()
    if "role" in inside or kind not in _LANGCHAIN:
        return record
    return {**inside, "type": "message", "role": _LANGCHAIN[kind]}


def _json(text: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _opened(value: Any) -> JsonObject:
    """An object, or the one in a JSON text."""
    return maybe_table(_json(value) if isinstance(value, str) else value)


def _role(message: JsonObject) -> str:
    role = maybe_text(message.get("role"))
    kind = message.get("type", "message")
    if kind != "message":  # an item that is a tool call, its result or reasoning
        return "tool"
    return {"human": "user", "model": "assistant", "ai": "assistant", "function": "tool"}.get(role, role)


def _words(message: JsonObject) -> str:
    content = message.get("content", message.get("parts"))
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in _objects(content):
        if part.get("type", "text") in _TEXTS:
            text = part.get("text", part.get("content"))
            texts += [text] if isinstance(text, str) and text.strip() else []
    return "\n\n".join(texts)


def _when(row: JsonObject) -> float | None:
    return next((at for name in _STARTS if (at := time_of(row.get(name))) is not None), None)


def _first(row: JsonObject, names: Iterable[str]) -> str:
    return next((str(row[name]) for name in names if row.get(name)), "")


def _first_of(value: Any) -> Any:
    return next(iter(cast("list[Any]", value)), None) if isinstance(value, list) else None


def _objects(value: Any) -> list[JsonObject]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("JsonObject", row) for row in rows if isinstance(row, dict)]
