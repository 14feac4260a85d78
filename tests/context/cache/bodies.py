"""Request bodies and the counter that the tests of recorded requests share."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from loom.core.message import (
    DocumentPart,
    ImagePart,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from loom.core.window import RequestBlocks
from loom.errors import BadRequestFile
from loom.traces.request import read_request

PIXELS = base64.b64encode(b"\x89PNG" + bytes(6000)).decode()
CLAUDE = "claude-sonnet-5"


class Letters:
    """Counts a token for each letter, 1,000 for a picture and 2,000 for a document."""

    name = "letters"
    error = 0.0

    def __init__(self) -> None:
        self.asked = 0

    def count(self, text: str) -> int:
        self.asked += 1
        return len(text)

    def count_part(self, part: Part) -> int:
        match part:
            case TextPart(text):
                return self.count(text)
            case ImagePart():
                return 1_000
            case DocumentPart():
                return 2_000
            case ToolCallPart(_, name, input):
                return len(name) + len(json.dumps(input))
            case ToolResultPart(_, content):
                return sum(self.count_part(item) for item in content)
            case ThinkingPart(text, _, redacted):
                return len(text) or len(redacted or "")
            case NativePart(_, body):
                return len(json.dumps(body))


def read(body: dict[str, Any], model: str | None = "model-x") -> RequestBlocks:
    return read_request(body, model=model, counter=Letters())


def messages(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": CLAUDE, "system": "Be brief.", "messages": list(items), **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def places(prompt: RequestBlocks) -> list[tuple[str, str, str, str]]:
    return [(b.path, b.level, b.role, b.kind) for b in prompt.blocks]


def refused(body: Any, *, match: str, **more: Any) -> None:
    with pytest.raises(BadRequestFile, match=match):
        read_request(body, counter=Letters(), **more)


BODY = {"model": CLAUDE, "messages": [{"role": "user", "content": "Hi"}]}
