"""Replay: requests in order through a provider's prompt cache, and what that gives: steps, sums and findings."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, takewhile
from math import inf
from typing import Any, Literal, Protocol, TypeAlias

from loom.catalog import CacheRules
from loom.context.render.request import Request, WireRequest, prepare, target_for
from loom.core.window import Block, Level, PrefixChain, RequestBlocks, Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import counter_for
from loom.traces.request import model_of, read_request

# The four ways in which providers find an earlier prefix in their prompt cache.

CALLS = frozenset({"tool_use", "function_call"})
RESULTS = frozenset({"tool_result", "function_call_output"})
THINKING = frozenset({"thinking", "redacted_thinking", "reasoning"})
AnyPrompt: TypeAlias = RequestBlocks | PrefixChain
EARLIER_ENDS = 20
"""Message ends, besides the newest, that a provider with implicit breakpoints looks up."""


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
        for i in sorted(reach(chain, self._rules), reverse=True):  # the deepest entry covers all others
            if self._entries.live(chain.nodes[i], chain.at):
                self._entries.touch(chain.nodes[i], chain.at)
                return CacheRead(chain.ends[i], i + 1)
        return CacheRead()

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """One entry at each mark behind the minimum prefix."""
        written: list[CacheWrite] = []
        for i, ttl in marked(chain, self._rules).items():
            if chain.ends[i] >= self._rules.min_prefix:
                self._entries.keep(chain.nodes[i], chain.at, _lifetime(self._rules, ttl))
                written.append(CacheWrite(chain.ends[i], ttl))
        return tuple(written)

    def copy(self, at: float | None = None) -> MarkerCache:
        """A cache in the same state that goes its own way, without what has expired by then."""
        made = MarkerCache(self._rules)
        made._entries = self._entries.living(at)
        return made

    def is_live(self, node: bytes, at: float | None) -> bool:
        """Whether an entry would be found."""
        return self._entries.live(node, at)

    def expires(self, node: bytes) -> float:
        """When an entry ends, if nothing reads it: never is infinity, and one that is not there ended long ago."""
        return self._entries.expires(node)


class GridCache:
    """The longest token prefix shared with any earlier request, cut down to whole cells of a grid."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._seen = _Chains(_lifetime(rules, rules.default_ttl))

    def read(self, chain: PrefixChain) -> CacheRead:
        """Whole blocks first, then the text that the first new block shares with one seen in its place."""
        whole = self._seen.longest_prefix(chain)
        shared = chain.tokens_of(whole)
        if whole < len(chain.nodes):
            shared += self._shared_inside(chain, whole)
        shared -= shared % self._rules.grid  # the provider hashes whole cells only
        if shared < max(1, self._rules.min_prefix):
            return CacheRead()
        return CacheRead(shared, bisect_right(chain.ends, shared))

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """Every prefix is kept, free of charge."""
        self._seen.keep(chain)
        return ()

    def _shared_inside(self, chain: PrefixChain, i: int) -> int:
        block, place = chain.blocks[i], _place(chain, i)
        longest = 0
        for other in self._seen.live(chain.at):
            behind = len(other.nodes) > i and (not i or other.nodes[i - 1] == chain.nodes[i - 1])
            if behind and _place(other, i) == place:
                text = other.blocks[i].content
                if text[: longest + 1] == block.content[: longest + 1]:
                    longest = common_length(block.content, text)
        tokens = chain.ends[i] - chain.tokens_of(i)
        return tokens * longest // max(1, len(block.content))


