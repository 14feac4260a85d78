"""A trace replayed through a provider's prompt cache: reads, writes and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loom.catalog.model import CacheRules
from loom.context.cache.matching import CacheRead, CacheWrite, Prefixes, empty_cache
from loom.context.cache.prompt import Prompt
from loom.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The cache use of one request. Every token of the prompt is read, written or uncached."""

    read: int
    write: int
    uncached: int
    cost: float
    """In tokens at the plain input price."""
    at_block: int
    """How many blocks were read whole."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.read + self.write + self.uncached


@dataclass(frozen=True, slots=True)
class Simulation:
    """The cache use of a trace, by request and in sum."""

    steps: tuple[Step, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, which is also their cost without a cache."""
        return sum(step.tokens for step in self.steps)

    @property
    def read(self) -> int:
        """Tokens read from the cache."""
        return sum(step.read for step in self.steps)

    @property
    def write(self) -> int:
        """Tokens written to the cache at a price."""
        return sum(step.write for step in self.steps)

    @property
    def uncached(self) -> int:
        """Tokens paid at the plain price."""
        return sum(step.uncached for step in self.steps)

    @property
    def cost(self) -> float:
        """Cost of all prompts, in tokens at the plain input price."""
        return sum(step.cost for step in self.steps)

    @property
    def read_share(self) -> float:
        """Share of all tokens that was read from the cache."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def relative_cost(self) -> float:
        """Cost as a share of what the same prompts cost without a cache."""
        return self.cost / self.tokens if self.tokens else 1.0


def simulate(trace: Sequence[Prompt], rules: CacheRules) -> Simulation:
    """Replays requests in order through the cache that `rules` describe.

    Raises:
        UsageError: the provider would refuse a request, for too many markers or an unknown lifetime.
    """
    cache = empty_cache(rules)
    prefixes = Prefixes()
    steps: list[Step] = []
    for number, prompt in enumerate(trace):
        _check_lifetimes(number, prompt, rules)
        chain = prefixes.lay(prompt)
        try:
            found = cache.read(chain)
            written = cache.write(chain)
        except UsageError as error:
            raise UsageError(f"request {number} would be refused: {error}") from error
        steps.append(_step(prompt.tokens, found, written, rules))
    return Simulation(tuple(steps))


def _step(tokens: int, found: CacheRead, written: tuple[CacheWrite, ...], rules: CacheRules) -> Step:
    reached = found.tokens
    cost = found.tokens * rules.read
    for entry in written:
        stretch = max(0, entry.tokens - reached)
        cost += stretch * write_price(entry.ttl, rules)
        reached += stretch
    uncached = tokens - reached
    return Step(
        read=found.tokens, write=reached - found.tokens, uncached=uncached, cost=cost + uncached, at_block=found.blocks
    )


def write_price(ttl: str, rules: CacheRules) -> float:
    """Price of writing one token for a lifetime, as a share of the plain price."""
    if ttl in rules.write:
        return rules.write[ttl]
    return rules.write.get(rules.default_ttl or "", 1.0)


def _check_lifetimes(number: int, prompt: Prompt, rules: CacheRules) -> None:
    if not rules.ttls:
        return
    markers = [(b.path, b.marker) for b in prompt.blocks if b.marker]
    markers += [("the automatic breakpoint", prompt.automatic)] if prompt.automatic else []
    for place, ttl in markers:
        if ttl not in rules.ttls:
            raise UsageError(
                f"request {number} would be refused: {place} asks for the lifetime {ttl!r}; "
                f"use one of {', '.join(rules.ttls)}"
            )
