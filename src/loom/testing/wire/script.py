"""The script of a local provider: answers, faults, and the interface of a wire format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from loom.core.message import JSON, Part, TextPart, ToolCallPart, Usage
from loom.protocols.model import Stop

Fault: TypeAlias = Literal[
    "rate_limited",
    "overloaded",
    "server_error",
    "overflow",
    "empty_400",
    "bad_request",
    "unauthorized",
    "dropped",
    "cut",
    "ended_early",
    "malformed",
    "error_in_stream",
    "stalled",
]
"""How a request can go wrong: refused by status (the first seven), or broken on the way (the rest).

`dropped` closes the connection instead of answering, `cut` closes it in the middle of the answer, `ended_early` ends
the answer there as if it were whole, `malformed` sends something unreadable there, `error_in_stream` an error, and
`stalled` nothing more until the client hangs up.
"""

_USAGE = Usage(input=1000, output=20, cache_read=600, cache_write=300)
RETRY_AFTER = 7.0
"""Seconds that a `rate_limited` answer asks to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One answer. The input of a tool call that is text goes over the wire as that text, readable or not."""

    parts: tuple[Part, ...] = ()
    stop: Stop = "end"
    usage: Usage = _USAGE
    model: str = "served-model"
    id: str = "answer_1"

    @classmethod
    def text(cls, text: str, **fields: Any) -> Said:
        """An answer of plain text."""
        return cls(parts=(TextPart(text),), **fields)

    @classmethod
    def calls(cls, *parts: Part, **fields: Any) -> Said:
        """An answer that waits for tools."""
        return cls(parts=parts, stop="tool", **fields)


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer with an error status."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Wire(Protocol):
    """A provider's wire format."""

    base_path: str
    """The path of a client's base URL."""
    overflow: tuple[int | None, int | None]
    """The limit and the size in its refusal of a long prompt."""

    def frames(self, said: Said) -> Sequence[bytes]:
        """An answer as the events of a stream."""
        ...

    def refused(self, fault: Fault) -> Refused:
        """A refusal by status, as the provider words it."""
        ...

    def error_frame(self) -> bytes:
        """An event that says, in the middle of a stream, that the provider is overloaded."""
        ...

    def replayed(self, said: Said) -> Sequence[JSON]:
        """The blocks of an answer that must come back exactly like this in the next request."""
        ...


def event(data: JSON, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def pieces(text: str) -> list[str]:
    """A text in a few pieces, as streams send it."""
    third = max(1, len(text) // 3)
    return [text[start : start + third] for start in range(0, len(text), third)]


def input_text(call: ToolCallPart) -> str:
    """The input of a call as it goes over the wire."""
    if isinstance(call.input, str):
        return call.input
    return json.dumps(call.input, ensure_ascii=False, separators=(",", ":"))


def waiting() -> dict[str, str]:
    """The header of a refusal that asks to wait."""
    return {"retry-after": f"{RETRY_AFTER:g}"}
