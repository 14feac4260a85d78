import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.core.clock import ALPHABET, CROCKFORD, SHARED, RecordIds, ShortIds, last_id_at
from loom.errors import UsageError
from loom.testing import FakeClock


def test_the_alphabet_has_no_look_alikes():
    assert len(ALPHABET) == len(set(ALPHABET)) == 31
    assert not set(ALPHABET) & set("01ilo")
    assert ALPHABET.islower()


@pytest.mark.parametrize("start", [0, 1, 12345, 29_790, 2**127])
def test_short_ids_never_repeat_and_grow_in_order(start: int):
    source = ShortIds(start)
    ids = [source.next_id() for _ in range(100_000)]
    assert len(set(ids)) == 100_000
    assert {len(id) for id in ids[:29_791]} == {3}
    assert {len(id) for id in ids[29_791:]} == {4}
    assert set("".join(ids[:29_791])) == set(ALPHABET)


def test_five_characters_follow_four():
    source = ShortIds(7)
    for _ in range(3):
        source._widen()
    ids = {source.next_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(id) for id in ids} == {5}


def test_neighbours_do_not_look_alike():
    source = ShortIds(0)
    ids = [source.next_id() for _ in range(1000)]
    assert sum(a[0] == b[0] for a, b in pairwise(ids)) < 20


def test_the_start_decides_the_walk():
    assert [ShortIds(5).next_id(), ShortIds(6).next_id()] == ["aaf", "aag"]
    a, b = ShortIds(99), ShortIds(99)
    assert [a.next_id() for _ in range(50)] == [b.next_id() for _ in range(50)]


def test_a_start_is_drawn_at_the_first_id_only():
    source = ShortIds()
    assert source._start is None
    source.next_id()
    drawn = source._start
    source.next_id()
    assert drawn is not None
    assert source._start == drawn
    assert {ShortIds().next_id() for _ in range(20)} != {ShortIds().next_id()}


@given(st.integers(0, 2**64), st.integers(0, 40), st.lists(st.integers(0, 200), max_size=30))
def test_reserved_ids_are_skipped_and_spent_ones_refused(start: int, taken: int, picks: list[int]):
    preview = ShortIds(start)
    walk = [preview.next_id() for _ in range(250)]
    source = ShortIds(start)
    handed = {source.next_id() for _ in range(taken)}
    reserved: set[str] = set()
    for pick in picks:
        id = walk[pick]
        assert source.reserve(id) == (id not in handed and id not in reserved)
        reserved |= {id} - handed
    fresh = [source.next_id() for _ in range(len(walk) - taken - len(reserved))]
    assert fresh == [id for id in walk if id not in handed and id not in reserved]
    assert not any(source.reserve(id) for id in walk)


def test_reserving_before_the_first_id():
    source = ShortIds()
    assert source.reserve("abc")
    assert not source.reserve("abc")
    assert source.reserve("abcd")
    assert "abc" not in {source.next_id() for _ in range(29_790)}
    assert not source.reserve("abc")


@pytest.mark.parametrize("bad", ["", "ab", "ABC", "a1c", "a c", "aé2"])
def test_what_is_not_a_short_id_cannot_be_reserved(bad: str):
    with pytest.raises(UsageError, match="not a short id"):
        ShortIds(0).reserve(bad)


def test_threads_get_different_ids():
    source = ShortIds(3)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [source.next_id() for _ in range(2000)], range(8)))
    assert len({id for batch in batches for id in batch}) == 16_000


def test_the_process_has_one_source():
    assert SHARED.next_id() != SHARED.next_id()


def test_record_ids_have_the_ulid_form():
    clock = FakeClock(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1469918176385))
    assert RecordIds(clock, lambda n: b"\0" * n).next_id() == "01ARYZ6S410000000000000000"
    assert RecordIds(clock, lambda n: b"\xff" * n).next_id() == "01ARYZ6S41ZZZZZZZZZZZZZZZZ"
    id = RecordIds().next_id()
    assert len(id) == 26
    assert set(id) <= set(CROCKFORD)


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_record_ids_sort_by_time(steps: list[float], random):
    clock = FakeClock()
    source = RecordIds(clock, random.randbytes)
    ids: list[str] = []
    for step in steps:
        clock.advance(step)
        ids += [source.next_id(), source.next_id()]
    assert ids == sorted(set(ids))


def test_two_sources_sort_by_time_too():
    clock = FakeClock()
    high, low = RecordIds(clock, lambda n: b"\xff" * n), RecordIds(clock, lambda n: b"\0" * n)
    first = high.next_id()
    clock.advance(0.001)
    assert first < low.next_id()


def test_record_ids_rise_when_the_clock_goes_back_and_when_the_random_bits_run_over():
    clock = FakeClock()
    source = RecordIds(clock, lambda n: b"\xff" * n)
    first = source.next_id()
    second = source.next_id()
    clock.set(datetime(2020, 1, 1, tzinfo=UTC))
    third = source.next_id()
    assert first < second < third
    assert len(third) == 26


def test_record_ids_draw_randomness_once_a_millisecond():
    clock, draws = FakeClock(), count()
    source = RecordIds(clock, lambda n: next(draws).to_bytes(n))
    ids = [source.next_id() for _ in range(5)]
    assert next(draws) == 1
    assert len({id[:10] for id in ids}) == 1


def test_record_ids_need_a_clock_after_1970():
    with pytest.raises(UsageError, match="1970"):
        RecordIds(FakeClock(datetime(1969, 12, 31, tzinfo=UTC))).next_id()


def test_the_last_id_of_a_millisecond_lies_between_its_ids_and_later_ones():
    clock = FakeClock()
    ids = RecordIds(clock)
    made = [ids.next_id() for _ in range(3)]
    last = last_id_at(clock.now())
    clock.advance(0.001)
    assert max(made) < last < ids.next_id()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_processes_never_make_the_ids_of_their_parent_or_of_each_other():
    # One clock that stands still and one that goes on: the next of the same millisecond, and new random bits.
    still, clock = RecordIds(FakeClock()), FakeClock()
    moving = RecordIds(clock)

    def some() -> list[str]:
        made: list[str] = []
        for _ in range(20):
            clock.advance(0.001)
            made += [still.next_id(), moving.next_id()]
        return made

    before = some()
    families = [_in_a_fork(some), _in_a_fork(some), some()]
    made = [id for family in families for id in family]
    assert len({id[10:] for id in made}) == len(made) == 120
    for family in families:
        assert family[::2] == sorted(family[::2])
        assert before[-2] < family[0]
        assert before[-1] < family[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_while_another_thread_makes_an_id_leaves_the_child_able_to():
    ids = RecordIds()
    with ids._lock:  # as another thread holds it, which the child does not have
        assert len(_in_a_fork(lambda: [ids.next_id()])) == 1


def _in_a_fork(make: Callable[[], list[str]]) -> list[str]:
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writing, " ".join(make()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as made:
        ids = made.read().split()
    os.waitpid(child, 0)
    return ids


def test_threads_never_draw_the_same_bits():
    def some(_: int) -> list[str]:
        clock = FakeClock()
        ids, made = RecordIds(clock), list[str]()
        for _ in range(1000):
            clock.advance(0.001)
            made.append(ids.next_id())
        return made

    with ThreadPoolExecutor(8) as pool:
        made = [id for family in pool.map(some, range(8)) for id in family]
    assert len({id[10:] for id in made}) == 8000
