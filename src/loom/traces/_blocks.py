"""Blocks of a request body: content, marker, tokens, and checked access to its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeAlias, cast

from loom.catalog import CacheRules, find_model
from loom.core.message import (
    IMAGE_TYPES,
    DocumentPart,
    ImagePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.core.window import Block, Level, RequestBlocks
from loom.errors import BadRequestFile, UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import count_tool

# Checked access to the fields of a recorded request, and its canonical JSON text.

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""

_SHOWN = 60


def table(value: object, path: str) -> JsonObject:
    """The JSON object at a path."""
    if not isinstance(value, Mapping):
        refuse(path, value, "a JSON object")
    return cast("JsonObject", value)


def rows(value: object, path: str) -> list[Any]:
    """The list at a path; a missing one is empty."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        refuse(path, value, "a list")
    return list(cast("list[Any]", value))


def tables(value: object, path: str, first: int = 0) -> Iterator[tuple[str, JsonObject]]:
    """The JSON objects of the list at a path, each with its own path; `first` is the number of the first one."""
    for i, item in enumerate(rows(value, path), first):
        yield f"{path}[{i}]", table(item, f"{path}[{i}]")


def as_list(value: object) -> list[Any] | None:
    """A list, or None in place of anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def text_of(value: object, path: str) -> str:
    """The text at a path."""
    if not isinstance(value, str):
        refuse(path, value, "a text")
    return value


def maybe_table(value: object) -> JsonObject:
    """A JSON object, or an empty one in place of anything else."""
    return cast("JsonObject", value) if isinstance(value, Mapping) else {}


def maybe_text(value: object) -> str:
    """A text, or an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def canonical(value: object) -> str:
    """JSON text of a value, with its keys in the order in which they were sent."""
    try:
        return _encoded(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequestFile(
            f"the request holds a value that is not JSON: {error}; pass the body as it goes over the wire"
        ) from error


def refuse(path: str, value: object, wanted: str) -> NoReturn:
    """Says that the value at a path has the wrong form."""
    shown = repr(value)
    shown = f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown
    raise BadRequestFile(f"{path} is {shown}, but must be {wanted}; record the request body as it was sent")


MARKERS: Final = {"cache_control": "5m", "prompt_cache_breakpoint": "30m"}
"""Names under which a cache marker is sent, and the lifetime of one that names none."""

UNSEEN_IMAGE: Final = 1600
"""Tokens of a picture that the record only points to, or that was cut out of it."""
UNSEEN_DOCUMENT: Final = 3000
"""Tokens of such a document: about a page."""

ShownPart: TypeAlias = TextPart | ImagePart | DocumentPart | int
"""What a block shows: a part, or its tokens where the part itself was not recorded."""

KnownBlocks: TypeAlias = dict[tuple[str, ...], Block]
"""Blocks made before, by everything that makes them."""

_PAYLOAD = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_-]{256,}={0,2}")
_DATA_URL = re.compile(r"data:([^;,]*+)[^,]*+(?<=;base64),")


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The position of a block in a request."""

    level: Level
    role: str
    path: str

    def under(self, rest: str) -> BlockPlace:
        """A place inside this one."""
        return self.at(self.path + rest)

    def at(self, path: str) -> BlockPlace:
        """Another place of the same level and role."""
        return BlockPlace(self.level, self.role, path)


class BlockCollector:
    """Collects the blocks of one request.

    Requests of one trace repeat each other, so they share `made`: a block that was there before is not
    counted again, and is the identical object.
    """

    def __init__(self, counter: TokenCounter, made: KnownBlocks | None = None) -> None:
        self.counter = counter
        self.found: list[Block] = []
        self.marker_ttl: str | None = None
        """The lifetime of a marker that names none, where the request says so for all of them."""
        self.cites = False
        """Whether a block of a message asks for citations, which is a setting of the whole request."""
        self._made: KnownBlocks = {} if made is None else made

    def add(
        self, place: BlockPlace, kind: str, body: object, count: Callable[[str], int], marker: str | None = None
    ) -> None:
        """One more block; `count` says the tokens of its canonical text, and is only called for a new one."""
        content = canonical(body)
        key = (place.level, place.role, kind, content)
        block = self._made.get(key)
        if block is None:
            block = Block(place.level, place.role, kind, content, count(content), place.path, marker)
            self._made[key] = block
        if (block.path, block.marker) != (place.path, marker):
            block = replace(block, path=place.path, marker=marker)
        self.found.append(block)

    def add_text(self, place: BlockPlace, text: str, rest: Mapping[str, Any] | None = None) -> None:
        """A block of text, alike for a plain string and for a list of one; an empty one is not a block."""
        body, marker = self.split(rest or {}, place.path)
        if text or marker:
            self.add(place, "text", text_body(text, body), lambda _: self.counter.count(text), marker)

    def add_tools(self, tools: object, path: str) -> None:
        """The list of tool definitions at a path."""
        for at, tool in tables(tools, path):
            self.add_tool(tool, at)

    def add_tool(self, tool: JsonObject, path: str) -> None:
        """The definition of a tool; Chat has its name and schema one level deeper."""
        body, marker = self.split(tool, path)
        spec, place = maybe_table(tool.get("function", tool)), BlockPlace("tools", "system", path)
        self.add(place, "tool", body, lambda content: _tool_tokens(spec, content, self.counter), marker)

    def mark_last(self, marker: str | None) -> None:
        """Puts a marker on the block that was added last."""
        if marker and self.found:
            self.found[-1] = self.found[-1].marked(marker)

    def split(self, block: Mapping[str, Any], path: str) -> tuple[JsonObject, str | None]:
        """A block without its cache marker, and the lifetime of that marker."""
        marker: str | None = None
        for name in MARKERS:
            if block.get(name) is not None:
                marker = self.lifetime(block[name], name, f"{path}.{name}")
        return {key: value for key, value in block.items() if key not in MARKERS}, marker

    def lifetime(self, marker: object, name: str, path: str) -> str:
        """The lifetime that a marker asks for."""
        ttl = table(marker, path).get("ttl")
        if ttl is None:
            return self.marker_ttl if self.marker_ttl and name != "cache_control" else MARKERS[name]
        return ttl if isinstance(ttl, str) else refuse(f"{path}.ttl", ttl, 'a lifetime such as "5m"')

    def call(self, id: object, name: object, given: object) -> int:
        """Tokens of a call; what it gives may be an object or the JSON text of one."""
        input = given
        if isinstance(given, str):
            try:
                input = json.loads(given)
            except (ValueError, RecursionError):
                input = None
        named = cast("JsonObject", input) if isinstance(input, dict) else {"input": given}
        return self.counter.count_part(ToolCallPart(maybe_text(id), maybe_text(name), named))

    def shown(self, shown: Part | int) -> int:
        """Tokens of what a block shows."""
        return shown if isinstance(shown, int) else self.counter.count_part(shown)

    def result(self, call_id: object, shown: Iterable[ShownPart]) -> int:
        """Tokens of a tool's answer."""
        items = list(shown)
        seen = tuple(item for item in items if not isinstance(item, int))
        unseen = sum(item for item in items if isinstance(item, int))
        return unseen + self.counter.count_part(ToolResultPart(maybe_text(call_id), seen))

    def rest(self, body: object) -> int:
        """Tokens of anything else, as text without the data of pictures, sounds and files."""
        sealed = "".join(_sealed(body))
        hidden = self.counter.count_part(ThinkingPart(redacted=sealed)) if sealed else 0
        return hidden + self.counter.count(canonical(without_payloads(body)))


