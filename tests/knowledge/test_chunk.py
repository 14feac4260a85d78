from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.errors import UsageError
from loom.text.passages import chunks, sentences

_TEXTS = st.text(alphabet=st.sampled_from("ab .!?\n\t。é"), max_size=300) | st.text(max_size=120)


def _pieces(text, **how):
    return [text[start:end] for start, end in chunks(text, **how)]


def test_pieces_end_with_sentences_and_repeat_the_last_one():
    text = "One is here. Two is there. Three is far. Four is near."
    assert _pieces(text, size=30, overlap=15) == [
        "One is here. Two is there.", "Two is there. Three is far.", "Three is far. Four is near.",
    ]  # fmt: skip
    assert _pieces(text, size=30, overlap=0) == ["One is here. Two is there.", "Three is far. Four is near."]


def test_a_short_text_is_one_piece_without_the_spaces_around_it():
    assert chunks("  hello there \n") == [(2, 13)]
    assert chunks(" \n ") == []


def test_a_long_sentence_is_cut_at_a_space_and_a_long_word_anywhere():
    assert _pieces("alpha beta gamma delta", size=12, overlap=0) == ["alpha beta", "gamma delta"]
    assert _pieces("abcdefghij", size=4, overlap=0) == ["abcd", "efgh", "ij"]


def test_paragraphs_and_other_scripts_are_cut_too():
    assert [("x\n\ny z")[start:end] for start, end in sentences("x\n\ny z")] == ["x", "y z"]
    text = "我喜欢茶。他喜欢咖啡。"
    assert [text[start:end] for start, end in sentences(text)] == ["我喜欢茶。", "他喜欢咖啡。"]


@given(text=_TEXTS, size=st.integers(1, 60), share=st.floats(0, 0.99))
def test_every_character_is_in_a_piece_in_order_and_none_is_too_long(text, size, share):
    spans = chunks(text, size=size, overlap=int(size * share))
    covered = {place for start, end in spans for place in range(start, end)}
    assert {place for place, char in enumerate(text) if not char.isspace()} <= covered
    assert all(0 < end - start <= size for start, end in spans)
    assert all(text[start:end] == text[start:end].strip() for start, end in spans)
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(spans))


@pytest.mark.parametrize(("size", "overlap"), [(10, 10), (10, -1), (0, 0)])
def test_an_overlap_that_never_moves_on_is_refused(size, overlap):
    with pytest.raises(UsageError, match="cannot overlap"):
        chunks("text", size=size, overlap=overlap)
