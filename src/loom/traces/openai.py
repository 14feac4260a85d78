"""OpenAI's recorded requests: Chat Completions and Responses."""

from __future__ import annotations

from typing import Any, Final

from loom.catalog import CacheRules
from loom.core.message import NativePart, TextPart
from loom.core.window import Level
from loom.errors import BadRequestFile
from loom.traces import anthropic
from loom.traces._blocks import (
    BlockCollector,
    BlockPlace,
    JsonObject,
    ShownPart,
    WireFormat,
    as_list,
    canonical,
    document,
    from_url,
    image,
    maybe_table,
    maybe_text,
    refuse,
    table,
    tables,
    text_body,
    text_of,
    without_payloads,
)

TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})
IMAGES: Final = frozenset({"image_url", "input_image", "computer_screenshot"})
FILES: Final = frozenset({"file", "input_file"})
OPENING: Final = frozenset({"system", "developer"})
"""Roles that stand for the system prompt, as long as nothing else came before them."""

_IMPLICIT_TTL: Final = "30m"


def content(value: object, place: BlockPlace, out: BlockCollector, name: object = None) -> None:
    """The content of a message: a string, or a list of parts. A named author is part of each block."""
    if isinstance(value, str):
        out.add_text(place, value, {"name": name})
        return
    for path, part in tables(value, place.path):
        _add_part(part, place.at(path), out, name)


def _add_part(part: JsonObject, place: BlockPlace, out: BlockCollector, name: object) -> None:
    type = part.get("type")
    if not isinstance(type, str):
        refuse(place.path, part, 'a content part with a "type", such as {"type": "text", "text": ...}')
    named = {**part, "name": name} if name else part
    if type in TEXTS:
        text = part.get("refusal") if type == "refusal" else part.get("text")
        rest = {key: value for key, value in named.items() if key not in {"refusal", "logprobs"}}
        out.add_text(place, maybe_text(text), rest)
    elif type in anthropic.KINDS:  # gateways pass Anthropic's own blocks on
        anthropic.add_block(named, place, out)
    else:
        body, marker = out.split(named, place.path)
        out.add(place, _kind(type), body, lambda _: _part_tokens(body, out), marker)


def tool_result(item: JsonObject, key: str, place: BlockPlace, out: BlockCollector) -> None:
    """The answer of a tool, a block for each of its parts; `key` is where they stand in the item."""
    head, marker = out.split(item, place.path)
    value, path, call = item.get(key), f"{place.path}.{key}", item.get("call_id", item.get("tool_call_id"))
    if as_list(value) is not None:
        parts = list(tables(value, path))
    else:
        parts = [(path, text_body(value if isinstance(value, str) else canonical(value)))]
    for at, part in parts:
        body, own = out.split(part, at)
        plain = text_body(maybe_text(body.get("text")), body) if maybe_text(body.get("type")) in TEXTS else body
        shown = {**head, key: plain}
        out.add(place.at(at), "tool_result", shown, lambda _, part=plain: out.result(call, [_shown(part)]), own)
    out.mark_last(marker)


def settings(body: JsonObject, _out: BlockCollector) -> dict[Level, dict[str, Any]]:
    """The parameters that are hashed before everything else."""
    text, reasoning = maybe_table(body.get("text")), maybe_table(body.get("reasoning"))
    form = body.get("response_format") or text.get("format")
    verbosity = body.get("verbosity") or text.get("verbosity")
    return {
        "tools": {
            "parallel_tool_calls": False if body.get("parallel_tool_calls") is False else None,
            "format": None if form == {"type": "text"} else form,
            "effort": body.get("reasoning_effort") or reasoning.get("effort"),
            "verbosity": None if verbosity == "medium" else verbosity,
            "prompt_cache_key": body.get("prompt_cache_key"),
            "service_tier": None if body.get("service_tier") == "auto" else body.get("service_tier"),
            "prompt": body.get("prompt") if isinstance(body.get("prompt"), dict) else None,
        }
    }


def automatic(body: JsonObject, out: BlockCollector, rules: CacheRules) -> str | None:
    """The lifetime of the breakpoint that the provider places itself, unless the request forbids it."""
    if body.get("cache_control"):  # a gateway to Anthropic
        return anthropic.automatic(body, out, rules)
    options = maybe_table(body.get("prompt_cache_options"))
    if not rules.implicit or options.get("mode") == "explicit":
        return None
    return maybe_text(options.get("ttl")) or _IMPLICIT_TTL


def marker_ttl(body: JsonObject) -> str | None:
    """The lifetime of markers that name none, where the request says so for all of them."""
    return maybe_text(maybe_table(body.get("prompt_cache_options")).get("ttl")) or None


def _kind(type: str) -> str:
    return "image" if type in IMAGES else "document" if type in FILES else "other"


def _part_tokens(part: JsonObject, out: BlockCollector) -> int:
    return out.shown(_shown(part)) if _kind(part["type"]) != "other" else out.rest(part)


def _shown(part: JsonObject) -> ShownPart:
    type = maybe_text(part.get("type"))
    if type in TEXTS:
        return TextPart(maybe_text(part.get("text")))
    if type in IMAGES:
        url = part.get("image_url")
        return from_url(maybe_table(url).get("url", url), image)
    if type in FILES:
        data = maybe_text(maybe_table(part.get("file", part)).get("file_data"))
        return from_url(data, document) if data.startswith("data:") else document(data, None)
    return TextPart(canonical(without_payloads(part)))


