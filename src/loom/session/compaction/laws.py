"""Checking what a compactor proposes before anything is built on it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from loom.core.checkpoint import Compaction, Shown
from loom.errors import UsageError
from loom.protocols.compactor import Rewrite
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.cut import shown_tokens
from loom.session.rounds import current_request, units_of


def after(shown: Sequence[Shown], rewrite: Rewrite) -> tuple[Shown, ...]:
    """What is shown when a rewrite applies; raises UsageError where it does not fit."""
    if not rewrite.replacements:
        return tuple(shown)
    compaction = Compaction(
        id="rewrite",
        at=datetime.min.replace(tzinfo=UTC),
        strategy="",
        replacements=rewrite.replacements,
        tokens_before=0,
        tokens_after=0,
    )
    return compaction.apply(shown)


def broken_law(
    shown: Sequence[Shown], rewrite: Rewrite, *, target: int, counter: TokenCounter, keep: AbstractSet[str]
) -> str | None:
    """Which law of a Compactor a rewrite breaks, in words; None where it keeps them all."""
    try:
        left = after(shown, rewrite)
    except UsageError as error:
        return f"the rewrite does not fit the history: {error}"
    size = shown_tokens(left, counter)
    if size > target:
        return f"the rewrite leaves {size:,} tokens and the target is {target:,}"
    request = current_request(shown)
    needed = keep if request is None else {*keep, request.id}
    if lost := sorted(needed & rewrite.covered):
        return f"the rewrite covers {', '.join(lost)}, which must stay as it is"
    if _halves(left) > _halves(shown):
        return "the rewrite leaves a tool call without its result, or a result without its call"
    return None


def _halves(shown: Sequence[Shown]) -> int:
    return sum(unit.open or unit.stray for unit in units_of(shown))
