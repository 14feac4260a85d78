"""How a session behaves, and when and how far it compacts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Final, Literal, TypeAlias, cast

from loom.core.checks import did_you_mean
from loom.errors import UsageError
from loom.protocols.compactor import Compactor
from loom.protocols.model import Model, ModelSettings

# Compaction settings.

TriggerType: TypeAlias = Literal["tokens", "fraction", "messages", "disabled"]
RetainType: TypeAlias = Literal["messages", "tokens", "fraction"]
Strategy: TypeAlias = str | Compactor | tuple[str | Compactor, ...]

STRATEGIES: Final = ("summarize", "truncate", "sliding_window", "hierarchical", "snapshot", "clear_tools")


@dataclass(frozen=True, slots=True)
class Trigger:
    """When to compact: at so many tokens, at a share of the window, at so many messages, or never.

    Reaching the threshold is enough. Whatever the type, a prompt that leaves no room for the answer triggers
    as well; only `disabled` never does.
    """

    type: TriggerType = "fraction"
    threshold: float | None = 0.80

    def __post_init__(self) -> None:
        _check_choice(self.type, ("tokens", "fraction", "messages", "disabled"), "the type of a trigger")
        if self.type == "disabled":
            object.__setattr__(self, "threshold", None)
        elif self.type == "fraction":
            share = _number(self.threshold, "the threshold of a fraction trigger")
            if not 0 < share <= 1:
                raise UsageError(f"a fraction trigger has threshold={share}; give a share of the window, such as 0.8")
        else:
            _check_count(self.threshold, f"the threshold of a {self.type} trigger", least=1)


@dataclass(frozen=True, slots=True)
class Retain:
    """How much of the end of a history stays as it is: so many messages or tokens, or a share of its tokens.

    It is rounded down to whole rounds; where one round alone is larger, to whole units of it. 0 keeps nothing
    but the current request. The target of a pass comes first, and room for a summary message. A `firm` one comes before
    that message, and keeps the newest answer too: compact() on demand uses it so.
    """

    type: RetainType = "messages"
    count: int | None = None
    amount: float | None = None
    firm: bool = False

    def __post_init__(self) -> None:
        _check_choice(self.type, ("messages", "tokens", "fraction"), "the type of retain")
        if not isinstance(self.firm, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"firm={self.firm!r} of retain; give True or False")
        if self.type == "fraction":
            share = _number(self.amount, "the amount that retain keeps")
            if self.count is not None or not 0 <= share <= 1:
                raise UsageError(f"retain keeps amount={self.amount}, count={self.count}; give amount, from 0 to 1")
            return
        if self.amount is not None:
            raise UsageError(f"retain counts {self.type} and was given amount={self.amount}; give count")
        if self.count is None and self.type == "messages":
            object.__setattr__(self, "count", 6)
        _check_count(self.count, f"the count of {self.type} that retain keeps", least=0)

    @property
    def nothing(self) -> bool:
        """Whether only the current request is to stay."""
        return not (self.count or self.amount)

    def limits(self, tokens: int) -> tuple[float, float]:
        """The most messages and the most tokens that stay of a history of so many tokens."""
        if self.type == "messages":
            return float(self.count or 0), math.inf
        return math.inf, float(self.count or 0) if self.type == "tokens" else tokens * (self.amount or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearToolsOptions:
    """Which tool results the cheap first pass clears."""

    enabled: bool = True
    keep: int = 3
    """The newest results stay."""
    exclude: tuple[str, ...] = ()
    """Tools whose results always stay: those that cannot be called again."""
    min_tokens: int = 150
    """Smaller results stay."""

    def __post_init__(self) -> None:
        _check_count(self.keep, "keep of clear_tools", least=0)
        _check_count(self.min_tokens, "min_tokens of clear_tools", least=0)
        if isinstance(self.exclude, str) or not all(isinstance(name, str) for name in self.exclude):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"exclude of clear_tools is {self.exclude!r}; give a list of tool names")
        object.__setattr__(self, "exclude", tuple(self.exclude))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """How a session keeps its history inside the window.

    `strategy` is a name, a compactor of your own, or several of either: each is tried when the one before it
    failed, and truncation comes last without being asked.

    `target` is the share of the trigger that a pass must reach. At 1 the next message would trigger again, and
    every pass costs the cached prefix; near 0 much is dropped that had room. Half leaves as much room as it keeps.
    """

    trigger: Trigger = field(default_factory=Trigger)
    retain: Retain = field(default_factory=Retain)
    strategy: Strategy = "summarize"
    target: float = 0.5
    summary_model: Model | str | None = None
    """The model that writes summaries, or its name (`provider:model`); None: the session's own, which has the history
    in its cache."""
    timeout: float = 120.0
    """Seconds that one summary may take; then the next strategy is tried."""
    clear_tools: ClearToolsOptions = field(default_factory=ClearToolsOptions)

    def __post_init__(self) -> None:
        for value, kind, name in (
            (self.trigger, Trigger, "trigger"),
            (self.retain, Retain, "retain"),
            (self.clear_tools, ClearToolsOptions, "clear_tools"),
        ):
            if not isinstance(value, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{name} is {value!r}; give a {kind.__name__}, or a dict to CompactionConfig.of()")
        if not 0 < _number(self.target, "the target of compaction") < 1:
            raise UsageError(f"the target of compaction is {self.target}; give a share between 0 and 1, such as 0.5")
        if _number(self.timeout, "the timeout of compaction") <= 0:
            raise UsageError(f"the timeout of compaction is {self.timeout}; give seconds above 0")
        model = self.summary_model
        named = isinstance(model, str) and all(model.partition(":"))
        if model is not None and not named and not isinstance(model, Model):
            raise UsageError(f"summary_model is {model!r}; give a Model, provider:model, or None for the session's own")
        for strategy in self.strategies:
            if isinstance(strategy, str):
                _check_choice(strategy, STRATEGIES, "a compaction strategy")
            elif not isinstance(strategy, Compactor):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UsageError(f"{strategy!r} is not a strategy; give one of {', '.join(STRATEGIES)}, or a Compactor")
        if not self.strategies:
            raise UsageError("no compaction strategy was given; name one, or use the trigger `disabled`")

    @property
    def strategies(self) -> tuple[str | Compactor, ...]:
        """The strategies in the order they are tried."""
        return self.strategy if isinstance(self.strategy, tuple) else (self.strategy,)

    @classmethod
    def of(cls, value: CompactionConfig | Mapping[str, Any] | None) -> CompactionConfig:
        """The configuration that a value stands for: itself, a plain dict, or None for the defaults.

        The dict has the names of the fields; `trigger`, `retain` and `clear_tools` are dicts themselves:
        `{"trigger": {"type": "fraction", "threshold": 0.8}, "retain": {"type": "messages", "count": 6}}`.
        """
        if value is None or isinstance(value, CompactionConfig):
            return value or cls()
        values = settings_in(value, cls, "compaction")
        for name, kind in (("trigger", Trigger), ("retain", Retain), ("clear_tools", ClearToolsOptions)):
            if name in values and not isinstance(values[name], kind):
                values[name] = _read(kind, values[name], name)
        if isinstance(strategy := values.get("strategy"), Sequence) and not isinstance(strategy, str):
            values["strategy"] = tuple(cast("Sequence[str | Compactor]", strategy))
        return cls(**values)


def _read(kind: type[Trigger | Retain | ClearToolsOptions], value: object, name: str) -> object:
    if kind is ClearToolsOptions and isinstance(value, bool):
        return ClearToolsOptions(enabled=value)
    values = settings_in(value, kind, name)
    if kind is not ClearToolsOptions and "type" not in values:
        raise UsageError(f"{name} is {value!r}, which has no type; give one, such as {{'type': 'messages', ...}}")
    if kind is Trigger:
        values.setdefault("threshold", None)
    return kind(**values)


def settings_in(value: object, kind: type[Any], name: str) -> dict[str, Any]:
    """The settings of a mapping, by the names of the fields of a class; refuses others."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}; give a dict or a {kind.__name__}")
    values = {str(key): given for key, given in cast("Mapping[Any, Any]", value).items()}
    names = [f.name for f in fields(kind)]
    if unknown := sorted(set(values) - set(names)):
        hint = did_you_mean(unknown[0], names)
        raise UsageError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(names)}{hint}")
    return values


def _check_choice(value: object, choices: Sequence[str], what: str) -> None:
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise UsageError(f"{what} is {value!r}; use one of {', '.join(choices)}{hint}")


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{what} is {value!r}; give a number")
    return value


def _check_count(value: object, what: str, *, least: int) -> None:
    number = _number(value, what)
    if number < least or number != int(number):
        raise UsageError(f"{what} is {value!r}; give a whole number from {least}")


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

    keep_requests: bool = False
    """Whether the journal keeps the body of each request beside its record, as what differs from the one before."""

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
        if not isinstance(self.keep_requests, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"keep_requests={self.keep_requests!r}; give True or False")
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
