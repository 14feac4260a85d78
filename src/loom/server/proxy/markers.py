"""Cache markers for requests of Anthropic's format that have none, or fewer than would pay.

Writing to the cache costs more than sending, and only a later request earns it back. So there are two kinds of markers:
those that read an entry which is known to be there, which cost nothing and pay at once, and those that write a new one,
which are bought from what the conversation has saved already. Of these the deepest that can be paid for is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from loom.catalog import CacheRules
from loom.context.cache.simulate import markable, marked, own_breakpoint, reach
from loom.core.window import Block, PrefixChain
from loom.errors import UsageError
from loom.server.proxy.ledger import Books, Places, Weighed

_TTL: Final = "5m"
_MARKED: Final = frozenset({"text", "image", "document", "tool_result"})
"""Blocks of a user that are marked. Any other may be one that the provider does not take a marker on."""
_TRIED: Final = 64
"""Places that are tried for a marker, from the end."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Markers for a request: by position in its chain, and what they cost."""

    marks: Mapping[int, str]
    chain: PrefixChain
    weighed: tuple[Weighed, ...]
    why_not: str = ""
    """Why none was placed that writes."""


def place_markers(chain: PrefixChain, books: Books, places: Places, *, writes: bool, grown: str) -> Marked:
    """The best markers that the law allows beside those of the program.

    Args:
        chain: the request as it would be sent.
        books: the accounts.
        places: where each block of the request as it came is now.
        writes: whether new entries may be written; otherwise only what is there is read.
        grown: why the conversation is not one that is known to go on; empty where it is.
    """
    rules = books.ledgers[0].rules
    best = Marked({}, chain, books.weigh(chain, places))
    tries = _MarkTries(chain, books, places, rules)
    found = tries.found()
    free = tries.weigh({found: _TTL}) if found is not None else None
    if free is not None and free.pays(best) and books.allows(free.weighed):
        best = free.plain()
    if not writes:
        return best
    if tries.slots <= len(best.marks):
        return replace(best, why_not="all markers that the provider takes are used")
    last = max([*marked(best.chain, rules), -1])
    ends = [i for i in _ends(chain, places.own) if i > last]
    if not ends or grown:
        return replace(best, why_not=grown if ends else "")  # without an end, the program marks it itself
    why_not = "the prompt is shorter than what is cached"
    for i in ends[:_TRIED]:
        tried = tries.weigh({**best.marks, i: _TTL}) if chain.ends[i] >= rules.min_prefix else None
        if tried is not None and books.allows(tried.weighed):
            return tried.plain()
        why_not = books.why_not(tried.weighed) if tried is not None else why_not
    return replace(best, why_not=why_not)


@dataclass(frozen=True, slots=True)
class _TriedMarks:
    marks: Mapping[int, str]
    chain: PrefixChain
    weighed: tuple[Weighed, ...]

    def pays(self, other: Marked) -> bool:
        """Whether it costs less at once, in every account."""
        return all(a.ours.cost < b.ours.cost for a, b in zip(self.weighed, other.weighed, strict=True))

    def plain(self) -> Marked:
        return Marked(self.marks, self.chain, self.weighed)


class _MarkTries:
    """Markers that may be added to one request."""

    def __init__(self, chain: PrefixChain, books: Books, places: Places, rules: CacheRules) -> None:
        self._chain, self._books, self._places, self._rules = chain, books, places, rules
        automatic = own_breakpoint(chain, rules) is not None
        self.slots = rules.max_markers - len(chain.marks) - automatic

    def weigh(self, marks: Mapping[int, str]) -> _TriedMarks | None:
        """What a request with these markers costs; None where the provider would refuse it."""
        all_marks = {**self._chain.marks, **marks}
        lifetimes = [self._rules.ttls.get(ttl, 0.0) for _, ttl in sorted(all_marks.items())]
        if len(marks) > self.slots or lifetimes != sorted(lifetimes, reverse=True):
            return None
        chain = replace(self._chain, marks=dict(sorted(all_marks.items())))
        try:
            return _TriedMarks(marks, chain, self._books.weigh(chain, self._places))
        except UsageError:
            return None

    def found(self) -> int | None:
        """The position of the deepest entry, if no marker of the program reaches it."""
        if self.slots <= 0:
            return None
        reached = reach(self._chain, self._rules)
        for i in range(len(self._chain.nodes) - 1, -1, -1):
            if all(ledger.is_live(self._chain.nodes[i], self._books.at) for ledger in self._books.ledgers):
                return None if i in reached or not markable(self._chain.blocks[i], self._rules) else i
        return None


def _ends(chain: PrefixChain, own: frozenset[int]) -> list[int]:
    """The positions where a new entry may be written, last first: blocks of the user, and the end of the system."""
    found: list[int] = []
    for i in range(len(chain.blocks) - 1, -1, -1):
        block = chain.blocks[i]
        if i in own or not block.content:
            continue
        is_head = block.level == "system" and (i + 1 == len(chain.blocks) or chain.blocks[i + 1].level == "messages")
        if is_head or (block.level == "messages" and block.role == "user" and block.kind in _MARKED):
            found.append(i)
    return found


def before_own(chain: PrefixChain, own: frozenset[int], rules: CacheRules) -> dict[int, str]:
    """A marker before what was added, where the provider would place its own behind it.

    So the entry ends where the program's own text does, as it would without the proxy.
    """
    last = own_breakpoint(chain, rules)
    is_room = len(chain.marks) + 1 < rules.max_markers
    if last is None or last not in own or rules.matching != "lookback" or not is_room or last - 1 in chain.marks:
        return {}
    return {last - 1: chain.automatic or _TTL}


def without_tokens(chain: PrefixChain, is_own: Callable[[Block], bool]) -> tuple[PrefixChain, frozenset[int]]:
    """A request in which blocks of the proxy's own count nothing, and their positions: what was added is told apart."""
    own = frozenset(i for i, block in enumerate(chain.blocks) if is_own(block))
    if not own:
        return chain, own
    ends: list[int] = []
    before = added = 0
    for i, end in enumerate(chain.ends):
        added += end - before if i in own else 0
        before = end
        ends.append(end - added)
    return replace(chain, ends=tuple(ends)), own


def marker_record(chain: PrefixChain, marks: Mapping[int, str]) -> list[Any]:
    """The markers that were added, for the journal."""
    return [[chain.blocks[i].path, ttl, chain.ends[i]] for i, ttl in sorted(marks.items())]