class UnitCache:
    """Whole units: where an earlier request or its answer ended, and prefixes that two requests shared."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._seconds = _lifetime(rules, rules.default_ttl)
        self._units = _Entries()
        self._last: dict[bytes, int] = {}
        """The position of the last block of each unit."""
        self._seen = _Chains(self._seconds)
        self._unanswered: dict[bytes, dict[Level, str]] = {}

    def read(self, chain: PrefixChain) -> CacheRead:
        """The longest unit that this request begins with."""
        self._learn_answers(chain)
        begun = [i for node, i in self._last.items() if chain.nodes[i : i + 1] == (node,)]
        for i in sorted(begun, reverse=True):
            if chain.ends[i] < self._rules.min_prefix:
                break
            if self._units.live(chain.nodes[i], chain.at):
                self._units.touch(chain.nodes[i], chain.at)
                return CacheRead(chain.ends[i], i + 1)
        return CacheRead()

    def write(self, chain: PrefixChain) -> tuple[CacheWrite, ...]:
        """The whole request becomes a unit, and so does what it shares with an earlier one."""
        shared = self._seen.longest_prefix(chain)
        self._seen.keep(chain)
        for size in (shared, len(chain.nodes)):
            if size:
                self._units.keep(chain.nodes[size - 1], chain.at, self._seconds)
                self._last[chain.nodes[size - 1]] = size - 1
        if chain.nodes:
            self._unanswered[chain.nodes[-1]] = dict(chain.settings)
        return ()

    def _learn_answers(self, chain: PrefixChain) -> None:
        # The answer to a request is only seen when a later request repeats it; its unit is as old as the request.
        waiting = sorted((self._last[node], node) for node in self._unanswered)
        for i, node in waiting:
            if chain.nodes[i : i + 1] != (node,):
                continue
            if self._unanswered[node] != dict(chain.settings) or not self._units.live(node, chain.at):
                continue
            end = i
            while end + 1 < len(chain.nodes) and chain.blocks[end + 1].role == "assistant":
                end += 1
            if end > i:
                del self._unanswered[node]
                self._units.copy(node, chain.nodes[end])
                self._last[chain.nodes[end]] = end


def marked(prompt: AnyPrompt, rules: CacheRules) -> dict[int, str]:
    """The marks of a request that write an entry: the lifetime of each, by position, earliest first."""
    marks = dict(prompt.marks)
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


def reach(prompt: AnyPrompt, rules: CacheRules) -> set[int]:
    """The positions of a request at which an entry of an earlier one would be found."""
    if rules.matching == "exact":
        ends = message_ends(prompt.blocks, EARLIER_ENDS + 1) if prompt.automatic else ()
        return {*list(prompt.marks)[-rules.lookups :], *ends}
    within: set[int] = set()
    for mark in marked(prompt, rules):
        within.update(_looked_back(prompt.blocks, mark, rules))
    return within


def _looked_back(blocks: Sequence[Block], mark: int, rules: CacheRules) -> Iterator[int]:
    """The positions that a lookback from a mark reaches; a run of calls or of results may count once."""
    passed = 0
    for i in range(mark, -1, -1):
        yield i
        same = rules.collapse_runs and i and _run_of(blocks[i]) and _run_of(blocks[i]) == _run_of(blocks[i - 1])
        passed += not same
        if passed >= rules.lookback:
            return


def _run_of(block: Block) -> str:
    return "call" if block.kind in CALLS else "result" if block.kind in RESULTS else ""


def own_breakpoint(prompt: AnyPrompt, rules: CacheRules) -> int | None:
    """The position of the breakpoint that the provider places itself, if it does."""
    if not prompt.automatic or rules.matching not in {"lookback", "exact"}:
        return None
    if rules.matching == "exact":
        return next(iter(message_ends(prompt.blocks, 1)), None)
    cacheable = (i for i in range(len(prompt.blocks) - 1, -1, -1) if markable(prompt.blocks[i], rules))
    return next(cacheable, None)


def markable(block: Block, rules: CacheRules) -> bool:
    """Whether a cache marker may stand on this block."""
    if rules.matching == "exact":
        return block.level != "tools" and block.role != "assistant"
    return rules.max_markers > 0 and block.kind not in THINKING and bool(block.content)


def message_ends(blocks: Sequence[Block], most: int | None = None) -> list[int]:
    """Ends of user messages, of runs of tool results, and of the system text at the start, in order; or the last."""
    opening = sum(1 for _ in takewhile(lambda block: block.level == "tools" or _is_system(block), blocks))
    ends: list[int] = []
    following: Block | None = None
    for i in range(len(blocks) - 1, -1, -1):
        block = blocks[i]
        if block.kind in RESULTS:
            ended = following is None or following.kind not in RESULTS
        elif i < opening and _is_system(block):
            ended = following is None or not _is_system(following)
        else:
            ended = block.role == "user" and (following is None or not _same_message(block, following))
        if ended:
            ends.append(i)
            if len(ends) == most:
                break
        following = block
    return ends[::-1]


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

    def living(self, at: float | None) -> _Entries:
        made = _Entries()
        made._kept = {node: kept for node, kept in self._kept.items() if self.live(node, at)}
        return made

    def expires(self, node: bytes) -> float:
        if node not in self._kept:
            return -inf
        found = self._kept[node][0]
        return inf if found is None else found


class _Chains:
    """Requests with a lifetime, all prefixes of each included. One that a later request repeats whole is let go."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._kept: list[tuple[PrefixChain, float | None]] = []

    def live(self, at: float | None) -> Iterator[PrefixChain]:
        """Those that have not expired, latest first."""
        for chain, expires in reversed(self._kept):
            if at is None or expires is None or at < expires:
                yield chain

    def longest_prefix(self, chain: PrefixChain) -> int:
        """How many leading blocks of a chain are those of a live one."""
        found = 0
        for other in self.live(chain.at):
            end = min(len(other.nodes), len(chain.nodes))
            if found < end and other.nodes[found] == chain.nodes[found]:
                found = bisect_left(range(end), True, found, key=lambda i, o=other: o.nodes[i] != chain.nodes[i])
        return found

    def keep(self, chain: PrefixChain) -> None:
        expires = None if chain.at is None or self._seconds is None else chain.at + self._seconds
        size = len(chain.nodes)
        self._kept = [
            (other, until)
            for other, until in self._kept
            if not (0 < len(other.nodes) <= size and other.nodes[-1] == chain.nodes[len(other.nodes) - 1])
            or (expires is not None and (until is None or until > expires))
        ]
        self._kept.append((chain, expires))


