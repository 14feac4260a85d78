"""How a session behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Final, Literal

from loom.errors import UsageError
from loom.protocols.model import ModelSettings
from loom.session.compaction.config import CompactionConfig

SMALLEST_OUTPUT: Final = 1_000
"""Characters that a limit for tool results leaves at least: both ends, and the notice between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How a session behaves; every value has a default that works."""

    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    settings: ModelSettings = field(default_factory=ModelSettings)
    cache_ttl: float | None = None
    """How long the provider should keep the prefix, in seconds; None takes its default."""
    max_steps: int = 200
    """Answers of the model within one turn; then the turn ends with the stop `steps`."""
    tool_output_limit: int | None = None
    """Characters of a tool result that are shown; of a longer one the model sees both ends, and gets the tool
    `read_output` for the rest. None shows every result whole."""
    max_cost: float | None = None
    """US dollars that one turn may cost; before each request what is spent is compared with it, and then the turn ends
    with the stop `cost`. None is no ceiling."""
    max_retries: int = 3
    """How often a call that failed for the moment is made again."""
    recall_limit: int = 8
    recall_budget: int = 500
    """Tokens of memory found for a message and shown in its turn."""
    standing_budget: int = 600
    """Tokens of what is shown in every turn: standing wishes, pinned texts, facts, and what the user said a moment
    ago in other conversations. 0 shows none of it."""
    remember_answers: bool = True
    """Whether memory keeps what the model said, beside what the user said."""
    recall_place: Literal["auto", "tail", "kept"] = "auto"
    """Where recalled memory stands. `tail`: behind the conversation, gone after the turn. `kept`: in the
    conversation, for good. `auto`: kept where the model binds its thinking to the prompt and may call tools, because
    a tail that goes away would cost it the thinking of the round; the tail otherwise."""

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
        if not isinstance(given, Mapping):
            raise UsageError(f"a session's config is a mapping or SessionConfig, not {type(given).__name__}")
        known = {f.name for f in fields(cls)}
        unknown = set(given) - known
        if unknown:
            raise UsageError(
                f"a session has no setting {', '.join(sorted(map(str, unknown)))}; it has {', '.join(sorted(known))}"
            )
        values = dict(given)
        if "compaction" in values:
            values["compaction"] = CompactionConfig.of(values["compaction"])
        if isinstance(values.get("settings"), Mapping):
            values["settings"] = _settings(values["settings"])
        return cls(**values)


def check_ceiling(value: object) -> None:
    """Refuse a ceiling that is not an amount of money."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise UsageError(f"max_cost={value!r}; give US dollars above 0, or None for no ceiling")


def _settings(given: Mapping[str, Any]) -> ModelSettings:
    known = {f.name for f in fields(ModelSettings)}
    unknown = set(given) - known
    if unknown:
        raise UsageError(
            f"settings have no {', '.join(sorted(map(str, unknown)))}; they have {', '.join(sorted(known))}"
        )
    return ModelSettings(**given)
