"""Simulate: a trace of windows or requests, replayed through a provider's prompt cache."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

from loom.catalog import CacheRules
from loom.context.render.request import Request, prepare, target_for
from loom.core.window import LEVELS, Block, Level, RequestBlocks, Window, positions
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import counter_for
from loom.traces.request import model_of, read_request

# The four ways in which providers find an earlier prefix in their prompt cache.

CALLS = frozenset({"tool_use", "function_call"})
RESULTS = frozenset({"tool_result", "function_call_output"})
THINKING = frozenset({"thinking", "redacted_thinking", "reasoning"})
EARLIER_ENDS = 20
"""Message ends, besides the newest, that a provider with implicit breakpoints looks up."""


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """One request with the hash of each of its prefixes; equal prefixes have equal nodes."""

    prompt: RequestBlocks
    parents: tuple[bytes, ...]
    """What each block continues: the prefix before it, salted with the settings of its level."""
    nodes: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Tokens up to the end of each block."""


class Prefixes:
    """Hashes the prefixes of each request, going on from what it shares with the request before."""

    def __init__(self) -> None:
        self._last: PrefixChain | None = None

    def lay(self, prompt: RequestBlocks) -> PrefixChain:
        """The request as a chain; the model and the settings of a level salt all that follows."""
        shared = self._shared(prompt)
        parents = list(self._last.parents[:shared]) if self._last else []
        nodes = list(self._last.nodes[:shared]) if self._last else []
        node = nodes[-1] if nodes else _digest(b"", f"{prompt.provider}\0{prompt.model}".encode())
        depth = LEVELS.index(prompt.blocks[shared - 1].level) + 1 if shared else 0
        for block in prompt.blocks[shared:]:
            # A setting counts from its level on: it goes into the hash once, before the first block of that level,
            # also where the levels before have no block.
            while depth <= LEVELS.index(block.level):
                node = _digest(node, prompt.settings.get(LEVELS[depth], "").encode())
                depth += 1
            parents.append(node)
            node = _digest(node, block.key)
            nodes.append(node)
        ends = tuple(accumulate(b.tokens for b in prompt.blocks))
        self._last = PrefixChain(prompt, tuple(parents), tuple(nodes), ends)
        return self._last

    def _shared(self, prompt: RequestBlocks) -> int:
        before = self._last.prompt if self._last else None
        if before is None or (before.provider, before.model) != (prompt.provider, prompt.model):
            return 0
        if dict(before.settings) != dict(prompt.settings):
            return 0
        pairs = zip(before.blocks, prompt.blocks, strict=False)
        alike = (n for n, (old, new) in enumerate(pairs) if old.key != new.key)
        return next(alike, min(len(before.blocks), len(prompt.blocks)))


