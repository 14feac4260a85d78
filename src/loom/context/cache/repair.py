"""Changes to a trace that let the prompt cache find it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from math import ceil
from operator import is_
from typing import TypeAlias, get_args

from loom.catalog import CacheRules
from loom.context.cache.simulate import Fix, common_length, markable, replay
from loom.core.window import Block, RequestBlocks
from loom.errors import UsageError

# The history of each block of a trace: whether it stays, changes or vanishes from request to request.


@dataclass(frozen=True, slots=True)
class BlockHistory:
    """The blocks of a trace, followed from request to request.

    A slot is one place of the conversation. It keeps its number while its block is repeated or
    replaced in place, and ends when the block is gone.
    """

    slots: tuple[tuple[int, ...], ...]
    """The slot of each block, by request."""
    volatile: tuple[frozenset[int], ...]
    """Positions of the blocks that the next request will not repeat, by request."""
    first: Mapping[int, Block]
    """The block that each slot held first."""
    changed: Mapping[int, tuple[int, ...]]
    """The requests in which a slot came with another content than before."""
    vanished: tuple[frozenset[int], ...]
    """Slots of the request before that are gone, by request."""

    def tail(self, number: int, prompt: RequestBlocks, rules: CacheRules) -> int | None:
        """The last block of a request that can carry a marker and will be repeated by the next."""
        stable = (i for i in range(len(prompt.blocks) - 1, -1, -1) if i not in self.volatile[number])
        return next((i for i in stable if markable(prompt.blocks[i], rules)), None)

    def inside(self, number: int) -> list[int]:
        """Volatile positions of a request that stand before a block that stays."""
        gone = self.volatile[number]
        last = max((i for i in range(len(self.slots[number])) if i not in gone), default=-1)
        return sorted(i for i in gone if i < last)


def block_history(trace: Sequence[RequestBlocks]) -> BlockHistory:
    """Follows every block of a trace. Stability is read from the requests, and from what authors declared."""
    slots: list[tuple[int, ...]] = []
    first: dict[int, Block] = {}
    changed: dict[int, list[int]] = {}
    vanished: list[frozenset[int]] = []
    for number, prompt in enumerate(trace):
        before = trace[number - 1].blocks if number else ()
        continued = _align(before, prompt.blocks)
        row: list[int] = []
        for i, block in enumerate(prompt.blocks):
            old = continued.get(i)
            slot = len(first) if old is None else slots[-1][old]
            row.append(slot)
            first.setdefault(slot, block)
            if old is not None and before[old].key != block.key:
                changed.setdefault(slot, []).append(number)
        vanished.append(frozenset(slots[-1]).difference(row) if slots else frozenset())
        slots.append(tuple(row))
    frozen = {slot: tuple(numbers) for slot, numbers in changed.items()}
    return BlockHistory(tuple(slots), _volatile(trace, slots, frozen, vanished), first, frozen, tuple(vanished))


def _volatile(
    trace: Sequence[RequestBlocks],
    slots: Sequence[tuple[int, ...]],
    changed: Mapping[int, tuple[int, ...]],
    vanished: Sequence[frozenset[int]],
) -> tuple[frozenset[int], ...]:
    ages = Counter(slot for row in slots for slot in row)
    found: list[frozenset[int]] = []
    for number, prompt in enumerate(trace):
        gone: set[int] = set()
        for i, block in enumerate(prompt.blocks):
            slot = slots[number][i]
            restless = _restless(block, ages[slot], len(changed.get(slot, ())))
            if block.volatile or restless or (ages[slot] == 1 and _passing(number, i, slots, vanished, gone)):
                gone.add(i)
        found.append(frozenset(gone))
    if len(found) > 1:
        found[-1] |= _as_before(trace, slots, found)
    return tuple(found)


def _restless(block: Block, age: int, changes: int) -> bool:
    """Whether a slot changes as a habit: in the system prompt once is enough, in a message at least every second time.

    A message that changes once was edited; tools have their own rules.
    """
    if block.level == "tools":
        return False
    if block.level == "system":
        return changes > 0
    return changes > 1 and changes * 2 >= age - 1


def _passing(
    number: int, i: int, slots: Sequence[tuple[int, ...]], vanished: Sequence[frozenset[int]], gone: set[int]
) -> bool:
    """Whether a block was shown once and dropped, while the conversation before it went on."""
    if number + 1 == len(slots) or slots[number][i] not in vanished[number + 1]:
        return False
    return i == 0 or i - 1 in gone or slots[number][i - 1] not in vanished[number + 1]


def _as_before(
    trace: Sequence[RequestBlocks], slots: Sequence[tuple[int, ...]], found: list[frozenset[int]]
) -> set[int]:
    """New blocks of the last request that stand where the request before had a passing one, counted from the end."""
    last, before = trace[-1].blocks, trace[-2].blocks
    alike: set[int] = set()
    for i in found[-2]:
        j = i - len(before) + len(last)
        if j < 0 or slots[-1][j] in slots[-2]:
            continue
        if (last[j].role, last[j].kind) == (before[i].role, before[i].kind):
            alike.add(j)
    return alike


def _align(old: Sequence[Block], new: Sequence[Block]) -> dict[int, int]:
    """Which block of `old` each block of `new` continues, unchanged or replaced in place."""
    keys_old, keys_new = [b.key for b in old], [b.key for b in new]
    size = min(len(old), len(new))
    same = [i for i in range(size) if keys_old[i] == keys_new[i]]
    common = next((i for i, at in enumerate(same) if i != at), len(same))
    if common == len(old):
        return {i: i for i in range(common)}
    # Most edits replace blocks where they stand: then positions tell, up to the last one that is equal.
    if same and len(same) - common >= (same[-1] + 1 - common) / 2 and _reaches(same[-1], common, len(old)):
        pairs = [(i, i) for i in range(same[-1] + 1)]
    else:
        pairs = [(i, i) for i in range(common)]
        pairs += [(i + common, j + common) for i, j in _anchored(keys_old[common:], keys_new[common:])]
    return {j: i for i, j in pairs if (old[i].level, old[i].role) == (new[j].level, new[j].role)}


def _reaches(last: int, common: int, length: int) -> bool:
    """Whether equal positions cover most of what follows the first difference."""
    return last >= common and (last - common) * 2 >= length - common - 1


def _anchored(old: list[bytes], new: list[bytes]) -> list[tuple[int, int]]:
    """Pairs of equal items, and of items replaced one by one between equal ones."""
    pairs: list[tuple[int, int]] = []
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for n, (tag, a, a_end, b, b_end) in enumerate(codes):
        replaced_in_place = tag == "replace" and a_end - a == b_end - b and n + 1 < len(codes)
        if tag == "equal" or replaced_in_place:
            pairs += zip(range(a, a_end), range(b, b_end), strict=True)
    return pairs


FIXES: tuple[Fix, ...] = get_args(Fix)
"""Every fix, in the order in which several are applied."""

BATCHES = (5, 10, 20, 40)
"""Batch sizes that are tried for edits of the history, in requests."""

SMALLEST_UPDATE = 16
"""Tokens of a note about a small change: a changed word needs a sentence around it."""

Prompts: TypeAlias = tuple[RequestBlocks, ...]


def repair(trace: Sequence[RequestBlocks], fix: Fix, rules: CacheRules) -> Prompts:
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
    return _in_order(_REPAIRS[fix](tuple(trace), rules), rules)


def _pin_tools(trace: Prompts, _rules: CacheRules) -> Prompts:
    known: dict[str, Block] = {}
    repaired: list[RequestBlocks] = []
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


def _moved(number: int, prompt: RequestBlocks, history: BlockHistory, pinned: set[int]) -> RequestBlocks:
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
    last_stable = max(i for i in range(len(prompt.blocks)) if i not in history.volatile[number])
    edge = len(kept) - (len(prompt.blocks) - 1 - last_stable)
    return replace(prompt, blocks=(*kept[:edge], *late, *kept[edge:]))


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
    batched = [_in_order(_batched(trace, history, every), rules) for every in BATCHES]
    return min(batched, key=lambda candidate: replay(candidate, rules).cost)


def _batched(trace: Prompts, history: BlockHistory, every: int) -> Prompts:
    repaired: list[RequestBlocks] = []
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
    repaired: list[RequestBlocks] = []
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


def _lifetime_of(prompt: RequestBlocks, rules: CacheRules) -> str | None:
    """The lifetime of a new marker: the one in use behind all others, since a longer one may not follow."""
    used = [b.marker for b in prompt.blocks if b.marker]
    return (used[-1] if used else prompt.automatic) or rules.default_ttl or next(iter(rules.ttls), None)


def _in_order(trace: Prompts, rules: CacheRules) -> Prompts:
    """A trace in which no marker stands behind one with a shorter lifetime, which a provider refuses."""
    return tuple(_longest_first(prompt, rules) for prompt in trace) if rules.matching == "lookback" else trace


def _longest_first(prompt: RequestBlocks, rules: CacheRules) -> RequestBlocks:
    """A request whose markers last at least as long as those behind them."""
    blocks, longest = list(prompt.blocks), prompt.automatic
    for i in reversed(prompt.markers):
        own = blocks[i].marker
        if longest is None or rules.ttls.get(own or "", 0) > rules.ttls.get(longest, 0):
            longest = own
        blocks[i] = blocks[i].marked(longest)
    return prompt if all(map(is_, blocks, prompt.blocks)) else replace(prompt, blocks=tuple(blocks))


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
    "pin_settings": lambda trace, _: tuple(replace(p, model=trace[0].model, settings=trace[0].settings) for p in trace),
    "move_volatile": _move_volatile,
    "batch_edits": _batch_edits,
    "explicit_tail": partial(_mark, automatic=False),
    "mark_tail": _mark,
    "mark_previous_tail": partial(_mark, past=1),
    "remark_ends": partial(_mark, past=None),
    "longer_ttl": _longer_ttl,
}
