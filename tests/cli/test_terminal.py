"""Breaking lines between words while the text is still coming."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loom.cli.terminal import Wrap

WORDS = st.lists(st.text("abcdefgh,.", min_size=1, max_size=9), min_size=1, max_size=40)


def wrapped(text, width, size=3):
    wrap = Wrap(width)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join([*map(wrap.feed, pieces), wrap.flush()])


@given(WORDS, st.integers(10, 40), st.integers(1, 12))
def test_plain_words_are_broken_as_textwrap_breaks_them(words, width, size):
    text = " ".join(words)
    assert wrapped(text, width, size).splitlines() == textwrap.wrap(text, width, break_on_hyphens=False)


@given(st.text("ab 日本語、。「」é👩\u200d👧\u0301\n", max_size=60), st.integers(8, 20), st.integers(1, 9))
def test_how_the_text_is_cut_makes_no_difference_and_nothing_is_lost(text, width, size):
    out = wrapped(text, width, size)
    assert out == wrapped(text, width, max(1, len(text)))
    assert out.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")


def test_wide_characters_count_twice_and_marks_do_not_begin_a_line():
    text = "日本語のテキストは空白がありませんので、どこでも改行できます。"
    lines = wrapped(text, 12).splitlines()
    assert max(map(cell_len, lines)) <= 14, "a mark may stand behind the last character"
    assert len(lines) > 4
    assert not any(line.startswith(("、", "。")) for line in lines)
    assert "".join(lines) == text


def test_characters_that_are_joined_stay_together():
    family = "👩\u200d👩\u200d👧"
    assert wrapped(f"{family}{family}", 3, 1).splitlines() == [family, family]


@pytest.mark.parametrize("fence", ["```", "```python"])
def test_code_is_left_as_it_is(fence):
    code = "print('a line of code', 'that is much longer than the terminal is wide')"
    text = f"Try this one here:\n{fence}\n    {code}\n```\nand then go on as before."
    lines = wrapped(text, 12).splitlines()
    assert f"    {code}" in lines
    assert lines[-3:] == ["and then go", "on as", "before."] or lines[-2:] == ["and then go", "on as before."]


def test_a_long_word_is_whole_and_the_next_one_goes_on():
    url = "https://example.org/" + "a" * 50
    assert url in wrapped(f"See {url} for more.", 20).splitlines()[1]


def test_lines_and_indents_of_the_text_stay():
    text = "- one\n  - two\n\n3. three"
    assert wrapped(text, 40) == text
