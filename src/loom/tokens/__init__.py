"""Counting tokens with no network: exactly with a vocabulary, by estimate without one, learning from either."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from loom.core.doors import door

if TYPE_CHECKING:
    from loom.catalog import ModelInfo
    from loom.protocols.token_counter import TokenCounter
    from loom.tokens.calibrated import CalibratedCounter, Calibration
    from loom.tokens.estimate import EstimateCounter, estimate_tokens
    from loom.tokens.exact import ExactCounter
    from loom.tokens.parts import PartRules, count_message, count_messages, count_request, count_tool

__all__ = [
    "CalibratedCounter",
    "Calibration",
    "EstimateCounter",
    "ExactCounter",
    "PartRules",
    "count_message",
    "count_messages",
    "count_request",
    "count_tool",
    "counter_for",
    "estimate_tokens",
]

_HOMES = {
    "CalibratedCounter": "calibrated",
    "Calibration": "calibrated",
    "EstimateCounter": "estimate",
    "ExactCounter": "exact",
    "PartRules": "parts",
    "count_message": "parts",
    "count_messages": "parts",
    "count_request": "parts",
    "count_tool": "parts",
    "estimate_tokens": "estimate",
}
_UNKNOWN_VOCABULARY = 0.15
"""How far a model's scale may be off where its vocabulary is not public."""


__getattr__, _ = door(__name__, {name: f"{__name__}.{module}" for name, module in _HOMES.items()})


def counter_for(model: ModelInfo | str) -> TokenCounter:
    """The best counter there is for a model: exact with its vocabulary, else an estimate that says how far off."""
    from loom.catalog import find_model  # noqa: PLC0415  nothing is loaded until somebody counts
    from loom.tokens.estimate import ESTIMATE_ERROR, EstimateCounter  # noqa: PLC0415
    from loom.tokens.exact import VOCABULARIES, ExactCounter, has_vocabularies  # noqa: PLC0415
    from loom.tokens.parts import PartRules  # noqa: PLC0415

    info = find_model(model) if isinstance(model, str) else model
    rules = PartRules(info.model, info.provider)
    if info.tokenizer in VOCABULARIES:
        if has_vocabularies():
            return ExactCounter(info.tokenizer, rules=rules)
        error = ESTIMATE_ERROR
    else:
        error = round(math.hypot(ESTIMATE_ERROR, _UNKNOWN_VOCABULARY), 2)
    return EstimateCounter(info.token_scale, error=error, name=f"estimate for {info.model}", rules=rules)
