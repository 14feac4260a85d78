from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from loom.core.checks import as_utc, check_share
from loom.core.clock import TICK, Clock, RisingClock, SystemClock
from loom.errors import UsageError
from loom.testing import FakeClock


def test_the_system_clock_speaks_utc_and_does_not_go_back():
    clock = SystemClock()
    assert isinstance(clock, Clock)
    assert datetime.now(UTC) <= clock.now() <= datetime.now(UTC)
    assert clock.now().tzinfo is UTC
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_the_fake_clock_moves_by_hand_only():
    clock = FakeClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    assert isinstance(clock, Clock)
    assert clock.now() == clock.now() == datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert clock.advance(90) == datetime(2026, 5, 1, 12, 1, 30, tzinfo=UTC)
    clock.advance(timedelta(hours=1))
    assert clock.now() == datetime(2026, 5, 1, 13, 1, 30, tzinfo=UTC)
    assert clock.monotonic() == 3690


def test_setting_the_wall_clock_back_leaves_the_monotonic_one():
    clock = FakeClock()
    clock.advance(10)
    clock.set(datetime(2025, 1, 1, tzinfo=UTC))
    assert clock.now() == datetime(2025, 1, 1, tzinfo=UTC)
    assert clock.monotonic() == 10
    with pytest.raises(UsageError, match="turn time back"):
        clock.advance(-1)


def test_times_are_turned_into_utc_and_naive_ones_refused():
    tokyo = timezone(timedelta(hours=9))
    assert as_utc(datetime(2026, 1, 1, 9, tzinfo=tokyo), "at").isoformat() == "2026-01-01T00:00:00+00:00"
    with pytest.raises(UsageError, match=r"at is .* without a zone"):
        as_utc(datetime(2026, 1, 1), "at")  # noqa: DTZ001
    with pytest.raises(UsageError, match="at is '2026-05-01', of type str; give a datetime"):
        as_utc(cast("Any", "2026-05-01"), "at")
    with pytest.raises(UsageError, match=r"at is 0001-01-01T00:00:00\+09:00, .*outside the years.*; give a time"):
        as_utc(datetime.min.replace(tzinfo=tokyo), "at")


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_a_share_lies_between_0_and_1(bad: float):
    with pytest.raises(UsageError, match="from 0 to 1"):
        check_share(bad, "the confidence")
    check_share(0, "the confidence")
    check_share(1, "the confidence")


@pytest.mark.parametrize("bad", [np.float32(0.5), Fraction(1, 2), "0.5"])
def test_a_share_that_stores_do_not_know_is_refused(bad: Any):
    with pytest.raises(UsageError, match="give a float"):
        check_share(bad, "the confidence")


def test_a_rising_clock_goes_on_from_where_it_was_when_the_other_is_set_back():
    given = FakeClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    clock = RisingClock(given)
    assert isinstance(clock, Clock)
    first = clock.now()
    assert clock.now() == first == given.now()
    given.set(first - timedelta(hours=1))
    assert [clock.now(), clock.now()] == [first + TICK, first + 2 * TICK]
    given.advance(30)
    assert clock.now() == first + 2 * TICK + timedelta(seconds=30)
    assert clock.monotonic() == 30
    given.set(first + timedelta(hours=1))
    assert clock.now() == first + timedelta(hours=1)
