"""Changes to a trace that let a prompt cache find it again, each a general operation on its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Literal, TypeAlias, get_args

from loom.catalog.model import CacheRules
from loom.context.cache.lives import BlockHistory, block_history
from loom.context.cache.matching import common_length
from loom.context.cache.prompt import Block, Prompt
from loom.context.cache.simulate import simulate
from loom.errors import UsageError

Fix: TypeAlias = Literal[
    "pin_tools", "pin_settings", "move_volatile", "batch_edits", "explicit_tail", "mark_tail", "mark_previous_tail",
    "remark_ends", "longer_ttl",
]  # fmt: skip
FIXES: tuple[Fix, ...] = get_args(Fix)
"""Every fix, in the order in which several are applied."""

BATCHES = (5, 10, 20, 40)
"""Batch sizes that are tried for edits of the history, in requests."""

SMALLEST_UPDATE = 16
"""Tokens of a note about a small change: a changed word needs a sentence around it."""

Prompts: TypeAlias = tuple[Prompt, ...]


def repair(trace: Sequence[Prompt], fix: Fix, rules: CacheRules) -> Prompts:
    """The trace as it would have been sent with the fix.

    The fixes:
      pin_tools           tools keep the order and the content in which they were first sent
      pin_settings        the model and the parameters of the first request stay
      move_volatile       what changes with every request moves behind the last block that stays
      batch_edits         edits of the history wait and are made together, every n-th request
      explicit_tail       the automatic breakpoint gives way to a marker on the last block that stays
      mark_tail           the last block that stays carries a marker
      mark_previous_tail  ... and so does the one of the request before
      remark_ends         ... and so do those of all requests before
      longer_ttl          markers ask for the longest lifetime
    """
    if fix not in _REPAIRS:
        raise UsageError(f"there is no fix {fix!r}; the fixes are {', '.join(FIXES)}")
    return _REPAIRS[fix](tuple(trace), rules)


def _pin_tools(trace: Prompts, _rules: CacheRules) -> Prompts:
    known: dict[str, Block] = {}
    repaired: list[Prompt] = []
    for prompt in trace:
        given = [b for b in prompt.blocks if b.level == "tools"]
        for tool in given:
            known.setdefault(tool.tool_name, tool)
        marker = next((b.marker for b in reversed(given) if b.marker), None)
        pinned = [b.marked(None) for b in known.values()] if given else []
        if pinned:
            pinned[-1] = pinned[-1].marked(marker)
        others = [b for b in prompt.blocks if b.level != "tools"]
        repaired.append(replace(prompt, blocks=(*pinned, *others)))
    return tuple(repaired)


def _pin_settings(trace: Prompts, _rules: CacheRules) -> Prompts:
    return tuple(replace(p, model=trace[0].model, settings=trace[0].settings) for p in trace)


def _move_volatile(trace: Prompts, rules: CacheRules) -> Prompts:
    history = block_history(trace)
    pinned = _pinnable(trace, history)
    repaired = tuple(_moved(number, prompt, history, pinned) for number, prompt in enumerate(trace))
    # What was moved is now the last block, where an automatic breakpoint would land on it.
    return _mark(repaired, rules, automatic=False) if any(p.automatic for p in repaired) else repaired


def _pinnable(trace: Prompts, history: BlockHistory) -> set[int]:
    """Slots whose text always stays mostly the same, so that only the words that change have to move."""
    moving = {history.slots[n][i] for n in range(len(trace)) for i in history.inside(n)}
    pinned = moving.intersection(history.changed)
    for number, prompt in enumerate(trace):
        for slot, block in zip(history.slots[number], prompt.blocks, strict=True):
            if slot in pinned and len(_news(history.first[slot], block)) * 2 > len(block.content):
                pinned.discard(slot)
    return pinned


def _news(first: Block, now: Block) -> str:
    """The part of a block's text that differs from how it was first sent."""
    start = common_length(first.content, now.content)
    end = common_length(first.content[start:][::-1], now.content[start:][::-1])
    return now.content[start : len(now.content) - end]


def _moved(number: int, prompt: Prompt, history: BlockHistory, pinned: set[int]) -> Prompt:
    inside = history.inside(number)
    if not inside:
        return prompt
    kept: list[Block] = []
    late: list[Block] = []
    for i, block in enumerate(prompt.blocks):
        slot = history.slots[number][i]
        first = history.first[slot]
        if i not in inside:
            kept.append(block)
        elif slot not in pinned:
            late.append(_late(block, block.content))
            if block.marker and kept:
                kept[-1] = kept[-1].marked(kept[-1].marker or block.marker)
        else:
            kept.append(replace(first, marker=block.marker, path=block.path))
            late += [_late(block, _news(first, block))] if first.key != block.key else []
    # What moves goes behind the last stable block, but before the volatile tail, which keeps its place.
    edge = len(kept) - (len(prompt.blocks) - 1 - _last_stable(number, prompt, history))
    return replace(prompt, blocks=(*kept[:edge], *late, *kept[edge:]))


