"""Packs hits into a token budget, best first, each source once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loom.errors import UsageError

Reason: TypeAlias = Literal["repeats", "too long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackItem:
    """A text to pack. `sources` are the ids it was derived from; empty if it is a source itself.

    A `lossy` item leaves out most of its sources, so it does not replace them.
    """

    id: str
    text: str
    tokens: int
    sources: tuple[str, ...] = ()
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An item that was not packed, and why: for `repeats`, `by` is the packed item that contains it."""

    id: str
    reason: Reason
    by: str | None = None


@dataclass(frozen=True, slots=True)
class PackResult:
    """The items that fit, in the order given, their tokens, and what was left out before the last of them."""

    pieces: tuple[PackItem, ...]
    tokens: int
    left_out: tuple[LeftOut, ...]


def pack(pieces: Iterable[PackItem], *, budget: int | None = None, limit: int | None = None) -> PackResult:
    """Take items in the order given, best first, while they fit into `budget` tokens and `limit` items.

    An item repeats others if all its sources are covered by packed ones, or if its text is equal. One that is too long
    for what is left is skipped for shorter ones. Nothing is read beyond the last item that is packed.
    """
    for name, value in (("budget", budget), ("limit", limit)):
        if value is not None and value < 0:
            raise UsageError(f"pack() was given {name}={value}; give 0 or more, or None for no limit")
    kept: list[PackItem] = []
    left_out: list[LeftOut] = []
    covered: dict[str, str] = {}
    texts: dict[str, str] = {}
    used = 0
    for piece in pieces if limit != 0 else ():
        roots = piece.sources or (piece.id,)
        if by := texts.get(_folded(piece.text)) or _covering(roots, covered):
            left_out.append(LeftOut(piece.id, "repeats", by))
        elif budget is not None and used + piece.tokens > budget:
            left_out.append(LeftOut(piece.id, "too long"))
        else:
            kept.append(piece)
            used += piece.tokens
            texts[_folded(piece.text)] = piece.id
            for root in () if piece.lossy else roots:
                covered.setdefault(root, piece.id)
            if len(kept) == limit:
                break
    return PackResult(tuple(kept), used, tuple(left_out))


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _covering(roots: tuple[str, ...], covered: dict[str, str]) -> str | None:
    """The packed item that covers the first root, if all of them are covered."""
    return covered[roots[0]] if all(root in covered for root in roots) else None
