"""Data about one model: its window, its prices, and the rules of its prompt cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loom.core.message import Usage

Matching: TypeAlias = Literal["lookback", "exact", "grid", "units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """A provider's prompt cache rules: how a prefix is found again, and what that costs.

    The four ways of matching:
      lookback  written at markers, found up to `lookback` positions behind a marker (Anthropic)
      exact     written at markers, found only at markers that stand in the new request (OpenAI from GPT-5.6)
      grid      longest common token prefix, cut down to a multiple of `grid` (older OpenAI, vLLM, SGLang, Gemini)
      units     whole units that end where an earlier request or answer ended (DeepSeek)
    """

    matching: Matching
    min_prefix: int
    """A shorter prefix is never cached, and no error says so."""
    read: float
    """Price of a cached token, as a share of the plain input price."""
    write: Mapping[str, float] = field(default_factory=dict[str, float])
    """Price of writing a token, by lifetime, as a share of the plain price; empty: no surcharge."""
    ttls: Mapping[str, float] = field(default_factory=dict[str, float])
    """The lifetimes the provider accepts, as it writes them, in seconds; empty: it takes none."""
    default_ttl: str | None = None
    max_markers: int = 0
    """Explicit markers in one request; 0: the provider takes none."""
    lookback: int = 20
    collapse_runs: bool = True
    """A run of consecutive tool calls, or of tool results, counts as one position of the lookback."""
    lookups: int = 80
    """Markers of one request that are looked up (exact matching)."""
    grid: int = 1
    implicit: bool = False
    """The provider places a breakpoint itself, at the end of the newest eligible message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One row of the catalogue. Prices are US dollars per million tokens; None where not established."""

    provider: str
    model: str
    context_window: int
    max_output: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    tokenizer: str = "estimate"
    """`o200k`, `cl100k` or another exact vocabulary, or `estimate`."""
    token_scale: float = 1.0
    """What the estimate is multiplied with for this model."""
    prefill: bool = True
    """A request may end with an assistant message."""
    system_messages: bool = False
    """A system message may stand among the messages."""
    binds_thinking: bool = False
    """Thinking is bound to the exact prefix that produced it; an edit before it invalidates it."""
    cache: CacheRules
    known: bool = True
    """False for a model the catalogue does not list: the values are the provider's safe defaults."""
    as_of: str = ""
    sources: tuple[str, ...] = ()

    def cost(self, usage: Usage) -> float | None:
        """What a usage costs in US dollars; None where a price is not known."""
        if self.input_price is None or self.output_price is None:
            return None
        write = self.cache.write.get(self.cache.default_ttl or "", 1.0)
        prompt = usage.uncached + usage.cache_read * self.cache.read + usage.cache_write * write
        return (prompt * self.input_price + usage.output * self.output_price) / 1e6
