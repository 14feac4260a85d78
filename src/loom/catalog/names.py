"""Model names: taking a gateway's or a cloud's id apart, and matching it to a known one."""

from __future__ import annotations

import re
from collections.abc import Iterable

KNOWN_AS = {"openai_chat": "openai", "compatible": "generic"}
"""Wires that the catalogue knows by another name."""

_REGION = re.compile(r"^[a-z]{2,6}(?:-[a-z]+)?\.(?=(?:anthropic|openai|deepseek|google|xai)\.)")
_VENDOR = re.compile(r"^(?:anthropic|openai|deepseek|google|xai)\.")
_VERSION = re.compile(r"([a-z-]+)(\d{1,3})(?:\.(\d{1,3}))?(?![0-9a-z])")
_SHORT_NUMBER = re.compile(r"[-_.]\d{1,2}(?![0-9a-z])")
_HARMLESS = frozenset({"latest", "preview", "thinking", "reasoning", "non", "v1", "v2"})


def split_provider(model: str, providers: Iterable[str]) -> tuple[str | None, str]:
    """`"anthropic:claude-x"` as provider and id; a colon that follows no provider's name belongs to the id."""
    head, colon, rest = model.partition(":")
    if colon and rest and head.lower() in providers:
        return head.lower(), rest
    return None, model


def cloud_id(model: str) -> str:
    """The id without a gateway's path and a cloud's region: `us.anthropic.claude-x` is `anthropic.claude-x`."""
    return _REGION.sub("", model.strip().lower().rsplit("/", 1)[-1])


def plain_id(model: str) -> str:
    """The id as its maker writes it."""
    id = _VENDOR.sub("", cloud_id(model))
    return id.replace(".", "-") if id.startswith("claude") else id  # gateways write claude-sonnet-4.5


def continues(id: str, pattern: str) -> bool:
    """Whether an id is the pattern, or the pattern with a date or a variant behind it.

    A short number behind it is another version, so claude-opus-5-9 is not a claude-opus-5, nor gpt-5.7 a gpt-5.
    """
    if not id.startswith(pattern):
        return False
    rest = id[len(pattern) :]
    return not rest or (rest[0] in "-_:@" and not _SHORT_NUMBER.match(rest))


def is_variant(id: str, pattern: str) -> bool:
    """Whether the id names something of its own (`-mini`, `-fast`) and not just a date or a stage."""
    words = re.split(r"[-_:@]", id[len(pattern) :])
    return any(word and not word.isdigit() and word not in _HARMLESS for word in words)


def family_version(id: str) -> tuple[str, int, int] | None:
    """The family and the version an id begins with: ("gpt-", 5, 6) for gpt-5.6-mini."""
    found = _VERSION.match(id)
    return (found[1], int(found[2]), int(found[3] or 0)) if found else None


def reaches(id: str, since: str) -> bool:
    """Whether an id is of the same family as `since`, and of that version or a later one."""
    this, first = family_version(id), family_version(since)
    return this is not None and first is not None and this[0] == first[0] and this >= first