def text_body(text: str, rest: Mapping[str, Any] | None = None) -> JsonObject:
    """The one form of a text block. What is empty in it says nothing, whether it was sent or not."""
    kept = {key: value for key, value in (rest or {}).items() if key not in {"type", "text"} and value not in _EMPTY}
    return {"type": "text", "text": text, **kept}


_EMPTY: Final[tuple[object, ...]] = (None, [], {}, "", False)


def image(data: object, media_type: object) -> ShownPart:
    """A picture from its base64 text, or a guess where that is missing or cut."""
    known = maybe_text(media_type) if media_type in IMAGE_TYPES else "image/png"
    try:
        return ImagePart(maybe_text(data), known)
    except UsageError:
        return UNSEEN_IMAGE


def document(data: object, media_type: object) -> ShownPart:
    """A document from its base64 text, or a guess where that is missing or cut."""
    try:
        return DocumentPart(maybe_text(data), maybe_text(media_type) or "application/pdf")
    except UsageError:
        return UNSEEN_DOCUMENT


def from_url(url: object, make: Callable[[object, object], ShownPart]) -> ShownPart:
    """A picture or document from a data URL; a guess from any other."""
    found = _DATA_URL.match(maybe_text(url))
    return make(maybe_text(url)[found.end() :], found[1]) if found else make(None, None)


