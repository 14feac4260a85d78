"""Tokens of messages, their parts, tools and images, given a way to count text."""

from __future__ import annotations

import base64
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.protocols.model import ModelRequest
from loom.protocols.token_counter import TokenCounter

# Token counts of pictures: size from the first bytes, and each provider's rule.

UNKNOWN_SIZE: Final = 1600
"""Tokens of a picture whose size cannot be read: about one screenful, everywhere."""

_HEAD: Final = 4096
_START_OF_FRAME: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


@dataclass(frozen=True, slots=True)
class Patches:
    """A token for each square of pixels, after the picture was shrunk to what the provider takes."""

    side: int
    each: float = 1.0
    max_edge: int | None = None
    max_patches: int | None = None

    def tokens(self, width: int, height: int) -> int:
        """Tokens of a picture of this size."""
        if self.max_edge and max(width, height) > self.max_edge:
            shrink = self.max_edge / max(width, height)
            width, height = max(1, round(width * shrink)), max(1, round(height * shrink))
        patches = self._patches(width, height, 1.0)
        if self.max_patches and patches > self.max_patches:
            shrink = math.sqrt(self.max_patches / patches)
            while (patches := self._patches(width, height, shrink)) > self.max_patches:
                shrink *= 0.995
        return math.ceil(patches * self.each)

    def _patches(self, width: int, height: int, shrink: float) -> int:
        return math.ceil(width * shrink / self.side) * math.ceil(height * shrink / self.side)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A base price and a price for each large square, after scaling."""

    base: int
    each: int
    side: int = 512
    fit: int | None = 2048
    short_edge: int | None = 768

    def tokens(self, width: int, height: int) -> int:
        """Tokens of a picture of this size."""
        shrink = min(1.0, self.fit / max(width, height)) if self.fit else 1.0
        if self.short_edge:
            shrink = min(shrink, self.short_edge / min(width, height))
        across, down = math.ceil(width * shrink / self.side), math.ceil(height * shrink / self.side)
        return self.base + self.each * across * down


@dataclass(frozen=True, slots=True)
class Flat:
    """The same for every picture."""

    each: int

    def tokens(self, width: int, height: int) -> int:  # noqa: ARG002  one shape for all rules
        """Tokens of a picture, whatever its size."""
        return self.each


ImageRule: TypeAlias = Patches | Tiles | Flat

_CLAUDE_SMALL: Final = Patches(28, max_edge=1568, max_patches=1568)
# Checked against counts that were measured for ten sizes from 256x256 to 4032x3024 (2026-10).
_BY_MODEL: Final[dict[str, ImageRule]] = {
    "claude": Patches(28, max_edge=2016),
    "claude-3": _CLAUDE_SMALL,
    "claude-haiku-4": _CLAUDE_SMALL,
    "claude-opus-4": _CLAUDE_SMALL,
    "claude-opus-4-7": Patches(28, max_edge=2016),
    "claude-opus-4-8": Patches(28, max_edge=2016),
    "claude-sonnet-4": _CLAUDE_SMALL,
    "gpt-4o": Tiles(85, 170),
    "gpt-4o-mini": Tiles(2833, 5667),
    "gpt-4.1": Tiles(85, 170),
    "gpt-4.1-mini": Patches(32, 1.62, max_patches=1536),
    "o1": Tiles(75, 150),
    "o3": Tiles(75, 150),
    "o4-mini": Patches(32, 1.72, max_patches=1536),
    "gpt-5": Tiles(70, 140),
    "gpt-5-mini": Patches(32, 1.62, max_patches=1536),
    "gpt-5-nano": Patches(32, 2.46, max_patches=1536),
    "gpt-5.4": Patches(32, 1.2, max_patches=10_000),
    "gpt-5.5": Patches(32, 1.2, max_patches=10_000),
    "gpt-5.6": Patches(32, 1.2, max_patches=10_000),
    "gpt-": Patches(32, 1.2),
    "gemini-2": Tiles(0, 258, side=768, fit=None, short_edge=None),
    "gemini": Flat(1100),
}
_OTHERWISE: Final = Patches(28, max_edge=2016)


def image_rule(model: str) -> ImageRule:
    """The rule of a model, by the longest name that its id begins with."""
    fitting = [name for name in _BY_MODEL if model.startswith(name)]
    return _BY_MODEL[max(fitting, key=len)] if fitting else _OTHERWISE


def image_size(data: str) -> tuple[int, int] | None:
    """Width and height of a PNG, JPEG, GIF or WebP in base64, read from its first bytes; None if unreadable."""
    head = base64.b64decode(data[:_HEAD])
    size = _png(head) or _gif(head) or _webp(head)
    if size is None and head[:2] == b"\xff\xd8":  # a JPEG's size may stand behind a long preview
        size = _jpeg(head) or (_jpeg(base64.b64decode(data)) if len(data) > _HEAD else None)
    return size if size and min(size) > 0 else None


def _png(head: bytes) -> tuple[int, int] | None:
    if head[:8] != b"\x89PNG\r\n\x1a\n" or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _gif(head: bytes) -> tuple[int, int] | None:
    if head[:6] not in {b"GIF87a", b"GIF89a"} or len(head) < 10:
        return None
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _webp(head: bytes) -> tuple[int, int] | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _START_OF_FRAME:
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None


# A bounded memory of counts, so that an unchanged text is counted once.


class Memo:
    """Counts by text, in two generations: what was not asked for since the last turnover is let go.

    The bounds hold for one generation; both together keep at most twice as much. Safe to share between
    threads without a lock: a lost entry is only counted again.
    """

    __slots__ = ("_chars", "_entries", "_max_chars", "_old", "_young")

    def __init__(self, *, entries: int = 16_384, chars: int = 16_000_000) -> None:
        self._entries, self._chars = entries, 0
        self._max_chars = chars
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def count(self, text: str, measure: Callable[[str], int]) -> int:
        """The count of a text: as remembered, or measured now."""
        found = self._young.get(text)
        if found is None:
            found = self._old.get(text)
            found = measure(text) if found is None else found
            self._put(text, found)
        return found

    def _put(self, text: str, count: int) -> None:
        if len(text) > self._max_chars:
            return
        if len(self._young) >= self._entries or self._chars + len(text) > self._max_chars:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = count
        self._chars += len(text)


MESSAGE_OVERHEAD: Final = 4
"""Tokens that frame a message: its role and its end."""
CALL_OVERHEAD: Final = 8
"""Tokens that frame a tool call or a tool result."""
TOOL_OVERHEAD: Final = 10
"""Tokens that frame a tool's definition."""

