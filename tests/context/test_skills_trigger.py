"""Trigger patterns find what Python's own would, and nothing makes them slow."""

import re
from time import thread_time

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from loom.context.skills import MAX_PATTERN, TriggerPattern
from loom.errors import UsageError

texts = st.text(st.sampled_from("aaabbA .\n1"), max_size=9).map(str.strip).filter(bool)  # as a matcher gives them
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
@example(r"\Bb|^$", "b")
def test_it_finds_what_python_finds(pattern, text):
    assert TriggerPattern(pattern).search(text) == bool(re.search(pattern, text, re.IGNORECASE))


HOSTILE = [r"(a+)+$", r"(a|a)*c", r"(a?){20}a{20}c", r".*.*.*.*c", r"(.*a){9}c", r"((a*)*)*c", r"(a{1,31}){1,31}c"]


def seconds(pattern: TriggerPattern, chars: int) -> float:
    """The least CPU seconds of some searches that find nothing."""
    text, spent = "a" * chars + "b", []
    for _ in range(5):
        began = thread_time()
        assert not pattern.search(text)
        spent.append(thread_time() - began)
    return min(spent)


@pytest.mark.parametrize("pattern", HOSTILE)
def test_the_time_of_a_search_grows_with_the_text_and_no_faster(pattern):
    compiled = TriggerPattern(pattern)
    grown = [seconds(compiled, 16_000) / max(seconds(compiled, 1_000), 20e-6) for _ in range(3)]
    assert min(grown) < 64, "sixteen times the text: a linear search takes 16 times as long, a quadratic one 256 times"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        ("*a", "repetition operator missing expression"),
        ("a{3,2}", "invalid repetition count range"),
        ("(?=a)", "has lookaround, a named group or flags"),
        ("(?i)a", "flags"),
        ("(?x)#[\n(a{99}){99}", "flags"),
        (r"(a)\1", "backreferences are not supported"),
        ("[b-a]", "invalid character class range"),
        ("[a", "unclosed character class"),
        ("((a{99}){99}){99}", "repeats more than 1,000 characters; repeat less"),
        ("(((){99}){99}){99}", "repeats more than 1,000"),
        ("a{9}*{9}+{9}?{9}", "repeats more than 1,000"),
        ("[(]{99}(?:[)]{99}){99}", "repeats more than 1,000"),
        (r"\w{999}", "exceeds size limit"),
        ("a" * (MAX_PATTERN + 1), "501 characters"),
    ],
)
def test_what_is_not_supported_is_refused(pattern, why):
    with pytest.raises(UsageError, match=why):
        TriggerPattern(pattern)


def test_half_a_surrogate_pair_is_a_character_like_others():
    assert TriggerPattern("a.b").search("a\ud800b")
    assert TriggerPattern("\ud800?b").search("ab")
