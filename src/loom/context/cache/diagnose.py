"""Simulate a trace, and find the causes of missed reads in it: what each costs, and the fix that removes it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from loom.catalog import CacheRules, ModelInfo
from loom.context.cache.repair import FIXES, BlockHistory, block_history, repair
from loom.context.cache.simulate import (
    Analysis,
    AnyRequest,
    Finding,
    FindingCause,
    Fix,
    Simulation,
    marked,
    own_breakpoint,
    reach,
    replay,
)
from loom.core.window import Block, PrefixChain, RequestBlocks, Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter

NEGLIGIBLE = 0.005
"""A fix that saves a smaller share of the cost is not worth a finding."""
RARE = 8
"""A history that is edited at most once in so many requests is edited in batches already."""


HIT = 0.01
"""A request that would read a smaller share more is not counted: the fix only changed how its tokens are counted."""


def simulate(
    trace: Iterable[AnyRequest] | str | os.PathLike[str],
    provider: str | None = None,
    model: str | None = None,
    *,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    counter: TokenCounter | None = None,
) -> Simulation:
    """What the cache of a provider would have read and written for these requests, and what they cost.

    Requests are windows, recorded request bodies or prompts, oldest first; or the path of a file that holds recorded
    ones, such as `trace.jsonl`. Recorded ones name their own model. The result knows its `findings`: the causes of
    missed reads, each with the fix and what it saves.

    Raises:
        BadRequestFile: the file or a record in it cannot be read; the message names file and line.
    """
    if isinstance(trace, str | os.PathLike):
        trace = _recorded(trace, provider, model)
    if isinstance(trace, Window | RequestBlocks | Mapping):
        raise UsageError("a trace is a list of requests; put this one into a list")
    if not isinstance(trace, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{trace!r:.60} is not a trace; give a list of requests, or the path of a file of them")
    requests = tuple(trace)
    if not requests:
        raise UsageError("the trace is empty; give at least one request")
    analysis = Analysis(
        requests[0], provider, model, counter=counter, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl
    )
    return simulate_prompts([analysis.prompt(subject) for subject in requests], analysis.target.info)


def _recorded(path: str | os.PathLike[str], provider: str | None, model: str | None) -> Sequence[RequestBlocks]:
    from loom.traces.sources import read_traces  # noqa: PLC0415  (the readers of all formats, only where there is a file)

    found, _ = read_traces([path], provider=provider, model=model)
    if len(found) > 1:
        names = ", ".join(trace.name for trace in found[:3])
        raise UsageError(f"{os.fspath(path)} holds {len(found)} traces ({names}, ...); simulate one file at a time")
    return found[0].prompts


def simulate_prompts(prompts: Sequence[RequestBlocks], model: ModelInfo) -> Simulation:
    """The same for requests that were read already."""
    done = replay(prompts, model.cache)
    return Simulation(done.steps, model.input_price, partial(diagnose, prompts, model.cache, price=model.input_price))


def diagnose(trace: Sequence[RequestBlocks], rules: CacheRules, *, price: float | None = None) -> tuple[Finding, ...]:
    """What keeps a trace from being read from the cache, in the order of doing: what saves most comes first.

    Each saving is measured with the findings before it fixed, so all of them add up. `price` is that of a million
    tokens of input.

    Raises:
        UsageError: the provider would refuse a request of the trace.
    """
    seen = _Seen(tuple(trace), rules)
    cases = [case for find in _DETECTORS for case in find(seen)]
    repairs = _Repairs(seen)
    wanted: set[Fix] = {fix for case in cases if (fix := _REMEDIES[case.cause][1])}
    order = repairs.in_order(sorted(wanted, key=FIXES.index))
    findings: list[Finding] = []
    for n, fix in enumerate(order):
        own = [case for case in cases if _REMEDIES[case.cause][1] == fix]
        gain = repairs.gain(order[:n], order[: n + 1])
        # One fix may remove two causes: its saving is shown with the first of them, and the other refers to it.
        findings += [_finding(seen, case, gain, price) for case in own[:1]]
        findings += [_finding(seen, case, _Gain(), price) for case in own[1:]]
    return (*findings, *(_finding(seen, case, _Gain(), price) for case in cases if _REMEDIES[case.cause][1] is None))


@dataclass(frozen=True, slots=True)
class _Gain:
    """What a fix brings: cost saved, tokens read that were not, and how many requests read more."""

    cost: float = 0.0
    tokens: int = 0
    requests: int = 0


class _Repairs:
    """The trace with any set of fixes, each replayed once."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen
        self._done: dict[frozenset[Fix], Simulation] = {frozenset(): seen.simulation}

    def with_fixes(self, chosen: Collection[Fix]) -> Simulation:
        key = frozenset(chosen)
        if key not in self._done:
            repaired = self._seen.trace
            for fix in sorted(key, key=FIXES.index):
                repaired = repair(repaired, fix, self._seen.rules)
            self._done[key] = replay(repaired, self._seen.rules)
        return self._done[key]

    def gain(self, before: Collection[Fix], after: Collection[Fix]) -> _Gain:
        old, new = self.with_fixes(before), self.with_fixes(after)
        pairs = zip(old.steps, new.steps, strict=True)
        more = [now.read - was.read for was, now in pairs if now.read - was.read > HIT * was.tokens]
        return _Gain(old.cost - new.cost, sum(more), len(more))

    def in_order(self, fixes: Sequence[Fix]) -> list[Fix]:
        """The fixes that are worth it, the one that saves most first. Faults can hide each other.

        A fix that saves nothing alone stays if leaving it out of all of them costs something.
        """
        least = NEGLIGIBLE * max(self._seen.simulation.cost, 1.0)
        left: list[Fix] = list(fixes)
        order: list[Fix] = []
        while left:
            best = min(left, key=lambda fix: self.with_fixes([*order, fix]).cost)
            left.remove(best)
            order.append(best)
        for n in range(len(order) - 1, -1, -1):
            others: list[Fix] = [*order[:n], *order[n + 1 :]]
            if self.gain(others, order).cost < least:
                return self.in_order(sorted(others, key=FIXES.index))
        if order and self.gain((), order).cost < least:  # each repairs what another breaks, and none is worth it
            return self.in_order(sorted(order[:-1], key=FIXES.index))
        return order