def _last_stable(number: int, prompt: Prompt, history: BlockHistory) -> int:
    return max(i for i in range(len(prompt.blocks)) if i not in history.volatile[number])


def _late(block: Block, content: str) -> Block:
    """A block that is meant for one request only, with its share of the tokens."""
    share = ceil(block.tokens * len(content) / max(1, len(block.content)))
    return replace(
        block,
        level="messages",
        role="user",
        kind="text",
        content=content,
        tokens=min(block.tokens, max(share, SMALLEST_UPDATE)),
        marker=None,
        volatile=True,
    )


def _batch_edits(trace: Prompts, rules: CacheRules) -> Prompts:
    history = block_history(trace)
    batched = [_batched(trace, history, every) for every in BATCHES]
    return min(batched, key=lambda candidate: simulate(candidate, rules).cost)


def _batched(trace: Prompts, history: BlockHistory, every: int) -> Prompts:
    repaired: list[Prompt] = []
    shown: dict[int, Block] = {}
    for number, prompt in enumerate(trace):
        row = history.slots[number]
        own = dict(zip(row, prompt.blocks, strict=True))
        passing = {row[i] for i in history.volatile[number]}
        shown = own if number % every == 0 else _merged(shown, row, history)
        blocks = [
            (own[slot] if slot in passing else block).marked(own[slot].marker if slot in own else None)
            for slot, block in shown.items()
        ]
        shown = {slot: block for slot, block in shown.items() if slot not in passing}
        repaired.append(replace(prompt, blocks=tuple(blocks)))
    return tuple(repaired)


def _merged(shown: dict[int, Block], row: Sequence[int], history: BlockHistory) -> dict[int, Block]:
    """The blocks shown so far, with the slots that are new in this request behind the ones they follow.

    -1 stands for the start: a new first slot follows nothing.
    """
    follower = {row[i - 1] if i else -1: slot for i, slot in enumerate(row) if slot not in shown}
    merged: dict[int, Block] = {}
    for anchor in (-1, *shown):
        if anchor in shown:
            merged[anchor] = shown[anchor]
        new = follower.get(anchor)
        while new is not None:
            merged[new] = history.first[new]
            new = follower.get(new)
    return merged


def _mark(trace: Prompts, rules: CacheRules, *, past: int | None = 0, automatic: bool = True) -> Prompts:
    """Marks the tail of each request and those of the `past` requests before it; None for all of them."""
    history = block_history(trace)
    tails: list[int] = []
    repaired: list[Prompt] = []
    for number, prompt in enumerate(trace):
        row = history.slots[number]
        tail = history.tail(number, prompt, rules)
        tails.append(-1 if tail is None else row[tail])
        own = prompt.automatic if automatic else None
        # Exact matching finds an old entry only where it is marked again.
        every = past is None or (rules.matching == "exact" and not own)
        wanted = set(tails if every else tails[-(past or 0) - 1 :])
        ttl = _lifetime_of(prompt, rules)
        # The request's own markers win over ours, except on blocks that the next request will not repeat.
        marks = {i: prompt.blocks[i].marker or ttl for i, slot in enumerate(row) if slot in wanted}
        marks |= {i: prompt.blocks[i].marker for i in prompt.markers if i not in history.volatile[number]}
        kept = dict(_within_limit(sorted(marks.items()), rules, own=own))
        blocks = tuple(b.marked(kept.get(i)) for i, b in enumerate(prompt.blocks))
        repaired.append(replace(prompt, blocks=blocks, automatic=own))
    return tuple(repaired)


def _within_limit(
    marks: list[tuple[int, str | None]], rules: CacheRules, *, own: str | None
) -> list[tuple[int, str | None]]:
    """The latest markers that one request may carry; a later one covers everything before it."""
    if rules.matching == "exact":
        return marks
    room = rules.max_markers - (own is not None)
    return marks[-room:] if room > 0 else []


def _lifetime_of(prompt: Prompt, rules: CacheRules) -> str | None:
    """The lifetime of a new marker: the one in use behind all others, since a longer one may not follow."""
    used = [b.marker for b in prompt.blocks if b.marker]
    return (used[-1] if used else prompt.automatic) or rules.default_ttl or next(iter(rules.ttls), None)


def _longer_ttl(trace: Prompts, rules: CacheRules) -> Prompts:
    if not rules.ttls:
        return trace
    longest = max(rules.ttls, key=lambda ttl: rules.ttls[ttl])
    return tuple(
        replace(
            p, blocks=tuple(b.marked(longest) if b.marker else b for b in p.blocks), automatic=p.automatic and longest
        )
        for p in trace
    )


_REPAIRS: dict[Fix, Callable[[Prompts, CacheRules], Prompts]] = {
    "pin_tools": _pin_tools,
    "pin_settings": _pin_settings,
    "move_volatile": _move_volatile,
    "batch_edits": _batch_edits,
    "explicit_tail": partial(_mark, automatic=False),
    "mark_tail": _mark,
    "mark_previous_tail": partial(_mark, past=1),
    "remark_ends": partial(_mark, past=None),
    "longer_ttl": _longer_ttl,
}
