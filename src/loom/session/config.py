"""How a session behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final, Literal

from loom.errors import UsageError
from loom.protocols.model import ModelSettings
from loom.session.compaction.config import CompactionConfig, settings_in

SMALLEST_OUTPUT: Final = 1_000
"""Characters that a limit for tool results leaves at least: both ends, and the notice between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How a session behaves; every value has a default that works."""

    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    settings: ModelSettings = field(default_factory=ModelSettings)
    cache_ttl: float | None = None
    """How long the provider should cache the prefix, in seconds; None takes its default."""
    max_steps: int = 200
    """Answers of the model within one turn; then the turn ends with the stop `steps`."""
    tool_output_limit: int | None = None
    """Characters of a tool result that are shown; of a longer one the model sees both ends, and gets the tool
    `read_output` for the rest. None shows every result whole."""
    max_cost: float | None = None
    """US dollars that one turn may cost, checked before each request; then the turn ends with the stop `cost`. None for
    no limit."""
    max_retries: int = 3
    """How often a model call is repeated after a temporary failure. The waits double from 1 second, so 3 take 7."""
    recall_limit: int = 8
    recall_budget: int = 500
    """Tokens of memory found for a message and shown in its turn."""
    standing_budget: int = 600
    """Tokens that every turn is shown: standing instructions, pinned texts, facts, and what the user said a moment ago
    in other conversations. 0 shows none of it."""
    remember_answers: bool = True
    """Whether memory keeps what the model said, beside what the user said."""
    recall_place: Literal["auto", "tail", "kept"] = "auto"
    """Where recalled memory is inserted. `tail`: after the last message, for this turn only. `kept`: in the
    conversation, for good. `auto`: `kept` where the model binds its thinking to the prompt and may call tools, because
    removing a tail would cost it the thinking of the round; `tail` otherwise."""

    def __post_init__(self) -> None:
        least_of = {"max_steps": 1, "max_retries": 0, "recall_limit": 0, "recall_budget": 0, "standing_budget": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(f"{name}={value!r}; give a whole number, {least} or more")
        limit = self.tool_output_limit
        if limit is not None and (not isinstance(limit, int) or limit < SMALLEST_OUTPUT):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"tool_output_limit={limit!r}; give {SMALLEST_OUTPUT:,} characters or more, or None")
        if self.max_cost is not None:
            check_ceiling(self.max_cost)
        if not isinstance(self.settings, ModelSettings):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"settings={self.settings!r}; give a mapping or ModelSettings")
        if self.recall_place not in ("auto", "tail", "kept"):
            raise UsageError(f"recall_place={self.recall_place!r}; use auto, tail or kept")

    @classmethod
    def of(cls, given: SessionConfig | Mapping[str, Any] | None) -> SessionConfig:
        """A configuration from itself, from a plain mapping, or from nothing."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        values = settings_in(given, cls, "a session")
        if "compaction" in values:
            values["compaction"] = CompactionConfig.of(values["compaction"])
        if isinstance(values.get("settings"), Mapping):
            values["settings"] = ModelSettings(**settings_in(values["settings"], ModelSettings, "settings"))
        return cls(**values)


def check_ceiling(value: object) -> None:
    """Refuse a ceiling that is not an amount of money."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise UsageError(f"max_cost={value!r}; give US dollars above 0, or None for no ceiling")
