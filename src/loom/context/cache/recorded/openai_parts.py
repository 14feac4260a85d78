"""The parts that OpenAI's two formats share: content parts, tool results, breakpoints and parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from loom.catalog.model import CacheRules
from loom.context.cache.prompt import Level
from loom.context.cache.recorded import anthropic
from loom.context.cache.recorded.blocks import (
    BlockCollector,
    BlockPlace,
    ShownPart,
    document,
    from_url,
    image,
    text_body,
    without_payloads,
)
from loom.context.cache.recorded.fields import (
    JsonObject,
    as_list,
    canonical,
    maybe_table,
    maybe_text,
    refuse,
    tables,
)
from loom.core.message import TextPart

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
        _add_part(part, replace(place, path=path), out, name)


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
        plain = text_body(maybe_text(body.get("text")), body) if body.get("type") in TEXTS else body
        shown = {**head, key: plain}
        out.add(
            replace(place, path=at), "tool_result", shown, lambda _, part=plain: out.result(call, [_shown(part)]), own
        )
    out.mark_last(marker)


def settings(body: JsonObject) -> dict[Level, dict[str, Any]]:
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
    type = part.get("type")
    if type in TEXTS:
        return TextPart(maybe_text(part.get("text")))
    if type in IMAGES:
        url = part.get("image_url")
        return from_url(maybe_table(url).get("url", url), image)
    if type in FILES:
        data = maybe_text(maybe_table(part.get("file", part)).get("file_data"))
        return from_url(data, document) if data.startswith("data:") else document(data, None)
    return TextPart(canonical(without_payloads(part)))
