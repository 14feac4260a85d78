"""The layers: their table, what moves up, what leaves, and in which order."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from loom.core.record import Episode, Layer, Provenance
from loom.errors import UsageError
from loom.memory._upkeep.metabolism import deserves_promotion, is_critical, sort_layer
from loom.memory.config import MemoryConfig, MemoryLayerConfig, MemoryStrategyType

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def episode(n, *, layer=Layer.L1, age_hours=0.0, text=None, **fields):
    made = NOW - timedelta(hours=age_hours)
    return Episode(
        id=f"e{n:03}",
        text=text or f"we talked about topic {n}",
        at=made,
        recorded_at=made,
        provenance=Provenance("user"),
        layer=layer,
        **fields,
    )


def test_the_table_of_the_design():
    config = MemoryConfig()
    layers = (config.l1, config.l2, config.l3, config.l4)
    table = [(s.capacity, s.retention_hours, s.promote_threshold, s.auto_compress) for s in layers]
    assert table == [(10, 1, 3, True), (50, 24, 5, True), (200, 168, 10, True), (1000, None, 0, False)]
    assert config.strategy is MemoryStrategyType.SIMPLE
    assert MemoryConfig(strategy="importance_based").strategy is MemoryStrategyType.IMPORTANCE_BASED


@pytest.mark.parametrize(
    "bad",
    [
        {"capacity": 0},
        {"capacity": 2_000_000},
        {"retention_hours": 0},
        {"retention_hours": -1},
        {"promote_threshold": -1},
    ],
)
def test_settings_that_mean_nothing_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        MemoryLayerConfig(**bad)


@pytest.mark.parametrize(("layer", "threshold"), [(Layer.L1, 3), (Layer.L2, 5), (Layer.L3, 10)])
def test_promotion_by_access_count(layer, threshold):
    config = MemoryConfig()
    below, enough = (episode(n, layer=layer, accesses=n) for n in (threshold - 1, threshold))
    assert not deserves_promotion(below, config, now=NOW)
    assert deserves_promotion(enough, config, now=NOW)


def test_nothing_leaves_the_last_layer_upwards():
    found = sort_layer([episode(1, layer=Layer.L4, accesses=99)], Layer.L4, MemoryConfig(), now=NOW)
    assert (found.promote, len(found.keep)) == ((), 1)


@pytest.mark.parametrize("text", ["the build failed again", "We decided to use Postgres", "I am allergic to nuts"])
def test_errors_and_decisions_are_kept_for_what_they_say(text):
    assert is_critical(episode(1, text=text))
    assert not is_critical(episode(1, text="nice weather today"))


def test_strategies():
    important, old = episode(1, importance=0.7), episode(2, age_hours=0.6, accesses=1)
    by = {s: MemoryConfig(strategy=s) for s in MemoryStrategyType}
    decided = {s: [deserves_promotion(e, c, now=NOW) for e in (important, old)] for s, c in by.items()}
    assert decided == {
        MemoryStrategyType.SIMPLE: [True, False],
        MemoryStrategyType.IMPORTANCE_BASED: [True, False],
        MemoryStrategyType.TIME_BASED: [True, True],
    }
    above = replace(important, layer=Layer.L2)
    assert [deserves_promotion(above, by[s], now=NOW) for s in by] == [False, False, True], "only one strategy goes on"
    nothing = MemoryConfig(importance_threshold=0.0)
    assert not deserves_promotion(episode(3), nothing, now=NOW), "what nobody marked is not important"


def test_the_least_valuable_leave_a_full_layer_and_the_most_important_never_do():
    config = MemoryConfig(l2=MemoryLayerConfig(capacity=3, promote_threshold=0))
    values = [0.9, 0.8, 0.7, 0.85]
    found = sort_layer(
        [episode(n, layer=Layer.L2, importance=v) for n, v in enumerate(values)], Layer.L2, config, now=NOW
    )
    assert [e.importance for e in found.archive] == [0.7]
    assert [e.importance for e in found.keep] == [0.9, 0.85, 0.8]


def test_at_equal_importance_the_one_not_asked_for_leaves():
    config = MemoryConfig(l1=MemoryLayerConfig(capacity=1))
    asked, silent = episode(1, accesses=2), episode(2)
    assert sort_layer([asked, silent], Layer.L1, config, now=NOW).archive == (silent,)


@pytest.mark.parametrize(("layer", "hours"), [(Layer.L1, 1), (Layer.L2, 24), (Layer.L3, 168)])
def test_retention_is_enforced(layer, hours):
    fresh, old = episode(1, layer=layer, age_hours=hours - 0.01), episode(2, layer=layer, age_hours=hours)
    found = sort_layer([fresh, old], layer, MemoryConfig(), now=NOW)
    assert (found.keep, found.archive) == ((fresh,), (old,))


def test_none_is_unbounded():
    config = MemoryConfig(l1=MemoryLayerConfig(capacity=None, retention_hours=None, promote_threshold=0))
    many = [episode(n, age_hours=n * 1000) for n in range(500)]
    assert len(sort_layer(many, Layer.L1, config, now=NOW).keep) == 500


def test_what_is_archived_or_elsewhere_does_not_count():
    archived = replace(episode(1), archived_at=NOW)
    found = sort_layer([archived, episode(2, layer=Layer.L2)], Layer.L1, MemoryConfig(), now=NOW)
    assert (found.keep, found.archive, found.promote) == ((), (), ())
