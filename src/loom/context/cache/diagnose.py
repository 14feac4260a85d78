"""The causes of missed cache reads in a trace, with what each costs and the fix that removes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from loom.catalog import CacheRules
from loom.context.cache.repair import FIXES, BlockHistory, Fix, block_history, repair
from loom.context.cache.simulate import Simulation, marked, own_breakpoint, reach, replay
from loom.core.window import Block, PrefixChain, RequestBlocks

FindingCause: TypeAlias = Literal[
    "tools_reordered", "tools_changed", "settings_changed", "volatile_in_prefix", "reminder_removed",
    "history_rewritten", "automatic_marker_on_volatile", "tail_not_marked", "lookback_overflow", "past_marks_dropped",
    "ttl_expired", "below_minimum",
]  # fmt: skip

NEGLIGIBLE = 0.005
"""A fix that saves a smaller share of the cost is not worth a finding."""
RARE = 8
"""A history that is edited at most once in so many requests is edited in batches already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of missed reads in a trace."""

    cause: FindingCause
    where: str
    """The block that shows it first: its path, and its origin where that is known."""
    requests: int
    """How many requests it touches."""
    message: str
    advice: str
    saving: float
    """Share of the cost of the whole trace that the fix saves, alone or once the other faults are fixed."""
    fix: Fix | None
    """The repair that removes the cause; None where no change of the trace does."""


def diagnose(trace: Sequence[RequestBlocks], rules: CacheRules) -> tuple[Finding, ...]:
    """What keeps a trace from being read from the cache, most costly cause first.

    Raises:
        UsageError: the provider would refuse a request of the trace.
    """
    seen = _Seen(tuple(trace), rules)
    cases = [case for find in _DETECTORS for case in find(seen)]
    savings = _savings(seen, {case.fix for case in cases if case.fix})
    findings = [replace(case, saving=savings[case.fix]) if case.fix else case for case in cases]
    worth = [f for f in findings if f.fix is None or f.saving >= NEGLIGIBLE]
    return tuple(sorted(worth, key=lambda f: -f.saving))


def _savings(seen: _Seen, wanted: set[Fix]) -> dict[Fix, float]:
    """What each fix saves. Faults can hide each other, so each is also measured with all others fixed."""
    fixes: list[Fix] = [fix for fix in FIXES if fix in wanted]
    cost = seen.simulation.cost

    def cost_with(chosen: Iterable[Fix]) -> float:
        repaired = seen.trace
        for fix in chosen:
            repaired = repair(repaired, fix, seen.rules)
        return replay(repaired, seen.rules).cost

    alone: dict[Fix, float] = {fix: cost - cost_with([fix]) for fix in fixes}
    if len(fixes) > 1:
        together = cost_with(fixes)
        for fix in fixes:
            last = cost_with(f for f in fixes if f != fix) - together
            alone[fix] = max(alone[fix], last)
    return {fix: saved / max(cost, 1.0) for fix, saved in alone.items()}


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
        return f"{len(numbers)} of {len(self.trace)} requests"

    def finding(
        self,
        cause: FindingCause,
        at: tuple[int, int] | Block | str,
        numbers: Collection[int],
        message: str,
        effect: str = ", so that {} were not read from the cache",
    ) -> Finding:
        """A finding at a block, or at request and position, that touches the requests of these numbers."""
        block = self.trace[at[0]].blocks[at[1]] if isinstance(at, tuple) else at
        where = block if isinstance(block, str) else block.where or block.kind
        steps = [self.simulation.steps[n] for n in numbers]
        paid = f"{sum(s.write + s.uncached for s in steps):,} of {sum(s.tokens for s in steps):,} tokens"
        advice, fix = _REMEDIES[cause]
        return Finding(
            cause=cause,
            where=where,
            requests=len(numbers),
            message=message + effect.format(paid),
            advice=advice,
            saving=0.0,
            fix=fix,
        )


def _tools(seen: _Seen) -> Iterator[Finding]:
    rows = [[b for b in p.blocks if b.level == "tools"] for p in seen.trace]
    changed = [n for n in range(1, len(rows)) if [b.key for b in rows[n]] != [b.key for b in rows[n - 1]]]
    if not changed:
        return
    old, new = rows[changed[0] - 1], rows[changed[0]]
    differing = next((b for a, b in zip(old, new, strict=False) if a.key != b.key), (new or old)[-1])
    reordered = all(_words(rows[n]) == _words(rows[n - 1]) for n in changed)
    how = "in another order" if reordered else "with other content"
    message = f"the tool list came {how} in {seen.share(changed)}, first in request {changed[0]}"
    effect = ", and as it stands before everything else {} were paid again"
    yield seen.finding("tools_reordered" if reordered else "tools_changed", differing, changed, message, effect)


def _words(tools: Iterable[Block]) -> list[str]:
    return sorted(word for tool in tools for word in re.findall(r"\w+", tool.content))


def _settings(seen: _Seen) -> Iterator[Finding]:
    values = [(p.model, dict(p.settings)) for p in seen.trace]
    changed = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
    if changed:
        first = changed[0]
        what = "the model" if values[first][0] != values[first - 1][0] else "a request parameter"
        message = f"{what} changed in {seen.share(changed)}, first in request {first}"
        yield seen.finding("settings_changed", f"request {first}", changed, message)


def _volatile_inside(seen: _Seen) -> Iterator[Finding]:
    history = seen.history
    inside = [(n, i) for n in range(len(seen.trace)) for i in history.inside(n)]
    lasting = [(n, i) for n, i in inside if history.slots[n][i] in history.changed]
    passing = [(n, i) for n, i in inside if history.slots[n][i] not in history.changed]
    changes = sum(len(history.changed[slot]) for slot in {history.slots[n][i] for n, i in lasting})
    cases: list[tuple[FindingCause, list[tuple[int, int]], str]] = [
        ("volatile_in_prefix", lasting, f"its content changed {changes:,} times"),
        ("reminder_removed", passing, "the next request left it out"),
    ]
    for cause, places, what in cases:
        if places:
            numbers = sorted({n for n, _ in places})
            message = f"in {seen.share(numbers)} a block stood before others that stay, and {what}"
            yield seen.finding(cause, places[0], numbers, message)


def _rewritten(seen: _Seen) -> Iterator[Finding]:
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
        yield seen.finding("history_rewritten", history.first[min(kept[touched[0]])], touched, message)


def _automatic(seen: _Seen) -> Iterator[Finding]:
    own = {n: own_breakpoint(p, seen.rules) for n, p in enumerate(seen.trace)}
    hit = {n: i for n, i in own.items() if i is not None and i in seen.history.volatile[n]}
    if hit:
        message = f"in {seen.share(hit)} the provider's own breakpoint fell on a last block that the next request does "
        yield seen.finding("automatic_marker_on_volatile", next(iter(hit.items())), hit, message + "not repeat")


def _tail(seen: _Seen) -> Iterator[Finding]:
    bare: dict[int, int] = {}
    for n, prompt in enumerate(seen.trace if seen.marks else ()):
        tail = seen.history.tail(n, prompt, seen.rules)
        if tail is not None and not prompt.automatic and not prompt.blocks[tail].marker:
            bare[n] = tail
    if bare:
        message = f"in {seen.share(bare)} no marker stood on the last block that stays"
        yield seen.finding("tail_not_marked", list(bare.items())[-1], bare, message)


def _out_of_reach(seen: _Seen) -> Iterator[Finding]:
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
    yield seen.finding(cause, next(iter(lost.items())), lost, message)


def _expired(seen: _Seen) -> Iterator[Finding]:
    warm = replay([replace(p, at=None) for p in seen.trace], seen.rules)
    pairs = zip(seen.simulation.steps, warm.steps, strict=True)
    cold = [n for n, (timed, untimed) in enumerate(pairs) if timed.read < untimed.read]
    if cold:
        pause = max((seen.trace[n].at or 0.0) - (seen.trace[n - 1].at or 0.0) for n in cold)
        message = f"{seen.share(cold)} came after the entry had expired, the longest pause being {pause:,.0f} seconds"
        yield seen.finding("ttl_expired", (cold[0], -1), cold, message)


def _short(seen: _Seen) -> Iterator[Finding]:
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
        yield seen.finding("below_minimum", (short[0], -1), short, message, effect)


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

_DETECTORS: tuple[Callable[[_Seen], Iterator[Finding]], ...] = (
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
