"""Ingest: what a caller hands over becomes clean episodes; what cannot be kept is named with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeAlias

from loom.core.message import Message
from loom.core.record import Origin, Scalar
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.memory.values import Skip

MAX_CHARS = 1_000_000
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2060\ufeff]")
"""Characters that say nothing and break indexes; tabs and line ends stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One thing that was said or happened, as a caller hands it over."""

    text: str
    speaker: str | None = None
    origin: Origin | None = None
    at: datetime | None = None
    attributes: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])


Content: TypeAlias = str | Message | Turn | Mapping[str, Any]


def turns_of(content: Content | Sequence[Content]) -> list[Turn]:
    """One or many contents as turns."""
    if isinstance(content, str | Message | Turn | Mapping):
        return [_turn(content)]
    return [_turn(item) for item in content]


def _turn(content: Content) -> Turn:
    if isinstance(content, Turn):
        return content
    if isinstance(content, str):
        return Turn(text=content)
    if isinstance(content, Message):
        return Turn(text=content.text, speaker=content.role, origin=_origin(content.role))
    if isinstance(content, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        return _from_mapping(content)
    raise UsageError(f"memory takes text, messages, turns and mappings, not {type(content).__name__}")


def _from_mapping(given: Mapping[str, Any]) -> Turn:
    text = given.get("text", given.get("content"))
    if not isinstance(text, str):
        raise UsageError(f"a turn needs its text under 'text' or 'content'; it has {', '.join(given) or 'nothing'}")
    speaker = given.get("speaker", given.get("role", given.get("name")))
    at = given.get("at", given.get("timestamp"))
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return Turn(text=text, speaker=speaker, origin=_origin(given.get("role")), at=at)


def _origin(role: object) -> Origin | None:
    known: dict[object, Origin] = {"user": "user", "assistant": "assistant", "tool": "tool"}
    return known.get(role)


def clean(text: str) -> tuple[str, Skip | None]:
    """The text without what cannot be kept, or why nothing of it is."""
    cleaned = _CONTROL.sub("", text.encode("utf-8", "replace").decode()).strip()
    if not cleaned:
        return "", Skip(text[:80], "empty: there is nothing to remember")
    if len(cleaned) > MAX_CHARS:
        return "", Skip(cleaned[:80], f"too long: {len(cleaned):,} characters, at most {MAX_CHARS:,}; split it")
    return cleaned, None


def keyed_id(scope: Scope, key: str, number: int) -> str:
    """The id of what is remembered under an idempotency key: the same every time."""
    return "k:" + sha256(f"{scope.key()}\0{key}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