@dataclass(frozen=True, slots=True)
class _Case:
    """A cause that a detector saw, before it is known what it costs."""

    cause: FindingCause
    where: str
    requests: int
    message: str
    effect: str


def _finding(seen: _Seen, case: _Case, gain: _Gain, price: float | None) -> Finding:
    advice, fix = _REMEDIES[case.cause]
    usd = None if price is None else gain.cost * price / 1e6
    more = f", which cost ${usd:.4f} more" if usd is not None else ""
    effect = f", so that {gain.tokens:,} tokens were paid again in {gain.requests:,} of {len(seen.trace):,} requests"
    effect = effect + more if gain.tokens else case.effect
    return Finding(
        cause=case.cause,
        where=case.where,
        requests=gain.requests if gain.tokens else case.requests,
        message=case.message + effect,
        advice=advice,
        saving=gain.cost / max(seen.simulation.cost, 1.0),
        fix=fix,
        lost=gain.tokens,
        usd=usd,
    )


@dataclass(frozen=True)
class _Seen:
    """A trace, and what all detectors need to know of it."""

    trace: tuple[RequestBlocks, ...]
    rules: CacheRules

    @cached_property
    def history(self) -> BlockHistory:
        return block_history(self.trace)

    @cached_property
    def simulation(self) -> Simulation:
        return replay(self.trace, self.rules)

    @cached_property
    def chains(self) -> tuple[PrefixChain, ...]:
        chains: list[PrefixChain] = []
        for prompt in self.trace:
            chains.append(PrefixChain.of(prompt, chains[-1] if chains else None))
        return tuple(chains)

    @property
    def marks(self) -> bool:
        """Whether the provider takes cache markers at all."""
        return self.rules.matching in {"lookback", "exact"}

    def share(self, numbers: Collection[int]) -> str:
        """How many requests, in words."""
        return f"{len(numbers):,} of {len(self.trace):,} requests"

    def case(
        self,
        cause: FindingCause,
        at: tuple[int, int] | Block | str,
        numbers: Collection[int],
        message: str,
        effect: str = "",
    ) -> _Case:
        """A case at a block, or at request and position, that touches the requests of these numbers."""
        block = self.trace[at[0]].blocks[at[1]] if isinstance(at, tuple) else at
        where = block if isinstance(block, str) else block.where or block.kind
        return _Case(cause, where, len(numbers), message, effect)


