from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.record import Fact, Provenance
from loom.memory._facts.entities import (
    Aliases,
    cardinality_of,
    is_known_multi,
    is_known_single,
    normalise,
    predicate_key,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def fact(subject: str, predicate: str, object: str, **changes) -> Fact:
    return Fact(
        id=f"{subject}{object}",
        subject=subject,
        predicate=predicate,
        object=object,
        recorded_at=T0,
        provenance=Provenance("user"),
        **changes,
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Bob", "bob"),
        ("  BOB. ", "bob"),
        ("Bob's", "bob"),
        ("James'", "james"),
        ("Bob\u2019s", "bob"),
        ("the Beatles", "beatles"),
        ("a  dog", "dog"),
        ("my sister", "sister"),
        ("Anna's sister", "anna's sister"),
        ("\uff22\uff4f\uff42", "bob"),
        ("Stra\u00dfe", "strasse"),
        ("Cafe\u0301", "caf\u00e9"),
        ("New\u00a0York", "new york"),
        *((name, "user") for name in ("I", "me", "My", "myself", "the user", "User", "USER's")),
        ("the", "the"),
        ("...", "..."),
        ("A", "a"),
    ],
)
def test_names_with_one_key(name, key):
    assert normalise(name) == key


@given(st.text(min_size=1))
def test_a_key_is_its_own_key_for_case_and_space(name):
    assert normalise(f"  {name}\t") == normalise(name)
    assert normalise(name) != "" or name.strip() == ""


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("lives in", "lives_in"),
        ("livesIn", "lives_in"),
        ("Lives-In", "lives_in"),
        ("moved to", "lives_in"),
        ("based in", "lives_in"),
        ("is currently living in", "lives_in"),
        ("works for", "works_at"),
        ("employer", "works_at"),
        ("job title", "works_as"),
        ("aka", "also_called"),
        ("date of birth", "birthday"),
        ("spouse", "married_to"),
        ("favorite colour", "favourite_colour"),
        ("favouriteBand", "favourite_band"),
        ("loves", "likes"),
        ("Plays chess with", "plays_chess_with"),
        ("nowhere_near", "nowhere_near"),
    ],
)
def test_predicates_with_one_name(said, key):
    assert predicate_key(said) == key
    assert predicate_key(key) == key


def test_cardinality_is_stated_or_known_or_multi():
    assert [cardinality_of(p) for p in ("lives in", "favorite food", "speaks", "drives")] == [
        "single",
        "single",
        "multi",
        "multi",
    ]
    assert (cardinality_of("speaks", "single"), cardinality_of("lives_in", "multi")) == ("single", "multi")
    assert (is_known_single("drives"), is_known_multi("drives")) == (False, False)
    assert (is_known_single("name"), is_known_multi("likes")) == (True, True)


def test_aliases_join_names_in_any_order():
    facts = [fact("Robert", "also called", "Bob"), fact("Bobby", "aka", "Bob"), fact("I", "name", "Alice")]
    for order in (facts, facts[::-1]):
        aliases = Aliases.of(order)
        assert {aliases.key(n) for n in ("robert", "BOB", "Bobby")} == {"bob"}
        assert (aliases.key("Alice's"), aliases.key("Carol")) == ("user", "carol")


def test_what_is_retired_or_names_somebody_else_joins_nothing():
    aliases = Aliases.of(
        [fact("Bob", "aka", "Rob", superseded_at=T0), fact("sister", "name", "Anna"), fact("Bob", "likes", "Rome")]
    )
    assert [aliases.key(n) for n in ("Rob", "Anna", "Rome")] == ["rob", "anna", "rome"]
