"""Tokens of pictures: their size from the first bytes, and each provider's rule."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Final, TypeAlias

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
