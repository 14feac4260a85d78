"""What traffic through the proxy costs beside what it would cost without it, by Loom's own replay of the cache.

The law: at no time has a conversation cost more than it would have without the proxy. Nobody knows whether another
request comes, so what pays only later is bought from what was saved before, and from nothing else; `advance` is the
exception that a user may allow.

Both caches are replayed: that of the requests as the program sent them, and that of the requests as they went out. An
entry that only the first one keeps alive is a risk: a later request may read it there and has to pay for it here. What
that would cost is set aside, and not spent, for as long as the entry lives. Everything else that is done to a request
has to leave each of its prefixes no longer than it was, so that doing nothing more never costs more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from loom.catalog import CacheRules
from loom.context.cache.simulate import MarkerCache, PrefixCache, Step, empty_cache, step_of
from loom.core.window import PrefixChain

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Places:
    """Where the blocks of a request are after it was changed."""

    there: Sequence[int | None]
    """Of each block; None where it is not sent any more."""
    own: frozenset[int] = frozenset()
    """Blocks that the proxy added, each behind the message that it is always sent with."""

    def ends_of(self, place: int) -> list[int]:
        """Where an entry may end that stands for one which ends at this block."""
        there = self.there[place]
        if there is None:
            return []
        return [there, there + 1] if there + 1 in self.own else [there]


@dataclass(frozen=True, slots=True)
class Weighed:
    """What one request costs without the proxy and with it, and what would have to be set aside."""

    direct: Step
    ours: Step
    at_risk: Mapping[bytes, tuple[float, float]]
    """Entries that live longer without the proxy: until when, and what missing one would cost."""
    kept: frozenset[bytes]
    """Entries that are as safe as without it."""

    @property
    def extra(self) -> float:
        """What it costs more, in tokens at the plain input price; below 0 is a saving."""
        return self.ours.cost - self.direct.cost


class CostLedger:
    """The account of one conversation, or of one user, with one model."""

    def __init__(self, rules: CacheRules, advance: float = 0.0) -> None:
        self.rules, self._advance = rules, advance
        self.direct, self.ours = empty_cache(rules), empty_cache(rules)
        self.saved = 0.0
        """What was saved so far, in tokens at the plain input price."""
        self._at_risk: dict[bytes, tuple[float, float]] = {}
        self._held: dict[int, float] = {}

    def weigh(self, direct: PrefixChain, ours: PrefixChain, places: Places) -> Weighed:
        """Compare a request as it came with one that may be sent."""
        before, after = _Peek(self.direct, direct, self.rules), _Peek(self.ours, ours, self.rules)
        at_risk: dict[bytes, tuple[float, float]] = {}
        kept: set[bytes] = set()
        for place in before.live or _gone(places.there, self.rules):
            node = direct.nodes[place]
            if any(after.expires(ours.nodes[there]) >= before.expires(node) for there in places.ends_of(place)):
                kept.add(node)
            else:
                most = max(self.rules.write.values(), default=1.0)
                at_risk[node] = (before.expires(node), direct.ends[place] * (most - self.rules.read))
        return Weighed(before.step, after.step, at_risk, frozenset(kept))

    def free(self, at: float) -> float:
        """What may be spent now."""
        return self.saved + self._advance - sum(self._held.values()) - self._set_aside({}, frozenset(), at)

    def allows(self, weighed: Weighed, at: float) -> bool:
        """Whether the law holds after this request, whatever comes next."""
        set_aside = self._set_aside(weighed.at_risk, weighed.kept, at)
        left = self.saved + self._advance - sum(self._held.values()) - weighed.extra - set_aside
        return left >= -_ROUNDING or weighed.extra <= 0 >= set_aside

    def hold(self, number: int, weighed: Weighed) -> None:
        """Do not spend twice what a request that is on its way may cost."""
        self._held[number] = max(0.0, weighed.extra)

    def release(self, number: int) -> None:
        """The request is over."""
        self._held.pop(number, None)

    def commit(self, direct: PrefixChain, ours: PrefixChain, places: Places) -> Weighed:
        """Enter a request that was answered."""
        weighed = self.weigh(direct, ours, places)
        self.saved -= weighed.extra
        self.direct = _after(self.direct, direct)
        self.ours = _after(self.ours, ours)
        at = direct.at or 0.0
        risks = {**self._at_risk, **weighed.at_risk}
        self._at_risk = {n: risk for n, risk in risks.items() if n not in weighed.kept and risk[0] > at}
        return weighed

    def is_live(self, node: bytes, at: float | None) -> bool:
        """Whether what the proxy sent before left this prefix in the cache."""
        return isinstance(self.ours, MarkerCache) and self.ours.is_live(node, at)

    def _set_aside(self, more: Mapping[bytes, tuple[float, float]], kept: frozenset[bytes], at: float) -> float:
        risks = {**self._at_risk, **more}
        return sum(amount for node, (until, amount) in risks.items() if node not in kept and until > at)


class _Peek:
    """What a cache would do with a request, without doing it."""

    def __init__(self, cache: PrefixCache, chain: PrefixChain, rules: CacheRules) -> None:
        self._cache = cache.copy(chain.at) if isinstance(cache, MarkerCache) else cache
        found = self._cache.read(chain)
        written = self._cache.write(chain) if isinstance(self._cache, MarkerCache) else ()
        self.step = step_of(chain.tokens, found, written, rules)
        self._ends = inf if (seconds := _lifetime(rules)) is None else (chain.at or 0.0) + seconds
        self.live: list[int] = []
        """The places of the entries that are there behind it: those that it reads or writes, and earlier ones."""
        if isinstance(self._cache, MarkerCache):
            cache = self._cache
            self.live = [i for i, node in enumerate(chain.nodes) if cache.is_live(node, chain.at)]

    def expires(self, node: bytes) -> float:
        return self._cache.expires(node) if isinstance(self._cache, MarkerCache) else self._ends


def _gone(places: Sequence[int | None], rules: CacheRules) -> list[int]:
    """The last block that is not sent any more: a provider that caches all prefixes may forget it here sooner."""
    caches_all = rules.matching in {"grid", "units"} and _lifetime(rules) is not None
    return [place for place, there in enumerate(places) if there is None][-1:] if caches_all else []


def _lifetime(rules: CacheRules) -> float | None:
    return rules.ttls.get(rules.default_ttl) if rules.default_ttl else None


def _after(cache: PrefixCache, chain: PrefixChain) -> PrefixCache:
    after = cache.copy(chain.at) if isinstance(cache, MarkerCache) else cache
    after.read(chain)
    after.write(chain)
    return after


@dataclass(slots=True)
class Books:
    """The accounts that a request is entered in: that of its conversation, and that of its user."""

    ledgers: tuple[CostLedger, ...]
    at: float
    direct: PrefixChain

    def weigh(self, ours: PrefixChain, places: Places) -> tuple[Weighed, ...]:
        """What may be sent beside what came, in each account."""
        return tuple(ledger.weigh(self.direct, ours, places) for ledger in self.ledgers)

    def allows(self, weighed: Sequence[Weighed]) -> bool:
        """Whether the law holds in all of them."""
        return all(ledger.allows(one, self.at) for ledger, one in zip(self.ledgers, weighed, strict=True))

    def why_not(self, weighed: Sequence[Weighed]) -> str:
        """Why the law would not hold."""
        extra = max(one.extra for one in weighed)
        free = min(ledger.free(self.at) for ledger in self.ledgers)
        if extra > max(0.0, free):
            return f"it would cost {extra:,.0f} tokens more now, and {max(0.0, free):,.0f} were saved before"
        return "it would give up what is in the cache, and too little was saved before to risk that"