_SEALED = frozenset({"encrypted_content", "signature", "data"})
_PAGE = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")
_PAGE_COUNT = re.compile(rb"/Count\s+(\d{1,5})(?!\d)")
_BYTES_PER_PAGE: Final = 50_000
# A provider reads a page as text and as a picture; Gemini as a picture alone.
_TOKENS_PER_PAGE: Final = {"gemini": 560}
_TOKENS_PER_PAGE_ELSEWHERE: Final = 3000


class PartRules:
    """The rules of one model for everything that is not text; made once, kept by a counter."""

    def __init__(self, model: str = "", provider: str = "") -> None:
        self._image_rule = image_rule(model)
        self._page = _TOKENS_PER_PAGE.get(provider, _TOKENS_PER_PAGE_ELSEWHERE)
        self._media = Memo(entries=1024, chars=64_000_000)

    def count(self, part: Part, count: Callable[[str], int]) -> int:
        """Tokens of a part; `count` counts its texts."""
        match part:
            case TextPart(text):
                return count(text)
            case ImagePart(data):
                return self._media.count(data, self._image)
            case DocumentPart(data, media_type):
                if media_type.startswith("text/"):
                    return count(base64.b64decode(data).decode("utf-8", "replace"))
                return self._media.count(data, self._document)
            case ToolCallPart(_, name, input):
                return CALL_OVERHEAD + count(name) + count(json.dumps(input, ensure_ascii=False))
            case ToolResultPart(_, content):
                return CALL_OVERHEAD + sum(self.count(item, count) for item in content)
            case ThinkingPart(text, signature, redacted):
                return count(text) if text else sealed_tokens(redacted or signature or "")
            case NativePart(_, body):
                open_parts, sealed = _without_seals(body)
                return count(json.dumps(open_parts, ensure_ascii=False)) + sealed_tokens(sealed)

    def _image(self, data: str) -> int:
        size = image_size(data)
        return self._image_rule.tokens(*size) if size else UNKNOWN_SIZE

    def _document(self, data: str) -> int:
        return self._page * pdf_pages(base64.b64decode(data))


class MemoCounter(ABC):
    """A counter that counts each text once, as long as it is remembered; a subclass measures."""

    def __init__(self, rules: PartRules | None) -> None:
        self._rules = rules or PartRules()
        self._memo = Memo()

    @abstractmethod
    def _measure(self, text: str) -> int:
        """Tokens of a text that is not empty."""

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._memo.count(text, self._measure) if text else 0

    def count_part(self, part: Part) -> int:
        """Tokens of any part."""
        return self._rules.count(part, self.count)


def pdf_pages(data: bytes) -> int:
    """Pages of a PDF; guessed from its size where they are compressed out of sight, and never 0."""
    counts = [int(found) for found in _PAGE_COUNT.findall(data)]
    seen = max(len(_PAGE.findall(data)), *counts, 0)
    return seen or max(1, len(data) // _BYTES_PER_PAGE)


def sealed_tokens(sealed: str) -> int:
    """Tokens behind a sealed text: base64 of about four bytes for each."""
    return len(sealed) * 3 // 16


def count_message(message: Message, counter: TokenCounter) -> int:
    """Tokens of a message with its frame."""
    return MESSAGE_OVERHEAD + sum(counter.count_part(part) for part in message.parts)


def count_messages(messages: Iterable[Message], counter: TokenCounter) -> int:
    """Tokens of a conversation."""
    return sum(count_message(message, counter) for message in messages)


def count_tool(tool: ToolSpec, counter: TokenCounter) -> int:
    """Tokens of a tool's definition: its name, its description and its schema."""
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return TOOL_OVERHEAD + counter.count(tool.name) + counter.count(tool.description) + counter.count(schema)


def _without_seals(body: Any) -> tuple[Any, str]:
    """A provider's block without its sealed strings, and those strings."""
    if not isinstance(body, dict):
        return body, ""
    block = cast("dict[str, Any]", body)
    sealed = [value for key, value in block.items() if key in _SEALED and isinstance(value, str)]
    return {key: value for key, value in block.items() if key not in _SEALED}, "".join(sealed)


def count_request(request: ModelRequest, counter: TokenCounter) -> int:
    """Tokens of a whole prompt: system, tools and messages."""
    system = sum(counter.count(text) for text in request.system)
    tools = sum(count_tool(tool, counter) for tool in request.tools)
    return system + tools + count_messages(request.messages, counter)
