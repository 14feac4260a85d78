"""The causes of missed cache reads in a trace, with what each costs and the fix that removes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from loom.catalog.model import CacheRules
from loom.context.cache.lives import BlockHistory, block_history
from loom.context.cache.matching import PrefixChain, Prefixes, marked, own_breakpoint, reach
from loom.context.cache.prompt import Block, Prompt
from loom.context.cache.repair import FIXES, Fix, repair
from loom.context.cache.simulate import Simulation, simulate

FindingCause: TypeAlias = Literal[
    "tools_reordered",
    "tools_changed",
    "settings_changed",
    "volatile_in_prefix",
    "reminder_removed",
    "history_rewritten",
    "automatic_marker_on_volatile",
    "tail_not_marked",
    "lookback_overflow",
    "past_marks_dropped",
    "ttl_expired",
    "below_minimum",
]

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


def diagnose(trace: Sequence[Prompt], rules: CacheRules) -> tuple[Finding, ...]:
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
        return simulate(repaired, seen.rules).cost

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

    trace: tuple[Prompt, ...]
    rules: CacheRules

    @cached_property
    def history(self) -> BlockHistory:
        return block_history(self.trace)

    @cached_property
    def simulation(self) -> Simulation:
        return simulate(self.trace, self.rules)

    @cached_property
    def chains(self) -> tuple[PrefixChain, ...]:
        prefixes = Prefixes()
        return tuple(prefixes.lay(prompt) for prompt in self.trace)

    @property
    def marks(self) -> bool:
        """Whether the provider takes cache markers at all."""
        return self.rules.matching in {"lookback", "exact"}

    def paid(self, numbers: Iterable[int]) -> str:
        """Tokens that these requests did not read from the cache, in words."""
        steps = [self.simulation.steps[n] for n in numbers]
        return f"{sum(s.write + s.uncached for s in steps):,} of {sum(s.tokens for s in steps):,} tokens"

    def share(self, numbers: Sequence[int]) -> str:
        """How many requests, in words."""
        return f"{len(numbers)} of {len(self.trace)} requests"


def _finding(cause: FindingCause, at: Block | str, numbers: Sequence[int], message: str) -> tuple[Finding, ...]:
    where = at if isinstance(at, str) else at.where or at.kind
    advice, fix = _REMEDIES[cause]
    return (
        Finding(cause=cause, where=where, requests=len(numbers), message=message, advice=advice, saving=0.0, fix=fix),
    )


def _tools(seen: _Seen) -> tuple[Finding, ...]:
    rows = [[b for b in p.blocks if b.level == "tools"] for p in seen.trace]
    changed = [n for n in range(1, len(rows)) if [b.key for b in rows[n]] != [b.key for b in rows[n - 1]]]
    if not changed:
        return ()
    old, new = rows[changed[0] - 1], rows[changed[0]]
    differing = next((b for a, b in zip(old, new, strict=False) if a.key != b.key), (new or old)[-1])
    reordered = all(_words(rows[n]) == _words(rows[n - 1]) for n in changed)
    return _finding(
        "tools_reordered" if reordered else "tools_changed",
        differing,
        changed,
        f"the tool list came {'in another order' if reordered else 'with other content'} in {seen.share(changed)}, "
        f"first in request {changed[0]}, and as it stands before everything else {seen.paid(changed)} were paid again",
    )


def _words(tools: Iterable[Block]) -> list[str]:
    return sorted(word for tool in tools for word in re.findall(r"\w+", tool.content))


def _settings(seen: _Seen) -> tuple[Finding, ...]:
    values = [(p.model, dict(p.settings)) for p in seen.trace]
    changed = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
    if not changed:
        return ()
    first = changed[0]
    what = "the model" if values[first][0] != values[first - 1][0] else "a request parameter"
    return _finding(
        "settings_changed",
        f"request {first}",
        changed,
        f"{what} changed in {seen.share(changed)}, first in request {first}, "
        f"so that {seen.paid(changed)} were not read from the cache",
    )


def _volatile_inside(seen: _Seen) -> tuple[Finding, ...]:
    history = seen.history
    inside = [(n, i) for n in range(len(seen.trace)) for i in history.inside(n)]
    lasting = [(n, i) for n, i in inside if history.slots[n][i] in history.changed]
    passing = [(n, i) for n, i in inside if history.slots[n][i] not in history.changed]
    found: tuple[Finding, ...] = ()
    if lasting:
        n, i = lasting[0]
        numbers = sorted({n for n, _ in lasting})
        changes = sum(len(history.changed[slot]) for slot in {history.slots[n][i] for n, i in lasting})
        found += _finding(
            "volatile_in_prefix",
            seen.trace[n].blocks[i],
            numbers,
            f"in {seen.share(numbers)} a block stood before others that stay, and its content changed "
            f"{changes:,} times, so that {seen.paid(numbers)} were not read from the cache",
        )
    if passing:
        n, i = passing[0]
        numbers = sorted({n for n, _ in passing})
        found += _finding(
            "reminder_removed",
            seen.trace[n].blocks[i],
            numbers,
            f"in {seen.share(numbers)} a block stood before others that stay, and the next request left it out, "
            f"so that {seen.paid(numbers)} were not read from the cache",
        )
    return found


def _rewritten(seen: _Seen) -> tuple[Finding, ...]:
    history = seen.history
    volatile = {history.slots[n][i] for n in range(len(seen.trace)) for i in history.volatile[n]}
    edits: dict[int, set[int]] = {}
    for slot, numbers in history.changed.items():
        for number in numbers:
            edits.setdefault(number, set()).add(slot)
    for number, gone in enumerate(history.vanished):
        if gone:
            edits.setdefault(number, set()).update(gone)
    kept = {n: {s for s in e if s not in volatile and history.first[s].level == "messages"} for n, e in edits.items()}
    touched = sorted(n for n, slots in kept.items() if slots)
    if not touched or len(touched) * RARE <= len(seen.trace) - 1:
        return ()
    earliest = min(kept[touched[0]])
    return _finding(
        "history_rewritten",
        history.first[earliest],
        touched,
        f"{seen.share(touched)} edited {sum(len(kept[n]) for n in touched):,} blocks that were already sent, "
        f"so that {seen.paid(touched)} were not read from the cache",
    )


def _automatic(seen: _Seen) -> tuple[Finding, ...]:
    own = {n: own_breakpoint(p, seen.rules) for n, p in enumerate(seen.trace)}
    hit = {n: i for n, i in own.items() if i is not None and i in seen.history.volatile[n]}
    if not hit:
        return ()
    first = min(hit)
    return _finding(
        "automatic_marker_on_volatile",
        seen.trace[first].blocks[hit[first]],
        sorted(hit),
        f"in {seen.share(sorted(hit))} the provider's own breakpoint fell on a last block that the next request does "
        f"not repeat, so that {seen.paid(hit)} were not read from the cache",
    )


def _tail(seen: _Seen) -> tuple[Finding, ...]:
    if not seen.marks:
        return ()
    bare: list[tuple[int, int]] = []
    for n, prompt in enumerate(seen.trace):
        tail = seen.history.tail(n, prompt, seen.rules)
        if tail is not None and not prompt.automatic and not prompt.blocks[tail].marker:
            bare.append((n, tail))
    if not bare:
        return ()
    numbers = [n for n, _ in bare]
    last, tail = bare[-1]
    return _finding(
        "tail_not_marked",
        seen.trace[last].blocks[tail],
        numbers,
        f"in {seen.share(numbers)} no marker stood on the last block that stays, "
        f"so that {seen.paid(numbers)} were not read from the cache",
    )


def _out_of_reach(seen: _Seen) -> tuple[Finding, ...]:
    if not seen.marks:
        return ()
    lost: list[tuple[int, int]] = []
    for n in range(1, len(seen.trace)):
        before, now = seen.chains[n - 1], seen.chains[n]
        last = max(marked(before.prompt, seen.rules), default=None)
        repeated = last is not None and last < len(now.nodes) and now.nodes[last] == before.nodes[last]
        if last is not None and repeated and last not in reach(now.prompt, seen.rules):
            lost.append((n, last))
    if not lost:
        return ()
    numbers = [n for n, _ in lost]
    n, last = lost[0]
    exact = seen.rules.matching == "exact"
    reason = (
        "only marks of the new request are looked up, and it was not marked again"
        if exact
        else f"it lay more than {seen.rules.lookback} positions behind every marker"
    )
    return _finding(
        "past_marks_dropped" if exact else "lookback_overflow",
        seen.trace[n].blocks[last],
        numbers,
        f"in {seen.share(numbers)} the entry of the request before was not found, because {reason}, "
        f"so that {seen.paid(numbers)} were not read from the cache",
    )


def _expired(seen: _Seen) -> tuple[Finding, ...]:
    warm = simulate([replace(p, at=None) for p in seen.trace], seen.rules)
    pairs = zip(seen.simulation.steps, warm.steps, strict=True)
    cold = [n for n, (timed, untimed) in enumerate(pairs) if timed.read < untimed.read]
    if not cold:
        return ()
    gaps = [(seen.trace[n].at or 0.0) - (seen.trace[n - 1].at or 0.0) for n in cold]
    return _finding(
        "ttl_expired",
        seen.trace[cold[0]].blocks[-1],
        cold,
        f"{seen.share(cold)} came after the entry had expired, the longest pause being {max(gaps):,.0f} seconds, "
        f"so that {seen.paid(cold)} were not read from the cache",
    )


def _short(seen: _Seen) -> tuple[Finding, ...]:
    lengths: dict[int, int] = {}
    for n, chain in enumerate(seen.chains):
        marks = marked(chain.prompt, seen.rules) if seen.marks else [len(chain.nodes) - 1]
        if marks and chain.nodes:
            lengths[n] = chain.ends[max(marks)]
    short = [n for n, length in lengths.items() if length < seen.rules.min_prefix]
    if len(short) * 2 <= len(seen.trace):  # a conversation may start short
        return ()
    longest = max(lengths[n] for n in short)
    return _finding(
        "below_minimum",
        seen.trace[short[0]].blocks[-1],
        short,
        f"the prefix of {seen.share(short)} was too short to be cached: the longest had {longest:,} tokens, "
        f"and the model caches none under {seen.rules.min_prefix:,}",
    )


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

_DETECTORS: tuple[Callable[[_Seen], tuple[Finding, ...]], ...] = (
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
