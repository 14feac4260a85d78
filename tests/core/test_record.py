from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.record import Episode, Fact, Layer, Provenance, Receipt, WorkingBlock, with_attributes
from loom.errors import UsageError

T0 = datetime(2026, 1, 1, tzinfo=UTC)
USER = Provenance("user", trusted=True)


def day(n: int | None) -> datetime | None:
    return None if n is None else T0 + timedelta(days=n)


def an_episode(**changes) -> Episode:
    values: dict[str, Any] = {"id": "e1", "text": "I moved to Tokyo", "at": T0, "recorded_at": T0, "provenance": USER}
    return Episode(**{**values, **changes})


def a_fact(**changes) -> Fact:
    values: dict[str, Any] = {
        "id": "f1",
        "subject": "alice",
        "predicate": "lives_in",
        "object": "Tokyo",
        "recorded_at": T0,
        "provenance": USER,
    }
    return Fact(**{**values, **changes})


def test_layers_have_two_names_and_an_order():
    assert [layer.name for layer in Layer] == ["WORKING", "SESSION", "EPISODIC", "SEMANTIC"]
    assert [layer.label for layer in Layer] == ["L1", "L2", "L3", "L4"]
    assert Layer.L3 is Layer.EPISODIC
    assert Layer.WORKING < Layer.SEMANTIC


def test_more_attributes_change_nothing_else():
    episode = an_episode(
        session_id="s", speaker="Ann", layer=2, sources=("e0",), attributes={"turn": 1, "mood": "glad"}
    )
    more = with_attributes(episode, {"turn": 2, "seen": T0.astimezone(timezone(timedelta(hours=2)))})
    assert more == replace(episode, attributes={"turn": 2, "mood": "glad", "seen": T0})
    assert more.attributes["seen"].tzinfo is UTC
    assert episode.attributes == {"turn": 1, "mood": "glad"}
    with pytest.raises(UsageError, match="'turn' is nan"):
        with_attributes(episode, {"turn": float("nan")})


@given(st.lists(st.booleans(), min_size=1))
def test_what_is_derived_is_trusted_only_if_all_of_it_is(trusts: list[bool]):
    inputs = [Provenance("user", trusted=trust) for trust in trusts]
    derived = Provenance.derived(inputs)
    assert derived == Provenance("derived", trusted=False not in trusts)
    assert Provenance.derived([derived, Provenance("web")]).trusted is False


def test_trust_is_never_a_default():
    assert Provenance("operator").trusted is False
    with pytest.raises(UsageError, match="no inputs"):
        Provenance.derived([])
    with pytest.raises(UsageError, match="'root'"):
        Provenance("root")  # pyright: ignore[reportArgumentType]


DAYS = range(5)
ENDS = [None, *DAYS]


def oracle(start: int | None, end: int | None, at: int) -> bool:
    """Membership by listing the days, not by comparing ends."""
    days = range(-10 if start is None else start, 20 if end is None else end)
    return at in days


def test_is_current_against_a_grid():
    checked = 0
    for valid_from, valid_until, recorded, superseded in product(ENDS, ENDS, DAYS, ENDS):
        if valid_from is not None and valid_until is not None and valid_until < valid_from:
            continue
        if superseded is not None and superseded < recorded:
            continue
        fact = a_fact(
            valid_from=day(valid_from),
            valid_until=day(valid_until),
            recorded_at=day(recorded),
            superseded_at=day(superseded),
        )
        for at, known_at in product(range(-1, 6), range(-1, 6)):
            expected = oracle(valid_from, valid_until, at) and oracle(recorded, superseded, known_at)
            assert fact.is_current(T0 + timedelta(days=at), T0 + timedelta(days=known_at)) == expected
            checked += 1
    assert checked == 26 * 20 * 49


def test_intervals_are_half_open_to_the_microsecond():
    fact = a_fact(valid_from=day(1), valid_until=day(2))
    tick = timedelta(microseconds=1)
    known = T0 + timedelta(days=9)
    assert fact.is_current(T0 + timedelta(days=1), known)
    assert not fact.is_current(T0 + timedelta(days=1) - tick, known)
    assert fact.is_current(T0 + timedelta(days=2) - tick, known)
    assert not fact.is_current(T0 + timedelta(days=2), known)


