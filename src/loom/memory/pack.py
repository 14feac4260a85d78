"""Packing recall: what fits a budget of tokens, best first, each source once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loom.errors import UsageError

Reason: TypeAlias = Literal["repeats", "too long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackItem:
    """Something to be packed. `sources` are the ids it was made from; empty where it is a source itself.

    What is `lossy` leaves out most of what its sources say, so it does not tell them.
    """

    id: str
    text: str
    tokens: int
    sources: tuple[str, ...] = ()
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A piece that was not packed, and why: for `repeats`, `by` names the packed piece that says the same."""

    id: str
    reason: Reason
    by: str | None = None


@dataclass(frozen=True, slots=True)
class PackResult:
    """What fits, in the order given, with what it costs and what was left out before the last of it."""

    pieces: tuple[PackItem, ...]
    tokens: int
    left_out: tuple[LeftOut, ...]


def pack(pieces: Iterable[PackItem], *, budget: int | None = None, limit: int | None = None) -> PackResult:
    """Take pieces in the order given, best first, while they fit into `budget` tokens and `limit` pieces.

    A piece whose sources are all told by packed ones repeats them, and so does an equal text. A piece that is too
    long for what is left makes room for shorter ones behind it. Nothing is read beyond the last piece that is taken.
    """
    for name, value in (("budget", budget), ("limit", limit)):
        if value is not None and value < 0:
            raise UsageError(f"pack() was given {name}={value}; give 0 or more, or None for no end")
    kept: list[PackItem] = []
    left_out: list[LeftOut] = []
    told: dict[str, str] = {}
    texts: dict[str, str] = {}
    used = 0
    for piece in pieces if limit != 0 else ():
        roots = piece.sources or (piece.id,)
        if by := texts.get(_folded(piece.text)) or _teller(roots, told):
            left_out.append(LeftOut(piece.id, "repeats", by))
        elif budget is not None and used + piece.tokens > budget:
            left_out.append(LeftOut(piece.id, "too long"))
        else:
            kept.append(piece)
            used += piece.tokens
            texts[_folded(piece.text)] = piece.id
            for root in () if piece.lossy else roots:
                told.setdefault(root, piece.id)
            if len(kept) == limit:
                break
    return PackResult(tuple(kept), used, tuple(left_out))


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _teller(roots: tuple[str, ...], told: dict[str, str]) -> str | None:
    """The packed piece that told the first root, if all of them are told."""
    return told[roots[0]] if all(root in told for root in roots) else None
