"""Simulate: a trace of windows or recorded requests, replayed through the cache of a provider."""

from __future__ import annotations

from collections.abc import Sequence

from loom.context.cache import simulate as simulator
from loom.context.cache.simulate import Simulation
from loom.context.cache.subject import CacheOptions, Subject, as_prompt, target_of
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter


def simulate(
    trace: Sequence[Subject],
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
    if not trace:
        raise UsageError("the trace is empty; give at least one request")
    target = target_of(trace[0], provider, model, counter)
    options = CacheOptions(breakpoints=cache_breakpoints, ttl=cache_ttl)
    prompts = [as_prompt(subject, target, options)[0] for subject in trace]
    return simulator.simulate(prompts, target.model.cache)