def _tools(seen: _Seen) -> Iterator[_Case]:
    rows = [[b for b in p.blocks if b.level == "tools"] for p in seen.trace]
    changed = [n for n in range(1, len(rows)) if [b.key for b in rows[n]] != [b.key for b in rows[n - 1]]]
    if not changed:
        return
    old, new = rows[changed[0] - 1], rows[changed[0]]
    differing = next((b for a, b in zip(old, new, strict=False) if a.key != b.key), (new or old)[-1])
    reordered = all(_words(rows[n]) == _words(rows[n - 1]) for n in changed)
    how = "in another order" if reordered else "with other content"
    message = f"the tool list came {how} in {seen.share(changed)}, first in request {changed[0] + 1}"
    message += ", and it stands before everything else"
    yield seen.case("tools_reordered" if reordered else "tools_changed", differing, changed, message)


def _words(tools: Iterable[Block]) -> list[str]:
    return sorted(word for tool in tools for word in re.findall(r"\w+", tool.content))


def _settings(seen: _Seen) -> Iterator[_Case]:
    values = [(p.model, dict(p.settings)) for p in seen.trace]
    changed = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
    if changed:
        first = changed[0]
        what = "the model" if values[first][0] != values[first - 1][0] else "a request parameter"
        message = f"{what} changed in {seen.share(changed)}, first in request {first + 1}"
        yield seen.case("settings_changed", f"request {first + 1}", changed, message)


def _volatile_inside(seen: _Seen) -> Iterator[_Case]:
    history = seen.history
    inside = [(n, i) for n in range(len(seen.trace)) for i in history.inside(n)]
    lasting = [(n, i) for n, i in inside if history.slots[n][i] in history.changed]
    passing = [(n, i) for n, i in inside if history.slots[n][i] not in history.changed]
    if lasting:
        numbers = sorted({n for slot in {history.slots[n][i] for n, i in lasting} for n in history.changed[slot]})
        message = f"a block that stands before others that stay came with other content in {seen.share(numbers)}"
        yield seen.case("volatile_in_prefix", lasting[0], numbers, message)
    if passing:
        numbers = sorted({n + 1 for n, _ in passing if n + 1 < len(seen.trace)})
        message = f"a block that stood before others that stay was left out again in {seen.share(numbers)}"
        yield seen.case("reminder_removed", passing[0], numbers, message)


def _rewritten(seen: _Seen) -> Iterator[_Case]:
    history = seen.history
    volatile = {history.slots[n][i] for n in range(len(seen.trace)) for i in history.volatile[n]}
    edits: dict[int, set[int]] = {number: set(gone) for number, gone in enumerate(history.vanished)}
    for slot, numbers in history.changed.items():
        for number in numbers:
            edits[number].add(slot)
    kept = {n: {s for s in e if s not in volatile and history.first[s].level == "messages"} for n, e in edits.items()}
    touched = sorted(n for n, slots in kept.items() if slots)
    if touched and len(touched) * RARE > len(seen.trace) - 1:
        edited = sum(len(kept[n]) for n in touched)
        message = f"{seen.share(touched)} edited {edited:,} blocks that were already sent"
        yield seen.case("history_rewritten", history.first[min(kept[touched[0]])], touched, message)


def _automatic(seen: _Seen) -> Iterator[_Case]:
    own = {n: own_breakpoint(p, seen.rules) for n, p in enumerate(seen.trace)}
    hit = {n: i for n, i in own.items() if i is not None and i in seen.history.volatile[n]}
    if hit:
        message = f"in {seen.share(hit)} the provider's own breakpoint fell on a last block that the next request does "
        yield seen.case("automatic_marker_on_volatile", next(iter(hit.items())), hit, message + "not repeat")


def _tail(seen: _Seen) -> Iterator[_Case]:
    bare: dict[int, int] = {}
    for n, prompt in enumerate(seen.trace if seen.marks else ()):
        tail = seen.history.tail(n, prompt, seen.rules)
        if tail is not None and not prompt.automatic and not prompt.blocks[tail].marker:
            bare[n] = tail
    if bare:
        message = f"in {seen.share(bare)} no marker stood on the last block that stays"
        yield seen.case("tail_not_marked", list(bare.items())[-1], bare, message)


