"""Compactors: the protocol, and one that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from loom.core.checkpoint import Replacement, Shown
from loom.errors import CannotCompact
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter

__all__ = ["Compactor", "Replacement", "Rewrite", "Shown", "StubCompactor"]


class StubCompactor:
    """Passes a history through unchanged, and says so where that is not enough."""

    name = "stub"

    async def compact(
        self,
        shown: Sequence[Shown],
        *,
        target: int,
        counter: TokenCounter,
        keep: AbstractSet[str] = frozenset(),  # noqa: ARG002  (it keeps everything)
    ) -> Rewrite:
        """No rewrite at all; raises CannotCompact if the history is larger than the target."""
        size = sum(counter.count_part(part) for item in shown for part in item.message.parts)
        if size > target:
            raise CannotCompact(
                f"the history has {size:,} tokens, the target is {target:,}, and this compactor shortens nothing"
            )
        return Rewrite(replacements=())
