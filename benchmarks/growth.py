"""Does work grow with the text and no faster, and does any step hold up the event loop.

    python -m benchmarks.growth [CALL ...] [--json]

Every public call that takes text is made with 6,000 and with 16 times as many characters, of sixteen kinds of text; at
most 20 times the CPU is the limit. Then calls that run on an event loop get a text as long as they take, and the CPU
time of the longest step of the loop is measured; 20 ms is the limit. A figure over its limit is measured again, because
whatever else the machine does only ever adds to it. It ends with an error where a limit does not hold.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from time import process_time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.growth_calls import CALLS, CAPS, Call, Prepare
from loom.errors import LoomError
from loom.testing.fakes import Steps, measured_steps

CHARS = 6_000
TIMES = 16
MOST = 20
ROUNDS = 8
FLOOR = 0.005
"""CPU seconds that a call may take whatever its text: what is fixed does not count."""
STEP = 0.020
"""CPU seconds that a step of the loop may take."""

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
AT_THE_CAP = ("statements", "dots", "different words", "other scripts")

_numbers = count(100_000)


def text_of(unit: str, chars: int) -> str:
    """So many characters of a unit; where it has a number, each time another one, which no cache of words knows."""
    if "%d" not in unit:
        return "A" + unit * (chars // len(unit)) + "z"
    return "".join(unit.replace("%d", str(next(_numbers))) for _ in range(chars // (len(unit) + 4)))


@contextmanager
def no_collection() -> Generator[None]:
    """No garbage collection meanwhile, which falls into whatever it likes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def made(call: Call) -> None:
    with suppress(LoomError):  # refused in words is an answer
        await call()


async def seconds(prepare: Prepare, text: str) -> float:
    call = await prepare(text)
    with no_collection():
        began = process_time()
        await made(call)
        return process_time() - began


async def growth(prepare: Prepare, unit: str) -> float:
    """How many times longer sixteen times the text takes; looked at again where it seems much."""
    large = [await seconds(prepare, text_of(unit, TIMES * CHARS))]
    small: list[float] = []
    while (times := min(large) / max(FLOOR, min(small, default=0.0))) > MOST and len(small) < ROUNDS:
        small.append(await seconds(prepare, text_of(unit, CHARS)))
        large.append(await seconds(prepare, text_of(unit, TIMES * CHARS)))
    return times


async def longest_step(name: str, unit: str) -> Steps:
    """The longest step of the loop while a call has a text as long as it takes."""
    text = (text_of(UNITS[unit], CAPS[name] * 2) + " The end.")[-CAPS[name] :]
    best: Steps | None = None
    for _ in range(ROUNDS):
        call = await CALLS[name](text)
        with no_collection():
            async with measured_steps() as steps:
                await made(call)
        best = steps if best is None or steps.longest < best.longest else best
        if best.longest <= STEP:
            break
    assert best is not None
    return best


async def measure(name: str) -> dict[str, Any]:
    """The worst growth of a call, the longest step of the loop at its cap, and with which text."""
    await growth(CALLS[name], "warm up ")
    grown = {unit: await growth(CALLS[name], text) for unit, text in UNITS.items()}
    worst = max(grown, key=grown.__getitem__)
    found: dict[str, Any] = {"call": name, "growth": round(grown[worst], 1), "with": worst}
    if name in CAPS:
        steps = {unit: await longest_step(name, unit) for unit in AT_THE_CAP}
        slowest = max(steps, key=lambda unit: steps[unit].longest)
        found |= {
            "chars": CAPS[name],
            "step_ms": round(steps[slowest].longest * 1000, 1),
            "in": steps[slowest].where,
        }
    return found


def is_over(row: dict[str, Any]) -> bool:
    return row["growth"] > MOST or row.get("step_ms", 0) > STEP * 1000


def report(rows: list[dict[str, Any]]) -> None:
    table = Table("call", "growth", "with", "at the cap of", "longest step", "in")
    for row in rows:
        cells = [f"{row['growth']}x", row["with"], *([""] * 3)]
        if "chars" in row:
            cells[2:] = [f"{row['chars']:,}", f"{row['step_ms']} ms", row["in"]]
        table.add_row(row["call"], *cells, style="red" if is_over(row) else None)
    Console().print(table)


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--json"] or list(CALLS)
    unknown = [name for name in names if name not in CALLS]
    if unknown:
        Console(stderr=True).print(f"there is no call {unknown[0]!r}; the calls are {', '.join(CALLS)}")
        return 2
    shown = track(names, console=Console(stderr=True), description="growth")
    rows = [asyncio.run(measure(name)) for name in shown]
    if "--json" in arguments:
        print(json.dumps(rows, indent=2))
    else:
        report(rows)
    return 1 if any(map(is_over, rows)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
