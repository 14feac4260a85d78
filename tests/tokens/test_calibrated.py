"""Learning a model's scale from what responses report."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from itertools import pairwise

import pytest

from loom.core.message import TextPart
from loom.errors import UsageError
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import CalibratedCounter, Calibration, EstimateCounter
from tests.tokens.test_estimate import CHINESE, CODE, PROSE, RECORDS

# A made-up model: each kind of text takes another multiple of the estimate.
FACTORS = {"code": (CODE[:4000], 1.5), "json": (RECORDS, 1.42), "chinese": (CHINESE, 1.3), "prose": (PROSE, 1.38)}


def mixed_texts(count: int, seed: int) -> list[tuple[str, float]]:
    dice = random.Random(seed)
    base = EstimateCounter()
    texts: list[tuple[str, float]] = []
    for i in range(count):
        text, factor = dice.choice(list(FACTORS.values()))
        text = f"{i} {text[: dice.randint(len(text) // 2, len(text))]}"
        texts.append((text, base.count(text) * factor * dice.uniform(0.97, 1.03)))
    return texts


def p95_error(counter: TokenCounter, texts: list[tuple[str, float]]) -> float:
    errors = sorted(abs(counter.count(text) / truth - 1) for text, truth in texts)
    return errors[int(0.95 * len(errors))]


def after(responses: int, *, base_error: float = 0.22) -> CalibratedCounter:
    counter = CalibratedCounter(EstimateCounter(error=base_error))
    for response in range(responses):
        request = mixed_texts(12, seed=response)
        counter.observe(sum(counter.count(text) for text, _ in request), round(sum(truth for _, truth in request)))
    return counter


def test_five_responses_bring_the_error_down() -> None:
    fresh = mixed_texts(200, seed=99)
    before, later = p95_error(after(0), fresh), p95_error(after(5), fresh)
    assert before > 0.25
    assert later < 0.12


def test_the_declared_error_shrinks_and_stays_honest() -> None:
    errors = [after(n).error for n in range(8)]
    assert errors[0] == 0.22
    assert all(later < earlier for earlier, later in pairwise(errors))
    assert p95_error(after(5), mixed_texts(200, seed=98)) <= errors[5]


def test_a_scale_that_is_known_stays_put() -> None:
    counter = CalibratedCounter(EstimateCounter())
    for _ in range(20):
        counter.observe(10_000, 10_000)
    assert counter.scale == pytest.approx(1.0)
    assert counter.error < 0.08


def test_the_scale_is_found_and_applied_to_texts_and_parts() -> None:
    counter = CalibratedCounter(EstimateCounter())
    base = EstimateCounter().count(PROSE)
    for _ in range(10):
        counter.observe(100 * counter.count(PROSE), 100 * 2 * base)
    assert counter.scale == pytest.approx(2.0, rel=0.02)
    assert counter.count(PROSE) == pytest.approx(2 * base, rel=0.02)
    assert counter.count_part(TextPart(PROSE)) == counter.count(PROSE)
    assert counter.count("") == 0


def test_a_prompt_counted_under_an_older_scale() -> None:
    counter = CalibratedCounter(EstimateCounter())
    for _ in range(10):
        counter.observe(5000, 10_000, scale=1.0)
    assert counter.scale == pytest.approx(2.0, rel=0.02)


def test_one_odd_response_does_not_undo_what_many_said() -> None:
    counter = after(8)
    scale = counter.scale
    counter.observe(round(3000 * scale), round(3000 * scale * 50))
    assert counter.scale == pytest.approx(scale, rel=0.15)


def test_a_tiny_response_moves_little() -> None:
    counter = CalibratedCounter(EstimateCounter())
    counter.observe(10, 40)
    assert counter.scale < 1.15
    assert counter.error > 0.14


def test_it_follows_a_model_that_changes() -> None:
    counter = CalibratedCounter(EstimateCounter())
    for factor in (1.0, 1.3):
        for _ in range(20):
            counter.observe(round(5000 * counter.scale), round(5000 * factor))
    assert counter.scale == pytest.approx(1.3, rel=0.02)


def test_what_was_learned_can_be_kept_as_json() -> None:
    counter = after(5)
    kept = json.dumps(asdict(counter.calibration))
    again = CalibratedCounter(EstimateCounter(error=0.22), Calibration(**json.loads(kept)))
    assert again.calibration == counter.calibration
    assert again.count(PROSE) == counter.count(PROSE)
    assert again.error == counter.error


def test_it_says_what_it_is() -> None:
    assert isinstance(after(0), TokenCounter)
    assert after(0).name == "estimate"
    assert after(1).name == "estimate, calibrated on 1 response"
    assert after(3).name == "estimate, calibrated on 3 responses"


def test_an_empty_response_teaches_nothing_and_a_negative_one_is_refused() -> None:
    counter = CalibratedCounter(EstimateCounter())
    counter.observe(0, 100)
    counter.observe(100, 0)
    assert counter.calibration == Calibration()
    with pytest.raises(UsageError, match="neither can be negative"):
        counter.observe(-1, 5)
