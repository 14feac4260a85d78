"""When to compact and down to what, decided from plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from loom.errors import UsageError
from loom.session.compaction.config import CompactionConfig

PRESSURE: Final = (0.75, 0.875, 1.0)
"""Shares of the trigger at which the pressure rises by one level: 60, 70 and 80% of a window with the default
trigger. The last is the trigger itself, so that pressure is never reported after a compaction began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of the next request, and the window of the model."""

    tokens: int
    """The whole prompt: system, tools and history."""
    history: int
    """The part of it that a compactor can work on."""
    messages: int
    """Messages of the history."""
    window: int
    reserved_output: int = 0
    """Tokens of the window that are set aside for the answer."""

    def __post_init__(self) -> None:
        if min(self.tokens, self.history, self.messages, self.reserved_output) < 0:
            raise UsageError(f"{self!r} cannot be: none of these is negative")
        if self.window <= self.reserved_output:
            raise UsageError(
                f"the window has {self.window:,} tokens and {self.reserved_output:,} are set aside for the answer; "
                f"ask for a shorter answer, or give the model's true window"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from a load."""

    compact: bool
    trigger: int
    """The size of the whole prompt, in tokens, from which on a compaction is due."""
    target: int
    """What the history may have after one, in tokens."""
    pressure: int
    """0 to 3: how many of the PRESSURE levels are reached. Report it where it rose."""


def decide(config: CompactionConfig, load: Load) -> Decision:
    """Whether to compact now, and down to what.

    The target is the configured share of the room that the history has before the trigger. Where the number of
    messages set it off, it is that share of the present history if that is less: a pass then always has
    something to do.
    """
    ceiling = load.window - load.reserved_output
    kind, threshold = config.trigger.type, config.trigger.threshold or 0
    at = {"tokens": int(threshold), "fraction": int(threshold * load.window)}.get(kind, ceiling)
    trigger = max(1, min(at, ceiling))
    filled = load.tokens / trigger
    room = max(0, trigger - max(0, load.tokens - load.history))  # a part may be estimated above a measured whole
    if kind == "messages":
        filled = max(filled, load.messages / threshold)
        room = min(room, load.history)
    return Decision(
        compact=kind != "disabled" and filled >= 1,
        trigger=trigger,
        target=int(room * config.target),
        pressure=sum(filled >= level for level in PRESSURE),
    )
