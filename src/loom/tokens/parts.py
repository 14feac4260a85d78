"""Token counts of parts, messages and tools, given a way to count text."""

from __future__ import annotations

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

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
from loom.tokens.images import UNKNOWN_SIZE, image_rule, image_size
from loom.tokens.memo import Memo

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
