"""Simulate: a trace of windows or recorded requests, replayed through the cache of a provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loom.context.cache import simulate as simulator
from loom.context.cache.prompt import Prompt
from loom.context.cache.simulate import Simulation
from loom.context.cache.subject import AnyRequest, analysis_settings, as_prompt
from loom.core.window import Window
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter


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
    if isinstance(trace, Window | Prompt | Mapping):
        raise UsageError("a trace is a list of requests; put this one into a list")
    if not trace:
        raise UsageError("the trace is empty; give at least one request")
    analysis = analysis_settings(
        trace[0], provider, model, counter=counter, breakpoints=cache_breakpoints, ttl=cache_ttl
    )
    prompts = [as_prompt(subject, analysis)[0] for subject in trace]
    return simulator.simulate(prompts, analysis.info.cache)
