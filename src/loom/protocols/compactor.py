"""Making the shown part of a history smaller."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from loom.core.log import Replacement, Shown
from loom.core.message import Usage
from loom.protocols.token_counter import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A compactor's proposal: replacements for runs of messages. The rest stays verbatim."""

    replacements: tuple[Replacement, ...]
    dropped_thinking: int = 0
    """Thinking parts that are no longer shown because the rewrite invalidates them."""
    usage: Usage = field(default_factory=Usage)
    """Usage of the model calls that made it, if any."""

    @property
    def covered(self) -> frozenset[str]:
        """The ids that are no longer shown verbatim."""
        return frozenset(id for replacement in self.replacements for id in replacement.covers)


@runtime_checkable
class Compactor(Protocol):
    """Proposes a rewrite of what is shown. It changes nothing: the session logs the rewrite and applies it.

    Laws:
    - after the rewrite at most `target` tokens are shown, by `counter`; if that cannot be had it raises
      CannotCompact with the reason, and never returns a rewrite above the target;
    - every message in `keep` (the current request, pins) stays verbatim;
    - each replacement covers a run of shown messages, in order; no two overlap;
    - every tool call that is shown has its result right behind it, and every result its call;
    - shown thinking is unchanged, or it is dropped and counted;
    - the same input without a model gives the same rewrite;
    - a model that fails raises its own error; falling back is the business of a chain.
    """

    @property
    def name(self) -> str:
        """The strategy, as events report it: `summarize`, `truncate`, ..."""
        ...

    async def compact(
        self, shown: Sequence[Shown], *, target: int, counter: TokenCounter, keep: AbstractSet[str] = frozenset()
    ) -> Rewrite:
        """A rewrite that brings `shown` down to `target` tokens."""
        ...
