"""Compacting on demand: whether there is anything to do, what stays in any case, and down to what."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from loom.core.checkpoint import Shown
from loom.core.message import ThinkingPart
from loom.protocols.token_counter import TokenCounter
from loom.session.compaction.config import Retain
from loom.session.compaction.cut import cut, shown_tokens
from loom.session.compaction.record import is_left_over

_RECORD: Final = (200, 1_000)
"""Tokens for a record of what goes: at least and at most, half of what goes in between."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a compaction on demand is told. Tokens are those of a compactor."""

    keep: frozenset[str]
    target: int
    newest: str | None
    """The answer that the history ends with."""


def find_demand(
    shown: Sequence[Shown],
    *,
    counter: TokenCounter,
    keep: AbstractSet[str],
    retain: Retain,
    target: int,
    limit: int,
    binds_thinking: bool,
) -> Demand | None:
    """What to ask for, so that all that `retain` names stays; None where that is everything.

    `target` is what a pass would reach otherwise, `limit` the most that leaves the trigger alone. Where what
    `retain` names is larger than that, it gives way.
    """
    whole = shown_tokens(shown, counter)
    firm = replace(retain, firm=True)
    choice = cut(shown, target=whole, counter=counter, keep=keep, retain=firm, reserve=0)
    gone = {item.id for item in choice.dropped} | choice.bridges
    goes = [item for item in choice.dropped if not is_left_over(item.message)]
    if not goes:
        return None
    stays = [item for item in shown if item.id not in gone]
    newest = shown[-1] if shown[-1].message.role == "assistant" else None
    size = shown_tokens(stays, counter)
    least, most = _RECORD
    spare = whole - size
    wanted = min(whole - 1, max(target, size + min(spare, max(least, min(spare // 2, most)))))
    if wanted > limit:
        stays, wanted = [newest] if newest else [], min(target, whole - 1)
    # Thinking that is bound to what stood before it goes with the edit, so its message cannot stay as it is.
    whole_ones = (item.id for item in stays if not (binds_thinking and _thinks(item)))
    return Demand(frozenset(whole_ones) | keep, wanted, newest.id if newest else None)


def _thinks(item: Shown) -> bool:
    return any(isinstance(part, ThinkingPart) for part in item.message.parts)
