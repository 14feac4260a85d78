"""Compactors: the protocol, and one that changes nothing."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, overload

from loom.core.checkpoint import Replacement, Shown
from loom.errors import CannotCompact, UsageError
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter

__all__ = ["Compactor", "Replacement", "Rewrite", "Shown", "StubCompactor"]


class Renders(Protocol):
    """What can be shown as plain text: a Context."""

    def render(self, *, clear_volatile: bool = True) -> str:
        """The window as plain text."""
        ...


class StubCompactor:
    """Passes a history through unchanged, and says so where that is not enough."""

    name = "stub"

    @overload
    def compact(self, shown: Renders) -> str: ...
    @overload
    def compact(
        self,
        shown: Sequence[Shown],
        *,
        target: int,
        counter: TokenCounter,
        keep: AbstractSet[str] = frozenset(),
    ) -> Coroutine[Any, Any, Rewrite]: ...
    def compact(
        self,
        shown: Renders | Sequence[Shown],
        *,
        target: int | None = None,
        counter: TokenCounter | None = None,
        keep: AbstractSet[str] = frozenset(),  # noqa: ARG002  (it keeps everything)
    ) -> str | Coroutine[Any, Any, Rewrite]:
        """Of a context, its plain text, at once and with `step` left alone; of a history, no rewrite at all (async).

        Raises CannotCompact if the history is larger than the target.
        """
        if not isinstance(shown, Sequence):
            return shown.render(clear_volatile=False)
        if target is None or counter is None:
            raise UsageError("a history is compacted to a target; give target= and counter=, or a Context alone")
        return _unchanged(shown, target, counter)


async def _unchanged(shown: Sequence[Shown], target: int, counter: TokenCounter) -> Rewrite:
    size = sum(counter.count_part(part) for item in shown for part in item.message.parts)
    if size > target:
        raise CannotCompact(
            f"the history has {size:,} tokens, the target is {target:,}, and this compactor shortens nothing"
        )
    return Rewrite(replacements=())
