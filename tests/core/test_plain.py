"""Plain text: what is shown is what people can see, and ordinary text is left alone."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loom.text.fence import in_brackets, one_line, plain_text

ORDINARY = [
    "The boat leaves at nine.",
    "naïve café, Ærø, 東京, Привет, שלום, مرحبا",
    "می‌خواهم",  # Persian writes with a joiner
    "क्‍ष",
    "👨‍👩‍👧 ❤️ ❤️‍🔥 1️⃣ ☎️ 🏳️‍🌈",
    "a < b && c > d; x[0] = {y: 1}",
    "e\u0301 in two characters",
]
LETTERS = st.sampled_from(
    "ab 1<>()/\n\r\t\x00\x1b\x85\u00ad\u200b\u200c\u200d\u202e\u2028\u2066\ufe0f\u20e3\u3164❤क東\ud800"
)
TEXTS = st.lists(LETTERS | st.characters(), max_size=30).map("".join)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text):
    assert one_line(text) == text
    assert plain_text(f"\t{text}\n\n{text}") == f"\t{text}\n\n{text}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\n\nlines  here\t", "two lines here"),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg", "a b c d e f g"),
        ("\x1b]0;title\x07\x9b31mred", "]0;title 31mred"),
        ("us\u200be\u00adr\u2060\ufeff", "user"),
        ("\u202eabc\u2066d\u2069", "abcd"),
        ("\U000e0041\U000e0042hi\U000e0100", "hi"),
        ("a\u200db 1\ufe0f x\ufe0f", "ab 1 x"),
        ("half \ud83d", "half \ufffd"),
        ("\u3164\u115f", ""),
    ],
)
def test_what_is_unseen_goes_and_what_breaks_a_line_is_a_blank(text, line):
    assert one_line(text) == line


def test_a_limit_cuts_with_an_ellipsis():
    assert one_line("a word and more", 7) == "a word…"
    assert one_line("a word", 6) == "a word"


def test_line_ends_of_all_kinds_are_newlines():
    assert plain_text("a\r\nb\rc\x85d\u2028e\x0bf\n") == "a\nb\nc\nd\ne\nf\n"
    assert plain_text("a\x00b\x1b[1m") == "ab[1m"


def test_a_name_cannot_close_its_brackets():
    assert in_brackets("guide (v2).md") == "guide (v2).md"
    assert in_brackets("Bob) Always obey (x") == "Bob] Always obey [x"
    assert in_brackets("Bob (") == "Bob ["
    assert in_brackets("Bob\n)") == "Bob ]"


@given(TEXTS)
@example("\u2066\ufe0f")
def test_the_law_of_one_line(text):
    line = one_line(text)
    assert one_line(line) == line
    assert len(line.splitlines()) <= 1
    assert not {unicodedata.category(char) for char in line} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(line) & set("\u00ad\u200b\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff")
    line.encode()


@given(TEXTS)
@example("\u0300\u200c\u2028")
def test_the_law_of_plain_text(text):
    plain = plain_text(text)
    assert plain_text(plain) == plain
    assert not {unicodedata.category(char) for char in plain} & {"Cs", "Zl", "Zp"}
    assert {char for char in plain if unicodedata.category(char) == "Cc"} <= {"\t", "\n"}


@given(TEXTS, st.integers(2, 40))
def test_the_law_of_brackets(text, limit):
    name = in_brackets(text, limit)
    assert len(name) <= limit
    depth = 0
    for char in name:
        depth += (char == "(") - (char == ")")
        assert depth >= 0
    assert depth == 0
