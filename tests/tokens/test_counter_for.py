"""Choosing the counter of a model."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest

from loom.catalog import find_model
from loom.core.message import ImagePart
from loom.protocols.token_counter import TokenCounter
from loom.text.tokens import EstimateCounter, ExactCounter, counter_for
from tests.tokens.test_estimate import PROSE
from tests.tokens.test_images import png


def test_a_public_vocabulary_is_counted_exactly() -> None:
    pytest.importorskip("splintr")
    counter = counter_for("gpt-5.2")
    assert isinstance(counter, ExactCounter)
    assert (counter.name, counter.error) == ("o200k (exact)", 0.0)


def test_without_the_package_it_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    counter = counter_for("gpt-5.2")
    assert isinstance(counter, EstimateCounter)
    assert (counter.name, counter.error) == ("estimate for gpt-5.2", 0.16)


def test_claude_is_estimated_with_its_scale() -> None:
    plain = EstimateCounter().count(PROSE)
    newer, older = counter_for("claude-opus-5-5"), counter_for(find_model("claude-sonnet-4-5"))
    assert newer.count(PROSE) == pytest.approx(1.55 * plain, rel=0.01)
    assert older.count(PROSE) == pytest.approx(1.2 * plain, rel=0.01)
    assert newer.error == 0.22
    assert newer.name == "estimate for claude-opus-5-5"


def test_pictures_follow_the_model() -> None:
    picture = ImagePart(base64.b64encode(png(1024, 1024)).decode(), "image/png")
    assert counter_for("claude-opus-5-5").count_part(picture) == 37 * 37
    assert counter_for("gemini-3.8-flash").count_part(picture) == 1100
    assert counter_for("gpt-6-sol").count_part(picture) == 1229


@pytest.mark.parametrize(
    "model", ["claude-sonnet-5", "gpt-6.1-sol", "gemini-3.8-flash", "vllm:anything", "nobody-knows"]
)
def test_every_model_has_a_counter(model: str) -> None:
    counter = counter_for(model)
    assert isinstance(counter, TokenCounter)
    assert 0 < counter.error < 0.5
    assert counter.count("") == 0
    assert counter.count(PROSE) > 100


def test_importing_loads_no_vocabulary() -> None:
    code = "import loom.text.tokens, sys; print([m for m in sys.modules if m.startswith('splintr')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
