"""Sixteen times the text takes at most twenty times the CPU, for every public call that takes text."""

from __future__ import annotations

import gc
from contextlib import suppress
from itertools import count
from time import process_time

import anyio
import pytest

from loom.errors import LoomError
from tests.limits.calls import CALLS, Prepare

CHARS = 6_000
TIMES = 16
MOST = 20
ROUNDS = 8
FLOOR = 0.005
"""CPU seconds that a call may take whatever its text: what is fixed does not count."""

UNITS = {
    "dots": ".",
    "commas": ",",
    "blanks": " ",
    "lines": "a\n",
    "letters": "a",
    "words": "please always and the so ",
    "statements": "I like %d. ",
    "different words": "x%d ",
    "questions": "who is Bob %d? ",
    "dates": "since 2026-01-%d, ",
    "names": "Anna %d knows Bob. ",
    "paths": "src/a/%d.py and 10%d. ",
    "brackets": '{"a": [<memory>(',
    "quotes": "\"a' ",
    "marks": "\u0315\u0300",
    "other scripts": "\u65e5\u672c\u0905\u093f \u00e9\u00fc ",
}


_numbers = count(100_000)


def text_of(unit: str, chars: int) -> str:
    """So many characters of a unit; where it has a number, each time another one, which no cache of words knows."""
    if "%d" not in unit:
        return "A" + unit * (chars // len(unit)) + "z"
    return "".join(unit.replace("%d", str(next(_numbers))) for _ in range(chars // (len(unit) + 4)))


async def seconds(prepare: Prepare, text: str) -> float:
    call = await prepare(text)
    gc.collect()
    gc.disable()
    try:
        began = process_time()
        with suppress(LoomError):  # refused in words is an answer
            await call()
        return process_time() - began
    finally:
        gc.enable()


async def growth(prepare: Prepare, unit: str) -> tuple[float, float]:
    """How many times longer sixteen times the text takes, and how long that is; looked at again where it seems much."""
    large = [await seconds(prepare, text_of(unit, TIMES * CHARS))]
    small: list[float] = []
    while (times := min(large) / max(FLOOR, min(small, default=0.0))) > MOST and len(small) < ROUNDS:
        small.append(await seconds(prepare, text_of(unit, CHARS)))
        large.append(await seconds(prepare, text_of(unit, TIMES * CHARS)))
    return times, min(large)


@pytest.mark.parametrize("name", CALLS)
def test_time_grows_with_the_text_and_no_faster(name):
    async def measure() -> dict[str, tuple[float, float]]:
        await growth(CALLS[name], "warm up ")
        return {unit: await growth(CALLS[name], text) for unit, text in UNITS.items()}

    found = anyio.run(measure)
    print(name, {unit: f"{times:.1f}x {spent * 1000:.0f} ms" for unit, (times, spent) in found.items()})  # noqa: T201
    assert {unit: times for unit, (times, _) in found.items() if times > MOST} == {}