def _digest(node: bytes, step: bytes) -> bytes:
    return blake2b(node + step, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class CacheRead:
    """The cache hit of one request."""

    tokens: int = 0
    blocks: int = 0
    """Blocks that were read whole."""


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """An entry that a request leaves: everything up to `tokens`, for a lifetime."""

    tokens: int
    ttl: str


class PrefixCache(Protocol):
    """One provider's cache. Each request is read first and then written, in the order of the trace."""

    def read(self, chain: PrefixChain) -> CacheRead:
        """What this request finds, which also keeps it alive."""
        ...

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """Stores this request; returns the entries the provider charges for, shortest first."""
        ...


def empty_cache(rules: CacheRules) -> PrefixCache:
    """An empty cache that follows `rules`."""
    match rules.matching:
        case "lookback" | "exact":
            return MarkerCache(rules)
        case "grid":
            return GridCache(rules)
        case "units":
            return UnitCache(rules)


class MarkerCache:
    """Entries stand at the marks of a request, and are found within reach of the marks of a later one."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._entries = _Entries()

    def read(self, chain: PrefixChain) -> CacheRead:
        """The deepest live entry within reach."""
        for i in sorted(reach(chain.prompt, self._rules), reverse=True):  # the deepest entry covers all others
            if self._entries.live(chain.nodes[i], chain.prompt.at):
                self._entries.touch(chain.nodes[i], chain.prompt.at)
                return CacheRead(chain.ends[i], i + 1)
        return CacheRead()

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """One entry at each mark behind the minimum prefix."""
        written: list[CacheWrite] = []
        for i, ttl in marked(chain.prompt, self._rules).items():
            if chain.ends[i] >= self._rules.min_prefix:
                self._entries.keep(chain.nodes[i], chain.prompt.at, _lifetime(self._rules, ttl))
                written.append(CacheWrite(chain.ends[i], ttl))
        return tuple(written)


class GridCache:
    """The longest token prefix shared with any earlier request, cut down to whole cells of a grid."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._seconds = _lifetime(rules, rules.default_ttl)
        self._entries = _Entries()
        self._siblings: dict[tuple[bytes, str, str, str], list[tuple[str, bytes]]] = {}

    def read(self, chain: PrefixChain) -> CacheRead:
        """Whole blocks first, then the text that the first new block shares with one seen in its place."""
        whole = self._entries.live_prefix(chain)
        shared = chain.ends[whole - 1] if whole else 0
        if whole < len(chain.nodes):
            shared += self._shared_inside(chain, whole)
        shared -= shared % self._rules.grid  # the provider hashes whole cells only
        if shared < max(1, self._rules.min_prefix):
            return CacheRead()
        return CacheRead(shared, bisect_right(chain.ends, shared))

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """Every prefix is kept, free of charge."""
        for i, node in enumerate(chain.nodes):
            # Siblings: other texts seen behind the same prefix. They are kept sorted, so that the one that shares the
            # most with a new text is found by bisection and not by comparing with all.
            if not self._entries.live(node, chain.prompt.at):
                known = self._siblings.setdefault(_place(chain, i), [])
                item = (chain.prompt.blocks[i].content, node)
                at = bisect_left(known, item)
                if known[at : at + 1] != [item]:
                    known.insert(at, item)
            self._entries.keep(node, chain.prompt.at, self._seconds)
        return ()

    def _shared_inside(self, chain: PrefixChain, i: int) -> int:
        block = chain.prompt.blocks[i]
        known = self._siblings.get(_place(chain, i), [])
        # In sorted order the longest common prefix is always with a neighbour.
        split = bisect_left(known, (block.content, b""))
        sides = (range(split - 1, -1, -1), range(split, len(known)))
        neighbours = (
            next((known[k] for k in side if self._entries.live(known[k][1], chain.prompt.at)), None) for side in sides
        )
        longest = max((common_length(block.content, n[0]) for n in neighbours if n), default=0)
        return block.tokens * longest // max(1, len(block.content))


class UnitCache:
    """Whole units: where an earlier request or its answer ended, and prefixes that two requests shared."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._seconds = _lifetime(rules, rules.default_ttl)
        self._units = _Entries()
        self._seen = _Entries()
        self._unanswered: dict[bytes, dict[Level, str]] = {}

    def read(self, chain: PrefixChain) -> CacheRead:
        """The longest unit that this request begins with."""
        self._learn_answers(chain)
        for i in range(len(chain.nodes) - 1, -1, -1):
            if chain.ends[i] < self._rules.min_prefix:
                break
            if self._units.live(chain.nodes[i], chain.prompt.at):
                self._units.touch(chain.nodes[i], chain.prompt.at)
                return CacheRead(chain.ends[i], i + 1)
        return CacheRead()

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """The whole request becomes a unit, and so does what it shares with an earlier one."""
        shared = self._seen.live_prefix(chain)
        if shared:
            self._units.keep(chain.nodes[shared - 1], chain.prompt.at, self._seconds)
        for node in chain.nodes:
            self._seen.keep(node, chain.prompt.at, self._seconds)
        if chain.nodes:
            self._units.keep(chain.nodes[-1], chain.prompt.at, self._seconds)
            self._unanswered[chain.nodes[-1]] = dict(chain.prompt.settings)
        return ()

    def _learn_answers(self, chain: PrefixChain) -> None:
        # The answer to a request is only seen when a later request repeats it; its unit is as old as the request.
        for i, node in enumerate(chain.nodes):
            if self._unanswered.get(node) != dict(chain.prompt.settings) or not self._units.live(node, chain.prompt.at):
                continue
            end = i
            while end + 1 < len(chain.nodes) and chain.prompt.blocks[end + 1].role == "assistant":
                end += 1
            if end > i:
                del self._unanswered[node]
                self._units.copy(node, chain.nodes[end])


def marked(prompt: RequestBlocks, rules: CacheRules) -> dict[int, str]:
    """The marks of a request that write an entry: the lifetime of each, by position, earliest first."""
    marks = {i: prompt.blocks[i].marker or "" for i in prompt.markers}
    own = own_breakpoint(prompt, rules)
    if own is not None:
        marks.setdefault(own, prompt.automatic or "")
    if rules.matching == "exact":
        room = rules.max_markers - (own is not None)
        latest = sorted(i for i in marks if i != own)[-room:] if room > 0 else []
        marks = {i: ttl for i, ttl in marks.items() if i == own or i in latest}
    if len(marks) > rules.max_markers:
        raise UsageError(
            f"the request has {len(marks)} cache markers ({', '.join(prompt.blocks[i].path for i in sorted(marks))}); "
            f"the provider takes {rules.max_markers}; remove the earliest: a later marker covers everything before it"
        )
    return dict(sorted(marks.items()))


def reach(prompt: RequestBlocks, rules: CacheRules) -> set[int]:
    """The positions of a request at which an entry of an earlier one would be found."""
    if rules.matching == "exact":
        ends = message_ends(prompt.blocks)[-EARLIER_ENDS - 1 :] if prompt.automatic else ()
        return {*prompt.markers[-rules.lookups :], *ends}
    kinds = ["call" if b.kind in CALLS else "result" if b.kind in RESULTS else "" for b in prompt.blocks]
    at = positions(kinds, collapse_runs=rules.collapse_runs)
    within: set[int] = set()
    for mark in marked(prompt, rules):
        first = bisect_right(at, at[mark] - rules.lookback)
        within.update(range(first, mark + 1))
    return within


def own_breakpoint(prompt: RequestBlocks, rules: CacheRules) -> int | None:
    """The position of the breakpoint that the provider places itself, if it does."""
    if not prompt.automatic or rules.matching not in {"lookback", "exact"}:
        return None
    if rules.matching == "exact":
        return next(reversed(message_ends(prompt.blocks)), None)
    cacheable = (i for i in range(len(prompt.blocks) - 1, -1, -1) if markable(prompt.blocks[i], rules))
    return next(cacheable, None)


def markable(block: Block, rules: CacheRules) -> bool:
    """Whether a cache marker may stand on this block."""
    if rules.matching == "exact":
        return block.level != "tools" and block.role != "assistant"
    return rules.max_markers > 0 and block.kind not in THINKING and bool(block.content)


def message_ends(blocks: Sequence[Block]) -> list[int]:
    """Ends of user messages, of runs of tool results, and of the system text at the start, in order."""
    ends: list[int] = []
    opening = True
    for i, block in enumerate(blocks):
        following = blocks[i + 1] if i + 1 < len(blocks) else None
        starts_with_system = opening and _is_system(block)
        opening = opening and (block.level == "tools" or starts_with_system)
        if block.kind in RESULTS:
            ended = following is None or following.kind not in RESULTS
        elif starts_with_system:
            ended = following is None or not _is_system(following)
        else:
            ended = block.role == "user" and (following is None or not _same_message(block, following))
        if ended:
            ends.append(i)
    return ends


def common_length(one: str, other: str) -> int:
    """How many leading characters two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _Entries:
    """Nodes with a lifetime. Without times, in a request or in the rules, an entry never expires."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float | None, float | None]] = {}

    def live(self, node: bytes, at: float | None) -> bool:
        if node not in self._kept:
            return False
        expires = self._kept[node][0]
        return at is None or expires is None or at < expires

    def live_prefix(self, chain: PrefixChain) -> int:
        """How many leading nodes of a chain are alive."""
        return next((i for i, node in enumerate(chain.nodes) if not self.live(node, chain.prompt.at)), len(chain.nodes))

    def keep(self, node: bytes, at: float | None, seconds: float | None) -> None:
        expires = None if at is None or seconds is None else at + seconds
        if self.live(node, at):  # a short write must not shorten the life of a longer one
            before, lasting = self._kept[node]
            if before is None or (expires is not None and before > expires):
                expires, seconds = before, lasting
        self._kept[node] = (expires, seconds)

    def touch(self, node: bytes, at: float | None) -> None:
        self.keep(node, at, self._kept[node][1])

    def copy(self, node: bytes, other: bytes) -> None:
        self._kept[other] = self._kept[node]


def _lifetime(rules: CacheRules, ttl: str | None) -> float | None:
    return rules.ttls.get(ttl) if ttl else None


def _place(chain: PrefixChain, i: int) -> tuple[bytes, str, str, str]:
    block = chain.prompt.blocks[i]
    return (chain.parents[i], block.level, block.role, block.kind)


def _is_system(block: Block) -> bool:
    return block.level == "system" or block.role in {"system", "developer"}


def _same_message(block: Block, following: Block) -> bool:
    return (
        following.role == block.role and following.kind not in RESULTS and _message_of(following) == _message_of(block)
    )


def _message_of(block: Block) -> str:
    found = re.match(r"\w+[.\[]\d+", block.path)
    return found.group() if found else ""


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


def replay(trace: Sequence[RequestBlocks], rules: CacheRules) -> Simulation:
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


def _check_lifetimes(number: int, prompt: RequestBlocks, rules: CacheRules) -> None:
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


def cached_blocks(prompt: RequestBlocks, rules: CacheRules) -> int:
    """How many leading blocks a request leaves in the cache."""
    marked = max(prompt.markers, default=-1) + 1
    if rules.matching in ("grid", "units"):  # the rest is cached too, but no request will read it
        return next((i for i, block in enumerate(prompt.blocks) if block.volatile), len(prompt.blocks))
    end = len(prompt.blocks) if prompt.automatic else marked
    return end if sum(block.tokens for block in prompt.blocks[:end]) >= rules.min_prefix else 0


def first_difference(cached: Sequence[Block], after: Sequence[Block]) -> int | None:
    """The first of these blocks that is not at its place any more; None if all of them are."""
    for at, block in enumerate(cached):
        if at >= len(after) or after[at].key != block.key:
            return at
    return None


def has_moved(before: RequestBlocks, after: RequestBlocks, rules: CacheRules) -> bool:
    """Whether anything changed that a request left in the cache, or was to leave there; compare() says what."""
    if (before.model, dict(before.settings)) != (after.model, dict(after.settings)):
        return True
    cached = before.blocks[: cached_blocks(before, rules)] or [b for b in before.blocks if not b.volatile]
    return first_difference(cached, after.blocks) is not None


# The requests that cache analysis takes: a window, a recorded request body, or a prompt already read.

AnyRequest: TypeAlias = Window | RequestBlocks | Mapping[str, Any]


class Analysis:
    """Reads requests as the cache of one target sees them; a recorded request names its own model."""

    def __init__(
        self,
        subject: AnyRequest,
        provider: str | None,
        model: str | None,
        *,
        counter: TokenCounter | None = None,
        **options: Any,
    ) -> None:
        """Find the target of a request; `options` are those of prepare(), for windows."""
        if isinstance(subject, RequestBlocks):
            provider, model = provider or subject.provider, model or subject.model
        elif isinstance(subject, Mapping):
            model = model or model_of(subject)
        elif not isinstance(subject, Window):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"give a window or a request, not {type(subject).__name__}; compile() makes a window")
        if model is None:
            raise UsageError(
                "a window is planned for a model; name both, as in plan(window, 'anthropic', 'claude-sonnet-5')"
            )
        self.target = target_for(provider, model)
        self.counter = counter or counter_for(self.target.info)
        self._options = options

    def prompt(self, subject: AnyRequest) -> tuple[RequestBlocks, Request | None]:
        """A subject as its cache sees it; for a window also the request made of it."""
        target = self.target
        if isinstance(subject, RequestBlocks):
            return subject, None
        if isinstance(subject, Window):
            request = prepare(subject, target.provider, target.model, **self._options)
            return request.prompt(self.counter), request
        named = None if model_of(subject) else target.model
        return read_request(subject, provider=target.provider, model=named, counter=self.counter), None


# Simulate: a trace of windows or recorded requests, replayed through the cache of a provider.


def simulate(
    trace: Sequence[AnyRequest],
    provider: str | None = None,
    model: str | None = None,
    *,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    counter: TokenCounter | None = None,
) -> Simulation:
    """What the cache of a provider would have read and written for these requests, and what they cost.

    Requests are windows, recorded request bodies or prompts, oldest first. Recorded ones name their own model.
    """
    if isinstance(trace, Window | RequestBlocks | Mapping):
        raise UsageError("a trace is a list of requests; put this one into a list")
    if not trace:
        raise UsageError("the trace is empty; give at least one request")
    analysis = Analysis(
        trace[0], provider, model, counter=counter, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl
    )
    prompts = [analysis.prompt(subject)[0] for subject in trace]
    return replay(prompts, analysis.target.info.cache)
