"""Plan: a prediction of what the prompt cache does with a request, before it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from loom.catalog import CacheRules, ModelInfo
from loom.context.cache.diagnose import diagnose
from loom.context.cache.explain import CLOCK, compare
from loom.context.cache.simulate import Analysis, AnyRequest, Finding, has_moved, replay
from loom.context.render.request import Request, WireRequest
from loom.core.window import Block, PrefixChain, RequestBlocks, Window, hash_prefixes
from loom.protocols.token_counter import TokenCounter

_NAMED = 3
"""Entries that a warning names; there may be one for each turn of a long conversation."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One cache marker: where it stands, for how long, why, and how much it covers."""

    path: str
    ttl: str
    reason: str
    tokens: int


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """A warning about cost or failure of a request; `code` is stable, `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """The cache markers of a request, why they are there, and the predicted reads, writes and cost."""

    provider: str
    model: str
    markers: tuple[Marker, ...]
    tokens: int
    read: int
    write: int
    uncached: int
    cost: float
    """Of this request, in tokens at the plain input price."""
    usd: float | None
    """Of this request, output not counted; None where the price is not in the catalogue."""
    next_read: int
    """What the next request will read, if it only adds to this one in time."""
    warnings: tuple[PlanWarning, ...]
    findings: tuple[Finding, ...] = ()
    """Causes of missed reads in the requests so far, in the order of doing, each with the fix that removes it."""
    error: float = 0.0
    """How far off the token counts may be, as a share."""
    _chain: PrefixChain = field(repr=False, compare=False)
    _request: Request | None = field(default=None, repr=False, compare=False)

    @cached_property
    def prompt(self) -> RequestBlocks:
        """The request as its cache sees it."""
        return self._chain.prompt

    @property
    def body(self) -> Mapping[str, Any] | None:
        """The request itself, for a window: the keyword arguments of the provider's own client."""
        return self._request.body if self._request else None

    @property
    def relative_cost(self) -> float:
        """Cost as a share of the same request without a cache."""
        return self.cost / self.tokens if self.tokens else 1.0

    def __str__(self) -> str:
        price = f", ${self.usd:.4f}" if self.usd is not None else ""
        summary = (
            f"{self.provider}:{self.model}: {self.tokens:,} tokens (±{self.error:.0%}), "
            f"{self.read:,} read, {self.write:,} written, {self.uncached:,} uncached"
        )
        cost = f"{self.relative_cost:.2f}x the uncached price{price}; the next request reads {self.next_read:,}"
        lines = [summary, f"  cost {cost}"]
        lines += [f"  marker {m.ttl} at {m.path}: {m.reason} ({m.tokens:,} tokens)" for m in self.markers]
        lines += [f"  warning: {w.message}" for w in self.warnings]
        lines += [f"  {finding}" for finding in self.findings]
        return "\n".join(lines)


def plan(
    subject: AnyRequest,
    provider: str | None = None,
    model: str | None = None,
    *,
    previous: Sequence[AnyRequest] | AnyRequest | None = None,
    cache_breakpoints: Sequence[str] | None = None,
    cache_ttl: float | None = None,
    counter: TokenCounter | None = None,
    **settings: Any,
) -> CachePlan:
    """Predict what the cache does with a window, or with a request of any program, before it is sent.

    `previous` are the requests that went before, oldest first. A window knows the last few that its context sent;
    given more, faults that only show over time are found too. `settings` go into the body of a window.
    """
    placing = {"cache_breakpoints": cache_breakpoints, "cache_ttl": cache_ttl, "settings": settings}
    analysis = Analysis(subject, provider, model, counter=counter, **placing)
    info, rules = analysis.target.info, analysis.target.info.cache
    request = analysis.request(subject) if isinstance(subject, Window) else None
    wire = request.wire(analysis.counter, analysis.counted_by) if request else None
    chain = wire.chain if wire else analysis.chain(subject)
    past = [analysis.chain(p) for p in _past(subject, previous)]
    step = replay([*past, chain], rules).steps[-1]
    return CachePlan(
        provider=analysis.target.provider,
        model=analysis.target.model,
        markers=_markers(chain, request, wire),
        tokens=step.tokens,
        read=step.read,
        write=step.write,
        uncached=step.uncached,
        cost=step.cost,
        usd=None if info.input_price is None else step.cost * info.input_price / 1e6,
        next_read=_next_read(past, chain, rules),
        warnings=tuple(_warnings(subject, chain, past, request, info)),
        findings=_findings([*past, chain], info) if previous is not None and len(past) > 1 else (),
        error=analysis.counter.error,
        _chain=chain,
        _request=request,
    )


def _findings(trace: Sequence[PrefixChain], info: ModelInfo) -> tuple[Finding, ...]:
    return diagnose([chain.prompt for chain in trace], info.cache, price=info.input_price)


def _past(subject: AnyRequest, previous: Sequence[AnyRequest] | AnyRequest | None) -> list[AnyRequest]:
    if previous is None:
        return list(subject.history) if isinstance(subject, Window) else []
    if isinstance(previous, Window | RequestBlocks | Mapping):
        return [previous]
    return list(previous)