# OpenAI Chat Completions, which most other providers and gateways speak too.

_REASONING: Final = ("reasoning_content", "reasoning", "reasoning_details")


def chat_head(body: JsonObject, out: BlockCollector) -> Level:
    """The blocks of the tools; the system prompt is a message."""
    out.marker_ttl = marker_ttl(body)
    for name in ("tools", "functions"):
        out.add_tools(body.get(name), name)
    return "system"


def read_chat(messages: object, first: int, level: Level, out: BlockCollector) -> Level:
    """The blocks of messages; those of the system at the very beginning are the system prompt."""
    for path, message in tables(messages, "messages", first):
        role = text_of(message.get("role"), f"{path}.role")
        level = "system" if level == "system" and role in OPENING else "messages"
        _message(message, BlockPlace(level, role, path), out)
    return level


def _message(message: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    if place.role in {"tool", "function"}:
        tool_result(message, "content", place, out)
        return
    before = len(out.found)
    for name in _REASONING:
        if message.get(name):
            thought = {name: message[name]}
            out.add(place.under(f".{name}"), "thinking", thought, lambda _, thought=thought: out.rest(thought))
    content(message.get("content"), place.under(".content"), out, message.get("name"))
    if message.get("refusal"):
        out.add_text(place.under(".refusal"), maybe_text(message["refusal"]))
    for path, call in tables(message.get("tool_calls"), f"{place.path}.tool_calls"):
        _call(call, place.at(path), out)
    if message.get("function_call"):
        _call(table(message["function_call"], f"{place.path}.function_call"), place.under(".function_call"), out)
    if message.get("audio"):
        out.add(place.under(".audio"), "other", message["audio"], lambda _: out.rest(message["audio"]))
    if len(out.found) > before:
        out.mark_last(out.split(message, place.path)[1])


def _call(call: JsonObject, place: BlockPlace, out: BlockCollector) -> None:
    body, marker = out.split(call, place.path)
    named = maybe_table(body.get("function", body.get("custom", body)))
    given = named.get("arguments", named.get("input"))
    out.add(place, "tool_use", body, lambda _: out.call(body.get("id"), named.get("name"), given), marker)


# OpenAI Responses: instructions, then items that are messages, calls, outputs and reasoning.

_ELSEWHERE: Final = ("previous_response_id", "conversation")


def responses_head(body: JsonObject, out: BlockCollector) -> Level:
    """The blocks of the tools and the instructions."""
    out.marker_ttl = marker_ttl(body)
    _check_whole(body)
    out.add_tools(body.get("tools"), "tools")
    given = body.get("instructions")
    if isinstance(given, str):
        out.add_text(BlockPlace("system", "system", "instructions"), given)
    elif given:
        return _items(given, "instructions", 0, "system", out)
    return "system"


def read_responses(items: object, first: int, level: Level, out: BlockCollector) -> Level:
    """The blocks of the input, which may be one text."""
    if isinstance(items, str):
        out.add_text(BlockPlace("messages", "user", "input"), items)
        return "messages"
    return _items(items, "input", first, level, out)


def _check_whole(body: JsonObject) -> None:
    for name in _ELSEWHERE:
        if body.get(name):
            raise BadRequestFile(
                f"{name} is {body[name]!r}: the prompt goes on from a state that only the provider has, so the "
                f"record shows just its end; record requests that send their whole input"
            )


def _items(value: object, name: str, first: int, level: Level, out: BlockCollector) -> Level:
    for path, entry in tables(value, name, first):
        role = entry.get("role")
        opening = isinstance(role, str) and role in OPENING
        level = "system" if level == "system" and opening else "messages"
        if (entry.get("type") or "message") == "message":
            place = BlockPlace(level, text_of(role, f"{path}.role"), f"{path}.content")
            content(entry.get("content"), place, out)
        else:
            _item(entry, maybe_text(role), level, path, out)
    return level


def _item(item: JsonObject, role: str, level: Level, path: str, out: BlockCollector) -> None:
    type = text_of(item.get("type"), f"{path}.type")
    if type.endswith("_output"):
        if "output" not in item:
            refuse(path, item, 'a tool output with an "output"')
        tool_result(item, "output", BlockPlace(level, "tool", path), out)
        return
    body, marker = out.split(item, path)
    place = BlockPlace(level, role or "assistant", path)
    if type.endswith("_call"):
        given = body.get("arguments", body.get("input", body.get("action")))
        name = body.get("name") or type
        out.add(place, "tool_use", body, lambda _: out.call(body.get("call_id"), name, given), marker)
    elif type in {"reasoning", "compaction"}:
        kind = "thinking" if type == "reasoning" else type
        out.add(place, kind, body, lambda _: out.shown(NativePart("openai", body)), marker)
    else:
        out.add(place, "other", body, lambda _: out.rest(body), marker)


CHAT: Final = WireFormat("messages", chat_head, read_chat, settings, automatic)
RESPONSES: Final = WireFormat("input", responses_head, read_responses, settings, automatic)
