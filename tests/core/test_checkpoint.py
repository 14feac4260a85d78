from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.log import FORMAT_VERSION, Checkpoint, Compaction, LoggedMessage, Replacement, Shown, shown_of
from loom.core.message import Message, Usage
from loom.errors import FormatTooNew, UsageError

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def a_log(n: int) -> list[LoggedMessage]:
    return [LoggedMessage(f"m{i}", T0, Message.user(str(i))) for i in range(n)]


def a_compaction(id: str, *replacements: Replacement) -> Compaction:
    return Compaction(id=id, at=T0, strategy="test", replacements=replacements, tokens_before=9, tokens_after=1)


def summary(text: str, *covers: str) -> Replacement:
    return Replacement(covers, Message.user(text))


def texts(shown: tuple[Shown, ...]) -> list[tuple[str, str]]:
    return [(item.id, item.message.text) for item in shown]


def test_a_compaction_replaces_runs_and_drops_others():
    compaction = a_compaction("c1", summary("first two", "m0", "m1"), Replacement(("m3",), None))
    log = [*a_log(5), compaction]
    assert texts(shown_of(log, ["c1"])) == [("c1.0", "first two"), ("m2", "2"), ("m4", "4")]


def test_undo_is_leaving_the_compaction_out():
    log = [*a_log(4), a_compaction("c1", summary("s", "m0", "m1", "m2"))]
    before = shown_of(a_log(4), [])
    assert shown_of(log, ["c1"]) != before
    assert shown_of(log, []) == before


def test_a_later_compaction_may_cover_an_earlier_one():
    first = a_compaction("c1", summary("0-1", "m0", "m1"))
    second = a_compaction("c2", summary("0-2", "c1.0", "m2"))
    log = [*a_log(4), first, second]
    assert texts(shown_of(log, ["c1", "c2"])) == [("c2.0", "0-2"), ("m3", "3")]
    assert texts(shown_of(log, ["c1"])) == [("c1.0", "0-1"), ("m2", "2"), ("m3", "3")]
    with pytest.raises(UsageError, match="not a run of what is shown"):
        shown_of(log, ["c2"])


@pytest.mark.parametrize("covers", [("m0", "m2"), ("m1", "m0"), ("m3", "m4"), ("x",)])
def test_only_runs_can_be_covered(covers: tuple[str, ...]):
    with pytest.raises(UsageError, match="not a run"):
        a_compaction("c1", Replacement(covers, None)).apply(shown_of(a_log(4), []))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Replacement((), None),
        lambda: Replacement(("a", "a"), None),
        lambda: a_compaction("c1"),
        lambda: a_compaction("c1", summary("x", "a", "b"), summary("y", "b")),
        lambda: a_compaction("", summary("x", "a")),
    ],
)
def test_rewrites_that_mean_nothing_are_refused(make):
    with pytest.raises(UsageError):
        make()


def test_a_compaction_that_is_not_in_the_log_is_missed():
    with pytest.raises(UsageError, match="no compaction c9"):
        shown_of(a_log(2), ["c9"])


@st.composite
def cuts(draw) -> tuple[int, list[tuple[int, int, bool]]]:
    """A number of messages, and separate runs of them to replace or drop."""
    size = draw(st.integers(1, 12))
    ends = sorted(draw(st.sets(st.integers(0, size), min_size=2, max_size=8)))
    runs = [(a, b, draw(st.booleans())) for a, b in pairwise(ends) if draw(st.booleans())]
    return size, runs or [(0, size, True)]


@given(cuts())
def test_what_is_not_covered_stays_and_what_is_covered_is_replaced_in_place(
    case: tuple[int, list[tuple[int, int, bool]]],
):
    size, runs = case
    replacements = [
        Replacement(tuple(f"m{i}" for i in range(a, b)), Message.user(f"{a}-{b}") if kept else None)
        for a, b, kept in runs
    ]
    expected: list[str] = []
    for i in range(size):
        run = next(((a, b, kept) for a, b, kept in runs if a <= i < b), None)
        if run is None:
            expected.append(str(i))
        elif run[0] == i and run[2]:
            expected.append(f"{run[0]}-{run[1]}")
    log = [*a_log(size), a_compaction("c", *replacements)]
    assert [item.message.text for item in shown_of(log, ["c"])] == expected


def test_a_checkpoint_is_a_value():
    checkpoint = Checkpoint(
        id="k1", session_id="s1", at=T0, position=4, turn=2, compactions=("c1",), usage=Usage(input=7)
    )
    assert checkpoint == Checkpoint(
        id="k1", session_id="s1", at=T0, position=4, turn=2, compactions=("c1",), usage=Usage(input=7)
    )
    assert (checkpoint.parent, checkpoint.format_version) == (None, FORMAT_VERSION)


@pytest.mark.parametrize(
    "change", [{"position": -1}, {"turn": -1}, {"id": ""}, {"session_id": " "}, {"at": T0.replace(tzinfo=None)}]
)
def test_checkpoints_that_mean_nothing_are_refused(change):
    good: dict[str, Any] = {"id": "k1", "session_id": "s1", "at": T0, "position": 0, "turn": 0}
    with pytest.raises(UsageError):
        Checkpoint(**{**good, **change})


def test_a_newer_format_is_refused_by_name():
    with pytest.raises(FormatTooNew, match=f"format {FORMAT_VERSION + 1}"):
        Checkpoint(id="k1", session_id="s1", at=T0, position=0, turn=0, format_version=FORMAT_VERSION + 1)