def test_is_current_compares_moments_not_wall_clocks():
    fact = a_fact(valid_from=T0)
    tokyo = timezone(timedelta(hours=9))
    assert fact.is_current(datetime(2026, 1, 1, 9, tzinfo=tokyo), T0)
    assert not fact.is_current(datetime(2026, 1, 1, 8, 59, tzinfo=tokyo), T0)
    with pytest.raises(UsageError, match="known_at"):
        fact.is_current(T0, datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("name", ["at", "recorded_at", "accessed_at", "archived_at"])
def test_naive_times_are_refused_in_episodes(name: str):
    with pytest.raises(UsageError, match=f"{name} of episode e1"):
        an_episode(**{name: datetime(2026, 1, 1)})  # noqa: DTZ001


@pytest.mark.parametrize("name", ["recorded_at", "valid_from", "valid_until", "superseded_at"])
def test_naive_times_are_refused_in_facts(name: str):
    with pytest.raises(UsageError, match=f"{name} of fact f1"):
        a_fact(**{name: datetime(2026, 1, 1)})  # noqa: DTZ001


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: an_episode(text=""), "empty"),
        (lambda: an_episode(text=" \n"), "empty"),
        (lambda: an_episode(text="a\0"), "NUL"),
        (lambda: an_episode(text="a\udc00"), "surrogate"),
        (lambda: an_episode(layer=5), "no layer 5"),
        (lambda: an_episode(speaker="a\0"), "speaker of episode e1"),
        (lambda: an_episode(sources="e0"), "tuple of ids"),
        (lambda: a_fact(sources=("",)), "a source of fact f1"),
        (lambda: an_episode(id=""), "id of an episode"),
        (lambda: an_episode(importance=1.5), "importance"),
        (lambda: an_episode(accesses=-1), "accesses"),
        (lambda: an_episode(session_id=" "), "session_id"),
        (lambda: an_episode(attributes={"score": float("nan")}), "finite"),
        (lambda: an_episode(attributes={"list": [1]}), "list"),
        (lambda: an_episode(attributes={"": 1}), "name of an attribute"),
        (lambda: a_fact(object=""), "object of fact f1"),
        (lambda: a_fact(confidence=-1), "confidence"),
        (lambda: a_fact(cardinality="many"), "cardinality 'many'"),
        (lambda: a_fact(valid_from=day(2), valid_until=day(1)), "valid from .* before the start"),
        (lambda: a_fact(recorded_at=day(2), superseded_at=day(1)), "believed from"),
        (lambda: WorkingBlock(name="", text="x", updated_at=T0, provenance=USER), "name of a working block"),
        (lambda: WorkingBlock(name="a", text="x", updated_at=T0, provenance=USER, version=0), "version 0"),
    ],
)
def test_records_that_mean_nothing_are_refused(make, why: str):
    with pytest.raises(UsageError, match=why):
        make()


def test_a_megabyte_of_unicode_is_a_text():
    text = "é😀" * 180_000
    assert an_episode(text=text).text == text


def test_records_are_values():
    tags = {"project": "x"}
    episode = an_episode(attributes=tags)
    tags["project"] = "y"
    assert episode.attributes == {"project": "x"}
    assert episode == an_episode(attributes={"project": "x"})
    assert hash(episode) == hash(an_episode(attributes={"project": "x"}))
    assert replace(episode, layer=2).layer is Layer.SESSION
    with pytest.raises(FrozenInstanceError):
        episode.text = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_times_are_stored_in_utc():
    tokyo = timezone(timedelta(hours=9))
    episode = an_episode(
        at=datetime(2026, 1, 1, 9, tzinfo=tokyo), attributes={"due": datetime(2026, 1, 1, 9, tzinfo=tokyo)}
    )
    assert episode.at.isoformat() == "2026-01-01T00:00:00+00:00"
    assert episode.attributes["due"] == T0


def test_ids_and_texts():
    block = WorkingBlock(name="persona", text="", updated_at=T0, provenance=USER)
    assert (block.id, block.kind, block.version) == ("block:persona", "block", 1)
    assert a_fact().text == "alice lives_in Tokyo"
    assert (an_episode().kind, a_fact().kind) == ("episode", "fact")
    assert Receipt(removed={"episode": 3}).pending == ()
