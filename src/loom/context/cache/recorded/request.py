"""One recorded request of any program, read as a prompt: which format it is, whose, and what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from loom.catalog import CacheRules, find_model
from loom.context.cache.prompt import Level, Prompt
from loom.context.cache.recorded import anthropic, chat, gemini, openai_parts, responses
from loom.context.cache.recorded.blocks import BlockCollector, KnownBlocks
from loom.context.cache.recorded.envelope import read_recorded
from loom.context.cache.recorded.fields import JsonObject, as_list, canonical, maybe_table, maybe_text, refuse, rows
from loom.errors import BadRequestFile
from loom.protocols.token_counter import TokenCounter

LevelSettings: TypeAlias = dict[Level, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The reader of one wire format."""

    read: Callable[[JsonObject, BlockCollector], None]
    settings: Callable[[JsonObject], LevelSettings]
    automatic: Callable[[JsonObject, BlockCollector, CacheRules], str | None]
    provider: str | None = None
    """Whose format it is, where others do not speak it."""


_ANTHROPIC: Final = WireFormat(anthropic.read, anthropic.settings, anthropic.automatic, "anthropic")
_CHAT: Final = WireFormat(chat.read, openai_parts.settings, openai_parts.automatic)
_RESPONSES: Final = WireFormat(responses.read, openai_parts.settings, openai_parts.automatic)
_GEMINI: Final = WireFormat(gemini.read, gemini.settings, gemini.automatic, "gemini")

_ANTHROPIC_BLOCKS: Final = (anthropic.KINDS - {"text"}) | {"server_tool_use", "search_result"}
_CHAT_ROLES: Final = frozenset({"system", "developer", "tool", "function"})
_CHAT_FIELDS: Final = frozenset(
    {"functions", "max_completion_tokens", "prompt_cache_key", "prompt_cache_options", "response_format"}
)
_ANSWERS: Final = frozenset({"choices", "candidates", "output", "stop_reason"})
_ACCEPTED: Final = (
    "an Anthropic Messages, OpenAI Chat or OpenAI Responses body, or a Gemini one (with messages, input or contents)"
)


def read_request(
    body: Mapping[str, Any],
    *,
    provider: str | None = None,
    model: str | None = None,
    counter: TokenCounter,
    at: float | None = None,
    made: KnownBlocks | None = None,
) -> Prompt:
    """Reads one request, or a log record around it, as a prompt.

    The format is read from the body. `provider`, `model` and `at` replace what the record says; requests that
    share a `made` share their equal blocks.

    Raises:
        BadRequestFile: this is not a request, or it does not hold its whole prompt.
    """
    request, sent = read_recorded(body)
    name = model or maybe_text(request.get("model")).removeprefix("models/")
    form = _format(request, provider, name)
    if not name:
        raise BadRequestFile('the request names no model; add "model" to the record, or say which model it was sent to')
    owner = provider or _owner(request, form, find_model(name).provider)
    blocks = BlockCollector(counter, made)
    form.read(request, blocks)
    if not blocks.found:
        raise BadRequestFile("the request has no content at all; record the request body as it was sent")
    return Prompt(
        provider=owner,
        model=name,
        blocks=tuple(blocks.found),
        automatic=form.automatic(request, blocks, find_model(name, owner).cache),
        settings=_settings(form.settings(request)),
        at=sent if at is None else at,
    )


def _settings(found: LevelSettings) -> dict[Level, str]:
    texts: dict[Level, str] = {}
    for level, values in found.items():
        given = {name: value for name, value in values.items() if value is not None}
        if given:
            texts[level] = canonical(given)
    return texts


def _owner(body: JsonObject, form: WireFormat, by_model: str) -> str:
    if maybe_text(body.get("anthropic_version")).startswith("bedrock"):
        return "bedrock"
    return form.provider if form.provider and by_model == "generic" else by_model


def _format(body: JsonObject, provider: str | None, model: str) -> WireFormat:
    if "contents" in body:
        return _GEMINI
    if "messages" in body:
        return _ANTHROPIC if _is_anthropic(body, provider, model) else _CHAT
    if body.get("object") != "response" and ("input" in body or "instructions" in body):
        return _RESPONSES
    if _ANSWERS & body.keys():
        raise BadRequestFile(
            "this is a model's answer, not a request; record the request body, and the answer next to it as "
            '{"request": ..., "response": ...}'
        )
    keys = ", ".join(list(body)[:8]) or "nothing at all"
    raise BadRequestFile(f"no request was found in a record with {keys}; give {_ACCEPTED}")


def _is_anthropic(body: JsonObject, provider: str | None, model: str) -> bool:
    """Whether a body with messages is Anthropic's. Where it could be either, its owner decides."""
    tools = [maybe_table(tool) for tool in rows(body.get("tools"), "tools")]
    messages = [
        maybe_table(m) or refuse(f"messages[{i}]", m, "a message with a role and content")
        for i, m in enumerate(rows(body["messages"], "messages"))
    ]
    types = {maybe_table(part).get("type") for m in messages for part in as_list(m.get("content")) or ()}
    if {"system", "anthropic_version"} & body.keys() or any("input_schema" in tool for tool in tools):
        return True
    if _CHAT_FIELDS & body.keys() or any("function" in tool for tool in tools):
        return False
    if any(m.get("role") in _CHAT_ROLES or m.get("tool_calls") for m in messages):
        return False
    if types & _ANTHROPIC_BLOCKS:
        return True
    return (provider or find_model(model).provider) in {"anthropic", "bedrock"}