def _markers(chain: PrefixChain, request: Request | None, wire: WireRequest | None) -> tuple[Marker, ...]:
    found: list[Marker] = []
    for at, ttl in chain.marks.items():
        path = chain.blocks[at].path
        slot = wire.origins.get(path) if wire else None
        reason = request.placement.reasons.get(slot) if request and slot else None
        found.append(Marker(path, ttl, reason or "as recorded", chain.ends[at]))
    return tuple(found)


def _next_read(past: list[PrefixChain], chain: PrefixChain, rules: CacheRules) -> int:
    """What a request reads that repeats this one's stable part and goes on."""
    marks = {at: ttl for at, ttl in chain.marks.items() if at < chain.stable}
    ttl = list(chain.marks.values())[-1] if chain.marks else None
    more = Block("messages", "user", "text", "what comes next", 1, path="next")
    blocks = (*chain.blocks[: chain.stable], more)
    marks |= {chain.stable: ttl} if ttl else {}
    if rules.matching == "lookback" and not chain.automatic:
        marks = dict(list(marks.items())[-rules.max_markers :]) if rules.max_markers else marks
    kept = chain.nodes[: chain.stable]
    following = replace(
        chain,
        blocks=blocks,
        nodes=hash_prefixes(chain.provider, chain.model, chain.settings, blocks, kept),
        ends=(*chain.ends[: chain.stable], chain.tokens_of(chain.stable) + 1),
        marks=marks,
        stable=len(blocks),
    )
    return replay([*past, chain, following], rules).steps[-1].read


def _warnings(
    subject: AnyRequest, chain: PrefixChain, past: list[PrefixChain], request: Request | None, info: ModelInfo
) -> Iterator[PlanWarning]:
    yield from (PlanWarning(code, message) for code, message in (request.placement.warnings if request else ()))
    if isinstance(subject, Window):
        yield from (PlanWarning(n.code, n.message) for n in subject.notices)
    if past and has_moved(past[-1], chain, info.cache):
        moved = compare(past[-1].prompt, chain.prompt, info)
        if moved.moved:
            price = f" (${moved.extra_usd:.4f})" if moved.extra_usd is not None else ""
            cost = f"It costs {moved.lost_tokens:,} cached tokens{price}."
            yield PlanWarning("prefix_moved", f"{moved.message} {cost} {moved.advice}")
    yield from _cache_warnings(chain, info)
    yield from _request_warnings(chain, request, info)


def _cache_warnings(chain: PrefixChain, info: ModelInfo) -> Iterator[PlanWarning]:
    rules, name = info.cache, info.model or info.provider
    end = len(chain.blocks) if chain.automatic or not rules.max_markers else max(chain.marks, default=-1) + 1
    covered = chain.tokens_of(end)
    if end and covered < rules.min_prefix:
        limit = f"{name} caches none under {rules.min_prefix:,}, and does not say so"
        yield PlanWarning("below_minimum", f"the prefix has {covered:,} tokens; {limit}")
    if not end:
        yield PlanWarning("nothing_marked", "the request carries no cache marker, so nothing of it is cached")
    for block in chain.blocks[chain.stable : end if rules.max_markers else 0]:
        if block.volatile:
            message = f"{block.where} changes with every request but stands before a marker"
            yield PlanWarning("volatile_in_prefix", message)
    for block in takewhile(lambda block: block.level != "messages", chain.blocks):
        clock = CLOCK.search(block.content)
        if clock:
            where = "into attention" if block.origin else "behind the conversation"
            advice = f"if that changes, everything after it is paid for again: move it {where}"
            yield PlanWarning("volatile_in_prefix", f"{block.where} holds {clock[0]!r}; {advice}")


def _request_warnings(chain: PrefixChain, request: Request | None, info: ModelInfo) -> Iterator[PlanWarning]:
    last = chain.blocks[-1] if chain.blocks else None
    if not any(b.role in ("user", "tool") for b in chain.blocks if b.level == "messages"):
        yield PlanWarning("no_user_turn", "there is no user message, so the request cannot be answered")
    elif last and last.role in ("assistant", "model") and not info.prefill:
        yield PlanWarning("prefill", f"the request ends with an assistant message; {info.model} refuses that")
    if chain.tokens > info.context_window:
        message = f"{chain.tokens:,} tokens are over the window of {info.context_window:,}"
        yield PlanWarning("over_window", message)
    if dropped := dict.fromkeys(slot.entry for slot in request.layout.dropped) if request else {}:
        named = ", ".join(list(dropped)[:_NAMED]) + (f" and {len(dropped) - _NAMED:,} more" * (len(dropped) > _NAMED))
        entries = f"entries {named}" if len(dropped) > 1 else f"entry {named}"
        message = f"reasoning of {entries} is left out: its prefix changed, or it is another provider's"
        yield PlanWarning("thinking_dropped", message)
    if not info.known:
        message = f"{info.model or 'this model'} is not in the catalogue; safe defaults are used for it"
        yield PlanWarning("unknown_model", message)
