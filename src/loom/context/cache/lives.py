"""The history of each block of a trace: whether it stays, changes or vanishes from request to request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from loom.catalog.model import CacheRules
from loom.context.cache.matching import markable
from loom.context.cache.prompt import Block, Prompt


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

    def tail(self, number: int, prompt: Prompt, rules: CacheRules) -> int | None:
        """The last block of a request that can carry a marker and will be repeated by the next."""
        stable = (i for i in range(len(prompt.blocks) - 1, -1, -1) if i not in self.volatile[number])
        return next((i for i in stable if markable(prompt.blocks[i], rules)), None)

    def inside(self, number: int) -> list[int]:
        """Volatile positions of a request that stand before a block that stays."""
        gone = self.volatile[number]
        last = max((i for i in range(len(self.slots[number])) if i not in gone), default=-1)
        return sorted(i for i in gone if i < last)


def block_history(trace: Sequence[Prompt]) -> BlockHistory:
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
    trace: Sequence[Prompt],
    slots: Sequence[tuple[int, ...]],
    changed: Mapping[int, tuple[int, ...]],
    vanished: Sequence[frozenset[int]],
) -> tuple[frozenset[int], ...]:
    ages: dict[int, int] = {}
    for row in slots:
        for slot in row:
            ages[slot] = ages.get(slot, 0) + 1
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


def _as_before(trace: Sequence[Prompt], slots: Sequence[tuple[int, ...]], found: list[frozenset[int]]) -> set[int]:
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
