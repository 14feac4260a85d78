"""Trigger patterns find what Python's own would, and nothing makes them slow."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from loom.context.trigger import MAX_PATTERN, TriggerPattern
from loom.errors import UsageError

texts = st.text(st.sampled_from("aaabbA .\n1"), max_size=9)
atoms = st.sampled_from(
    ["a", "b", "A", ".", r"\.", r"\d", r"\w", r"\S", "[ab]", "[^a]", "[]-]", r"\b", r"\B", "^", "$", " "]
)
counts = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?"])
patterns = st.recursive(
    st.builds("".join, st.lists(atoms, max_size=4))
    | st.tuples(atoms.filter(lambda a: a not in "^$" and a.lower() != "\\b"), counts).map("".join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, counts).map(lambda p: f"({p[0]}){p[1]}"),
        inner.map(lambda p: f"(?:{p})"),
    ),
    max_leaves=5,
)


@given(patterns, texts)
@example("ab", "aab")
@example("^a{1,3}$", "aaa")
@example("^a{1,3}$", "aaaa")
@example("(a|b)*c", "abab")
@example("(a*)*", "b")
@example("$", "a\n")
@example(r"\Bb|^$", "")
def test_it_finds_what_python_finds(pattern, text):
    assert TriggerPattern(pattern).search(text) == bool(re.search(pattern, text, re.IGNORECASE))


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|a)*c", r"(a?){20}a{20}c", r".*.*.*.*c", r"(.*a){9}c", r"((a*)*)*c"]
)
def test_no_pattern_takes_more_steps_than_its_states_times_the_text(pattern):
    machine = TriggerPattern(pattern)
    steps = 0
    step = machine._machine.step

    def counting(states, text, at):
        nonlocal steps
        steps += len(states)
        return step(states, text, at)

    machine._machine.step = counting
    text = "a" * 1000 + "b"
    assert not machine.search(text)
    assert steps <= len(text) * machine._machine._count
    assert steps >= len(text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "a group is not closed"),
        ("a)", r"'\)' has no partner"),
        ("*a", "is not understood here"),
        ("a**", "a repeat is repeated"),
        ("a{3,2}", "is not a repeat"),
        ("a{101}", "is not a repeat from 0 to 100"),
        ("(?=a)", "lookaround"),
        (r"(a)\1", "back references"),
        ("(?i)a", "flags"),
        ("[b-a]", "bad class"),
        ("[a", "is not understood here"),
        ("(" * 30 + ")" * 30, "more than 20 deep"),
        ("((a{99}){99}){99}", "more than 500 states"),
        ("(((){99}){99}){99}", "more than 500 states"),
        ("a" * (MAX_PATTERN + 1), "501 characters"),
    ],
)
def test_what_is_not_supported_is_refused(pattern, why):
    with pytest.raises(UsageError, match=why):
        TriggerPattern(pattern)