def _out_of_reach(seen: _Seen) -> Iterator[_Case]:
    lost: dict[int, int] = {}
    for n in range(1, len(seen.trace) if seen.marks else 0):
        before, now = seen.chains[n - 1], seen.chains[n]
        last = max(marked(before, seen.rules), default=None)
        repeated = last is not None and last < len(now.nodes) and now.nodes[last] == before.nodes[last]
        if last is not None and repeated and last not in reach(now, seen.rules):
            lost[n] = last
    if not lost:
        return
    exact = seen.rules.matching == "exact"
    reason = f"it lay more than {seen.rules.lookback} positions behind every marker"
    if exact:
        reason = "only marks of the new request are looked up, and it was not marked again"
    message = f"in {seen.share(lost)} the entry of the request before was not found, because {reason}"
    cause = "past_marks_dropped" if exact else "lookback_overflow"
    yield seen.case(cause, next(iter(lost.items())), lost, message)


def _expired(seen: _Seen) -> Iterator[_Case]:
    warm = replay([replace(p, at=None) for p in seen.trace], seen.rules)
    pairs = zip(seen.simulation.steps, warm.steps, strict=True)
    cold = [n for n, (timed, untimed) in enumerate(pairs) if timed.read < untimed.read]
    if cold:
        pause = max((seen.trace[n].at or 0.0) - (seen.trace[n - 1].at or 0.0) for n in cold)
        message = f"{seen.share(cold)} came after the entry had expired, the longest pause being {pause:,.0f} seconds"
        yield seen.case("ttl_expired", (cold[0], -1), cold, message)


def _short(seen: _Seen) -> Iterator[_Case]:
    lengths: dict[int, int] = {}
    for n, chain in enumerate(seen.chains):
        marks = marked(chain, seen.rules) if seen.marks else [len(chain.nodes) - 1]
        if marks and chain.nodes:
            lengths[n] = chain.ends[max(marks)]
    short = [n for n, length in lengths.items() if length < seen.rules.min_prefix]
    if len(short) * 2 > len(seen.trace):  # a conversation may start short
        longest = max(lengths[n] for n in short)
        message = f"the prefix of {seen.share(short)} was too short to be cached: the longest had {longest:,} tokens"
        effect = f", and the model caches none under {seen.rules.min_prefix:,}"
        yield seen.case("below_minimum", (short[0], -1), short, message, effect)


_REMEDIES: dict[FindingCause, tuple[str, Fix | None]] = {
    "tools_reordered": ("send tools in one fixed order", "pin_tools"),
    "tools_changed": (
        "keep the text of each tool fixed, and add new ones at the end or inside the conversation",
        "pin_tools",
    ),
    "settings_changed": (
        "keep the model, the tool choice, thinking and effort the same for a whole conversation",
        "pin_settings",
    ),
    "volatile_in_prefix": (
        "keep the block as it was first sent, and say what changed behind the last block that stays",
        "move_volatile",
    ),
    "reminder_removed": (
        "put what is meant for one request behind the last block that stays, or leave it in the history",
        "move_volatile",
    ),
    "history_rewritten": (
        "collect edits of the history and make them together, every ten or twenty requests",
        "batch_edits",
    ),
    "automatic_marker_on_volatile": (
        "switch the automatic breakpoint off and mark the last block that stays",
        "explicit_tail",
    ),
    "tail_not_marked": (
        "mark the last block that the next request repeats, besides the end of the fixed sections",
        "mark_tail",
    ),
    "lookback_overflow": ("mark the last block of the request before as well", "mark_previous_tail"),
    "past_marks_dropped": ("mark the ends of earlier requests again", "remark_ends"),
    "ttl_expired": ("ask for the longest lifetime, or send a small request before the entry expires", "longer_ttl"),
    "below_minimum": ("leave caching off for prompts of this size, or choose a model with a smaller minimum", None),
}

_DETECTORS: tuple[Callable[[_Seen], Iterator[_Case]], ...] = (
    _tools,
    _settings,
    _volatile_inside,
    _rewritten,
    _automatic,
    _tail,
    _out_of_reach,
    _expired,
    _short,
)
