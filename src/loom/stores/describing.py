"""How stores speak of themselves, where several of them say the same."""

from __future__ import annotations


def spoken_embedder(bound: tuple[str, int] | None) -> str:
    """Whose vectors a store holds, in words."""
    return "none yet: nothing was embedded" if bound is None else f"{bound[0]} ({bound[1]} numbers)"
