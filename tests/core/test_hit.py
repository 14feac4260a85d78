from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.record import Episode, Hit, Passage, Provenance, rank_key
from loom.errors import UsageError

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def a_passage(id: str = "p1", **changes) -> Passage:
    values: dict[str, Any] = {
        "id": id,
        "document_id": "d1",
        "text": "Bearer tokens",
        "start": 4,
        "end": 17,
        "provenance": Provenance("file"),
    }
    return Passage(**{**values, **changes})


def test_a_hit_carries_a_record_or_a_passage_and_why():
    episode = Episode(id="e1", text="tea", at=T0, recorded_at=T0, provenance=Provenance("user"))
    why = {"bm25": 1.5, "dense": 0.25}
    hit = Hit(episode, 1.75, why)
    why.clear()
    assert hit.item is episode
    assert hit.why == {"bm25": 1.5, "dense": 0.25}
    assert Hit(a_passage(), 1).item.kind == "passage"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_are_finite(bad: float):
    with pytest.raises(UsageError, match="score="):
        Hit(a_passage(), bad)
    with pytest.raises(UsageError, match="bm25="):
        Hit(a_passage(), 1.0, {"bm25": bad})


@given(st.lists(st.integers(0, 3), max_size=30), st.integers())
def test_rank_is_total_and_does_not_depend_on_the_input_order(scores: list[int], seed: int):
    hits = [Hit(a_passage(f"p{n:02}"), score) for n, score in enumerate(scores)]
    ranked = sorted(hits, key=rank_key)
    Random(seed).shuffle(hits)
    assert sorted(hits, key=rank_key) == ranked
    assert [hit.score for hit in ranked] == sorted(scores, reverse=True)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 3), (5, 2)])
def test_a_passage_has_a_real_place(start: int, end: int):
    with pytest.raises(UsageError, match="0 <= start < end"):
        a_passage(start=start, end=end)
