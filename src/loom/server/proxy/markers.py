"""Cache markers for requests of Anthropic's format that have none, or fewer than would pay.

Writing to the cache costs more than sending, and only a later request earns it back. So there are two kinds of markers:
those that read an entry which is known to be there, which cost nothing and pay at once, and those that write a new one,
which are bought from what the conversation has saved already. Of these the deepest that can be paid for is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from loom.catalog import CacheRules
from loom.context.cache.simulate import markable, marked, own_breakpoint, reach
from loom.core.window import Block, PrefixChain
from loom.errors import UsageError
from loom.server.proxy.ledger import Books, Weighed

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


def place_markers(
    chain: PrefixChain, books: Books, places: Sequence[int | None], *, own: frozenset[int], writes: bool, grown: str
) -> Marked:
    """The best markers that the law allows beside those of the program.

    Args:
        chain: the request as it would be sent.
        books: the accounts.
        places: where each block of the request as it came is now.
        own: positions of blocks that the proxy added; what changes with a request is not marked.
        writes: whether new entries may be written; otherwise only what is there is read.
        grown: why the conversation is not one that is known to go on; empty where it is.
    """
    rules = books.ledgers[0].rules
    best = Marked({}, chain, books.weigh(chain, places))
    tries = _Tries(chain, books, places, rules)
    free = next((one for i in tries.found() if (one := tries.weigh({i: _TTL})) and one.pays(best)), None)
    if free is not None and books.allows(free.weighed):
        best = free.plain()
    if not writes:
        return best
    if best.why_not or tries.slots <= len(best.marks):
        return replace(best, why_not="all markers that the provider takes are used")
    last = max([*marked(best.chain, rules), -1])
    ends = [i for i in _ends(chain, own) if i > last]
    if not ends:
        return replace(best, why_not="")  # the program marks the end itself
    if grown:
        return replace(best, why_not=grown)
    for i in ends[:_TRIED]:
        tried = tries.weigh({**best.marks, i: _TTL})
        if tried is None or chain.ends[i] < rules.min_prefix:
            continue
        if books.allows(tried.weighed):
            return tried.plain()
        best = best if best.why_not else replace(best, why_not=books.why_not(tried.weighed))
    return best if best.why_not else replace(best, why_not="the prompt is shorter than what is cached")


@dataclass(frozen=True, slots=True)
class _Tried:
    marks: Mapping[int, str]
    chain: PrefixChain
    weighed: tuple[Weighed, ...]

    def pays(self, other: Marked) -> bool:
        """Whether it costs less at once, in every account."""
        return all(a.ours.cost < b.ours.cost for a, b in zip(self.weighed, other.weighed, strict=True))

    def plain(self) -> Marked:
        return Marked(self.marks, self.chain, self.weighed)


class _Tries:
    """Markers that may be added to one request."""

    def __init__(self, chain: PrefixChain, books: Books, places: Sequence[int | None], rules: CacheRules) -> None:
        self._chain, self._books, self._places, self._rules = chain, books, places, rules
        automatic = own_breakpoint(chain, rules) is not None
        self.slots = rules.max_markers - len(chain.marks) - automatic

    def weigh(self, marks: Mapping[int, str]) -> _Tried | None:
        """What a request with these markers costs; None where the provider would refuse it."""
        all_marks = {**self._chain.marks, **marks}
        lifetimes = [self._rules.ttls.get(ttl, 0.0) for _, ttl in sorted(all_marks.items())]
        if len(marks) > self.slots or lifetimes != sorted(lifetimes, reverse=True):
            return None
        chain = replace(self._chain, marks=dict(sorted(all_marks.items())))
        try:
            return _Tried(marks, chain, self._books.weigh(chain, self._places))
        except UsageError:
            return None

    def found(self) -> Iterator[int]:
        """Positions of entries that no marker of the program reaches, deepest first."""
        if self.slots <= 0:
            return
        reached = reach(self._chain, self._rules)
        for i in range(len(self._chain.nodes) - 1, -1, -1):
            live = all(ledger.is_live(self._chain.nodes[i], self._books.at) for ledger in self._books.ledgers)
            if live and i not in reached and markable(self._chain.blocks[i], self._rules):
                yield i
                return


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


def marker_paths(chain: PrefixChain, marks: Iterable[int]) -> list[str]:
    """The paths of the marked blocks in the body."""
    return [chain.blocks[i].path for i in marks]


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