def _lifetime(rules: CacheRules, ttl: str | None) -> float | None:
    return rules.ttls.get(ttl) if ttl else None


def _place(chain: PrefixChain, i: int) -> tuple[bytes, str, str, str]:
    block = chain.blocks[i]
    return (chain.before(i), block.level, block.role, block.kind)


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


FindingCause: TypeAlias = Literal[
    "tools_reordered", "tools_changed", "settings_changed", "volatile_in_prefix", "reminder_removed",
    "history_rewritten", "automatic_marker_on_volatile", "tail_not_marked", "lookback_overflow", "past_marks_dropped",
    "ttl_expired", "below_minimum",
]  # fmt: skip

Fix: TypeAlias = Literal[
    "pin_tools", "pin_settings", "move_volatile", "batch_edits", "explicit_tail", "mark_tail", "mark_previous_tail",
    "remark_ends", "longer_ttl",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of missed reads in a trace."""

    cause: FindingCause
    where: str
    """The block that shows it first: its path, and its origin where that is known."""
    requests: int
    """How many requests it cost something."""
    message: str
    advice: str
    saving: float
    """Share of the cost of the whole trace that the fix saves once the findings before it are fixed. They add up."""
    fix: Fix | None
    """The repair that removes the cause; None where no change of the trace does."""
    lost: int = 0
    """Tokens that were paid and could have been read; first writes are not among them."""
    usd: float | None = None
    """The saving in US dollars; None where the price is not known."""

    def __str__(self) -> str:
        dollars = "" if self.usd is None else f", ${self.usd:.4f}"
        saves = f" (saves {self.saving:.1%}{dollars})" if self.saving > 0 else ""
        return f"{self.cause.replace('_', ' ')} at {self.where}{saves}: {self.message}; {self.advice}"


@dataclass(frozen=True)
class Simulation:
    """The cache use of a trace, by request and in sum."""

    steps: tuple[Step, ...]
    price: float | None = None
    """US dollars for a million tokens of input; None where it is not known."""
    _diagnose: Callable[[], tuple[Finding, ...]] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What keeps the trace from being read from the cache, in the order of doing; looked for when first asked."""
        return self._diagnose() if self._diagnose else ()

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
    def usd(self) -> float | None:
        """The same in US dollars, output not counted; None where the price is not known."""
        return None if self.price is None else self.cost * self.price / 1e6

    @property
    def fixed_cost(self) -> float:
        """What the prompts would cost with every finding fixed, in tokens at the plain input price."""
        return self.cost * (1.0 - sum(finding.saving for finding in self.findings))

    @property
    def read_share(self) -> float:
        """Share of all tokens that was read from the cache."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def relative_cost(self) -> float:
        """Cost as a share of what the same prompts cost without a cache."""
        return self.cost / self.tokens if self.tokens else 1.0


def replay(trace: Sequence[AnyPrompt], rules: CacheRules) -> Simulation:
    """Replays requests in order through the cache that `rules` describe.

    Raises:
        UsageError: the provider would refuse a request, for too many markers or an unknown lifetime.
    """
    cache = empty_cache(rules)
    chain: PrefixChain | None = None
    steps: list[Step] = []
    for number, prompt in enumerate(trace):
        chain = prompt if isinstance(prompt, PrefixChain) else PrefixChain.of(prompt, chain)
        steps.append(_next_step(cache, number, chain, rules))
    return Simulation(tuple(steps))


def last_step(trace: Sequence[PrefixChain], rules: CacheRules) -> Step:
    """The last step of replay(), where nobody asks for those before it; it raises as that does."""
    cache, last = empty_cache(rules), len(trace) - 1
    for number, chain in enumerate(trace[:last]):
        if rules.matching == "grid":  # a read leaves nothing there, and takes the longest
            cache.write(chain)
        else:
            _next_step(cache, number, chain, rules)
    return _next_step(cache, last, trace[last], rules)


def _next_step(cache: PrefixCache, number: int, chain: PrefixChain, rules: CacheRules) -> Step:
    _check_lifetimes(number, chain, rules)
    try:
        _check_order(chain, rules)
        found = cache.read(chain)
        written = cache.write(chain)
    except UsageError as error:
        raise UsageError(f"request {number + 1} would be refused: {error}") from error
    return step_of(chain.tokens, found, written, rules)


def step_of(tokens: int, found: CacheRead, written: tuple[CacheWrite, ...], rules: CacheRules) -> Step:
    """The cache use and the cost of a request of so many tokens."""
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


def _check_lifetimes(number: int, prompt: PrefixChain, rules: CacheRules) -> None:
    if not rules.ttls:
        return
    markers = [(prompt.blocks[i].path, ttl) for i, ttl in prompt.marks.items()]
    markers += [("the automatic breakpoint", prompt.automatic)] if prompt.automatic else []
    for place, ttl in markers:
        if ttl not in rules.ttls:
            raise UsageError(
                f"request {number + 1} would be refused: {place} asks for the lifetime {ttl!r}; "
                f"use one of {', '.join(rules.ttls)}"
            )


def _check_order(chain: PrefixChain, rules: CacheRules) -> None:
    """Refuse a marker behind one with a shorter lifetime, where the provider does."""
    if rules.matching != "lookback":
        return
    marks = marked(chain, rules)
    for before, after in pairwise(marks):
        if rules.ttls[marks[before]] < rules.ttls[marks[after]]:
            raise UsageError(
                f"{chain.blocks[after].path} asks for the lifetime {marks[after]!r} behind {marks[before]!r} at "
                f"{chain.blocks[before].path}; put the markers with the longer lifetime first"
            )


def cached_blocks(prompt: AnyPrompt, rules: CacheRules) -> int:
    """How many leading blocks a request leaves in the cache."""
    if rules.matching in ("grid", "units"):  # the rest is cached too, but no request will read it
        return prompt.stable
    own = own_breakpoint(prompt, rules)
    end = max([*prompt.marks, -1 if own is None else own]) + 1
    return end if prompt.tokens_of(end) >= rules.min_prefix else 0


def first_difference(cached: Sequence[Block], after: Sequence[Block]) -> int | None:
    """The first of these blocks that is not at its place any more; None if all of them are."""
    for at, block in enumerate(cached):
        if at >= len(after) or after[at].key != block.key:
            return at
    return None


def has_moved(before: AnyPrompt, after: AnyPrompt, rules: CacheRules) -> bool:
    """Whether anything changed that a request left in the cache, or was to leave there; compare() says what."""
    before = before if isinstance(before, PrefixChain) else PrefixChain.of(before)
    after = after if isinstance(after, PrefixChain) else PrefixChain.of(after)
    if (before.model, dict(before.settings)) != (after.model, dict(after.settings)):
        return True
    end = cached_blocks(before, rules) or before.stable
    return before.nodes[max(0, end - 1) : end] != after.nodes[max(0, end - 1) : end]


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
        # Counters that are made for one model count alike, so windows planned without one share their counts.
        self.counted_by = None if counter else (self.target.info.provider, self.target.info.model)
        self._options = options

    def prompt(self, subject: AnyRequest) -> RequestBlocks:
        """A subject as its cache sees it."""
        return self.wire(subject).chain.prompt if isinstance(subject, Window) else self._read(subject)

    def chain(self, subject: AnyRequest) -> PrefixChain:
        """The same with the hashes of its prefixes."""
        return self.wire(subject).chain if isinstance(subject, Window) else PrefixChain.of(self._read(subject))

    def request(self, window: Window) -> Request:
        """The request of a window."""
        return prepare(window, self.target.provider, self.target.model, **self._options)

    def wire(self, window: Window) -> WireRequest:
        """The request of a window, as it is sent and cached."""
        return self.request(window).wire(self.counter, self.counted_by)

    def _read(self, subject: RequestBlocks | Mapping[str, Any]) -> RequestBlocks:
        if isinstance(subject, RequestBlocks):
            return subject
        target = self.target
        named = None if model_of(subject) else target.model
        return read_request(subject, provider=target.provider, model=named, counter=self.counter)