def without_payloads(value: object) -> object:
    """A JSON value without its long base64 texts."""
    if isinstance(value, str):
        return "" if _PAYLOAD.fullmatch(value) else value
    if isinstance(value, Mapping):
        return {key: without_payloads(item) for key, item in cast("JsonObject", value).items()}
    if isinstance(value, list | tuple):
        return [without_payloads(item) for item in cast("list[object]", value)]
    return value


def _sealed(value: object) -> Iterator[str]:
    """Texts that the provider sealed for itself; it opens them, so they count."""
    if isinstance(value, Mapping):
        for key, item in cast("JsonObject", value).items():
            if key == "encrypted_content" and isinstance(item, str):
                yield item
            else:
                yield from _sealed(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from _sealed(item)


def _tool_tokens(spec: JsonObject, content: str, counter: TokenCounter) -> int:
    schema = spec.get("input_schema", spec.get("parameters"))
    if not isinstance(schema, dict):
        return counter.count(content)
    try:
        tool = ToolSpec(maybe_text(spec.get("name")), maybe_text(spec.get("description")), schema)
    except UsageError:
        return counter.count(content)
    return count_tool(tool, counter)


LevelSettings: TypeAlias = dict[Level, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class WireFormat:
    """One wire format, as its requests are read: what comes before the messages, then the messages.

    Messages can be read a few at a time: nothing of one depends on another but the level, which is handed on.
    """

    messages: str
    """The field that holds the messages."""
    head: Callable[[JsonObject, BlockCollector], Level]
    """Reads everything but the messages; returns the level at which they begin."""
    read: Callable[[object, int, Level, BlockCollector], Level]
    """Reads some messages, given the number of the first and the level before it; returns the level behind them."""
    settings: Callable[[JsonObject, BlockCollector], LevelSettings]
    automatic: Callable[[JsonObject, BlockCollector, CacheRules], str | None]
    provider: str | None = None
    """Whose format it is, where others do not speak it."""

    def prompt(
        self,
        body: JsonObject,
        *,
        provider: str,
        model: str,
        counter: TokenCounter,
        at: float | None = None,
        made: KnownBlocks | None = None,
    ) -> RequestBlocks:
        """A request body of this format as a prompt; requests that share a `made` share their equal blocks."""
        if not model:
            raise BadRequestFile(
                'the request names no model; add "model" to the record, or say which it was: model=, or --model NAME'
            )
        out = BlockCollector(counter, made)
        self.read(body.get(self.messages), 0, self.head(body, out), out)
        if not out.found:
            raise BadRequestFile("the request has no content at all; record the request body as it was sent")
        automatic = self.automatic(body, out, find_model(model, provider).cache)
        return RequestBlocks(provider, model, tuple(out.found), automatic, self.level_settings(body, out), at)

    def level_settings(self, body: JsonObject, out: BlockCollector) -> dict[Level, str]:
        """The request parameters that matter to the cache, as text, by the level from which on they do."""
        settings: dict[Level, str] = {}
        for level, values in self.settings(body, out).items():
            given = {name: value for name, value in values.items() if value is not None}
            if given:
                settings[level] = canonical(given)
        return settings
