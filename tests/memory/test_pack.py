import pytest

from loom.errors import UsageError
from loom.memory._recall.recall import LeftOut, PackItem, pack


def piece(id, tokens=10, *, text=None, sources=()):
    return PackItem(id=id, text=text or f"text of {id}", tokens=tokens, sources=sources)


def ids(packed):
    return [p.id for p in packed.pieces]


def test_without_a_budget_everything_is_kept_in_order():
    packed = pack([piece("b"), piece("a", 7)])
    assert (ids(packed), packed.tokens, packed.left_out) == (["b", "a"], 17, ())


def test_a_piece_too_long_makes_room_for_shorter_ones():
    packed = pack([piece("a", 60), piece("b", 50), piece("c", 40)], budget=100)
    assert (ids(packed), packed.tokens) == (["a", "c"], 100)
    assert packed.left_out == (LeftOut("b", "too long"),)


def test_a_limit_counts_pieces():
    packed = pack([piece("a"), piece("b"), piece("c")], limit=2)
    assert ids(packed) == ["a", "b"]
    assert packed.left_out == ()


def test_what_is_made_from_a_packed_source_repeats_it_and_the_other_way_round():
    summary = piece("s", sources=("t1",))
    assert pack([piece("t1"), summary]).left_out == (LeftOut("s", "repeats", "t1"),)
    assert pack([summary, piece("t1")]).left_out == (LeftOut("t1", "repeats", "s"),)


def test_a_summary_with_one_untold_source_is_kept():
    assert ids(pack([piece("t1"), piece("s", sources=("t1", "t2")), piece("t2")])) == ["t1", "s"]


def test_equal_texts_are_packed_once():
    same = ["i  like TEA", "I like tea.", "I like tea!!", "I like tea \u2026"]
    packed = pack([piece("a", text="I like tea"), *(piece(text, text=text) for text in same)])
    assert packed.left_out == tuple(LeftOut(text, "repeats", "a") for text in same)
    assert ids(pack([piece("a", text="I like tea"), piece("b", text="I like tea?")])) == ["a", "b"]


def test_what_did_not_fit_tells_nothing():
    packed = pack([piece("t1", 50), piece("s", 5, sources=("t1",))], budget=10)
    assert ids(packed) == ["s"]


@pytest.mark.parametrize("wrong", [{"budget": -1}, {"limit": -2}])
def test_negative_bounds_are_refused(wrong):
    with pytest.raises(UsageError, match="give 0 or more"):
        pack([], **wrong)
