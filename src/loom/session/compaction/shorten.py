"""Shorter forms of what is too large to be shown whole: texts, calls, tool results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loom.core.checkpoint import Shown
from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart, plain
from loom.core.plain import one_line as whole_line
from loom.protocols.token_counter import TokenCounter

MIN_RESULT: Final = 48
"""Tokens below which a shortened result would say nothing."""


def one_line(text: str, limit: int) -> str:
    """The beginning of a text on one line."""
    line = whole_line(text[: 4 * limit])
    return line if len(line) <= limit and len(text) <= 4 * limit else f"{line[: limit - 1].rstrip()}…"


def describe(call: ToolCallPart) -> str:
    """A call on one line, as it might be written in code."""
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in call.arguments.items()}
    arguments = ", ".join(f"{name}={one_line(value, 60)}" for name, value in values.items())
    return one_line(f"{call.name}({arguments})", 160)


def head_and_tail(text: str, limit: int, counter: TokenCounter) -> str:
    """The beginning and the end of a text within `limit` tokens, and a notice of what is missing between them.

    The empty text where not even the notice fits.
    """
    if counter.count(text) <= limit:
        return text
    keep = len(text)
    while keep:
        keep = min(keep // 2, keep - 1)
        head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
        cut = f"{head}\n[... {len(text) - keep:,} of {len(text):,} characters are not shown ...]\n{tail}"
        if counter.count(cut) <= limit:
            return cut
    return ""


def clamped(items: Sequence[Shown], room: int, counter: TokenCounter) -> tuple[Message, ...] | None:
    """The messages with their tool results shortened so that all fit into `room` tokens; None if they cannot.

    Each result may take the same share; what is smaller stays as it is. Calls, ids and error marks are untouched.
    """
    parts = [part for item in items for part in item.message.parts]
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    if not results:
        return None
    rest = sum(counter.count_part(part) for part in parts if not isinstance(part, ToolResultPart))
    share = (room - rest) // len(results)
    if share < MIN_RESULT:
        return None
    messages: list[Message] = []
    for item in items:
        new = tuple(_clamp(p, share, counter) if isinstance(p, ToolResultPart) else p for p in item.message.parts)
        messages.append(item.message if new == item.message.parts else replace(item.message, parts=new))
    size = sum(counter.count_part(part) for message in messages for part in message.parts)
    return tuple(messages) if size <= room else None


def _clamp(result: ToolResultPart, share: int, counter: TokenCounter) -> ToolResultPart:
    if counter.count_part(result) <= share:
        return result
    frame = counter.count_part(replace(result, content=()))
    # Pictures and documents cannot be cut: they are named, the text is shortened.
    text = "\n".join(plain(part) for part in result.content)
    return replace(result, content=(TextPart(head_and_tail(text, share - frame, counter) or "[not shown]"),))
