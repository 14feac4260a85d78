"""A counter that learns a model's own scale from what responses report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from loom.core.message import Part
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter

_DECAY: Final = 0.85
"""What an observation still weighs when the next one comes."""
_PRIOR: Final = 300.0
"""Tokens that speak for the base counter before anything was observed."""
_FULL_WEIGHT: Final = 2000
"""A request of this size is a whole piece of evidence; a smaller one is less."""
_OUTLIER: Final = 1.5
"""Once something is known, one observation may differ from it by this factor at most."""
_DOUBT: Final = 2.0
"""Pieces of evidence that the base counter's own error weighs: a small text strays further than a whole prompt."""
_FLOOR: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The scale learned for one model; keep it, and give it to the next counter."""

    base_tokens: float = 0.0
    actual_tokens: float = 0.0
    evidence: float = 0.0
    variance: float = 0.0
    """Sum of the squared log errors, weighed like `evidence`."""
    observations: int = 0

    @property
    def scale(self) -> float:
        """What the base counter's tokens are multiplied with."""
        return (_PRIOR + self.actual_tokens) / (_PRIOR + self.base_tokens)

    def after(self, base_tokens: float, actual: float) -> Calibration:
        """This calibration and one more observation."""
        weight = min(1.0, base_tokens / _FULL_WEIGHT)
        if self.evidence >= 1.0:  # one odd response must not undo what many showed
            actual = min(max(actual, base_tokens * self.scale / _OUTLIER), base_tokens * self.scale * _OUTLIER)
        learned = replace(
            self,
            base_tokens=self.base_tokens * _DECAY + base_tokens,
            actual_tokens=self.actual_tokens * _DECAY + actual,
            observations=self.observations + 1,
        )
        miss = math.log(actual / base_tokens / learned.scale)
        return replace(
            learned, evidence=self.evidence * _DECAY + weight, variance=self.variance * _DECAY + weight * miss * miss
        )


class CalibratedCounter:
    """Counts as another counter does, times what responses have shown.

    One counter serves one model. Its counts move as it learns, so a plan and the trigger that follows it must
    ask the same counter.
    """

    def __init__(self, base: TokenCounter, calibration: Calibration | None = None) -> None:
        self._base = base
        self._calibration = calibration or Calibration()

    @property
    def calibration(self) -> Calibration:
        """What was learned so far."""
        return self._calibration

    @property
    def scale(self) -> float:
        """What the base counter's tokens are multiplied with now."""
        return self._calibration.scale

    @property
    def name(self) -> str:
        """What counts, for people."""
        seen = self._calibration.observations
        return (
            f"{self._base.name}, calibrated on {seen} response{'' if seen == 1 else 's'}" if seen else self._base.name
        )

    @property
    def error(self) -> float:
        """The base counter's error, replaced by the observed one as evidence comes in."""
        learned = self._calibration
        if not learned.observations:
            return self._base.error
        observed = 4 * learned.variance  # two standard deviations, squared
        return max(_FLOOR, math.sqrt((_DOUBT * self._base.error**2 + observed) / (_DOUBT + learned.evidence)))

    def count(self, text: str) -> int:
        """Tokens of a text."""
        base = self._base.count(text)
        return max(1, round(base * self.scale)) if base else 0

    def count_part(self, part: Part) -> int:
        """Tokens of any part."""
        base = self._base.count_part(part)
        return max(1, round(base * self.scale)) if base else 0

    def observe(self, predicted: int, actual: int, *, scale: float | None = None) -> None:
        """Learn from a response: this counter's count of the whole prompt, and the billed count.

        `scale` is the scale in force when the prompt was counted; without it, the present one.
        """
        if predicted < 0 or actual < 0:
            raise UsageError(f"observed {predicted} predicted and {actual} actual tokens; neither can be negative")
        if predicted and actual:
            self._calibration = self._calibration.after(predicted / (scale or self.scale), actual)
