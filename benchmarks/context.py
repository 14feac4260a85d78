"""The context engine against the floor of joining the same strings once. Run: python -m benchmarks.context.

Every figure is the best of several repetitions, each on fresh objects, garbage collection off while timing;
floor and engine are measured in the same run.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loom import Context, Message, StringEntry, plan, render

ENTRIES = 10_000
REPEATS = 15
MODEL = ("anthropic", "claude-sonnet-4-5")


def texts(size: int = 200) -> list[str]:
    return [f"entry {i:05} ".ljust(size, "x") for i in range(ENTRIES)]


def context(size: int = 200) -> Context:
    ctx = Context("bench")
    for text in texts(size):
        ctx.convo.add(StringEntry(text))
    return ctx


def spread() -> Context:
    """The same entries over four sections, with a visitor that holds a quarter of them."""
    ctx, guest = Context("bench"), Context("guest")
    ctx.include(guest)
    homes = (ctx.foundation, guest.foundation, ctx.topic, ctx.convo)
    for number, text in enumerate(texts()):
        homes[number % 4].add(StringEntry(text))
    return ctx


def best(make: Callable[[], Any], run: Callable[[Any], object], repeats: int = REPEATS) -> float:
    """The shortest of several runs, in seconds, each on something fresh."""
    shortest = float("inf")
    for _ in range(repeats):
        made = make()
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        run(made)
        shortest = min(shortest, time.perf_counter() - start)
        gc.enable()
    return shortest


def append_one(ctx: Context, times: int = 300) -> float:
    """Recompiling after one more entry: the median of many."""
    ctx.compile()
    found: list[float] = []
    for number in range(times):
        ctx.convo.add(StringEntry(f"one more {number}"))
        start = time.perf_counter()
        ctx.compile()
        found.append(time.perf_counter() - start)
    return sorted(found)[times // 2]


def with_tools(ctx: Context) -> Context:
    """A conversation that has used a tool takes the general way through compile."""
    from loom.core.message import TextPart, ToolCallPart, ToolResultPart

    ctx.convo.add(Message("assistant", (ToolCallPart("c", "look", {}),)))
    ctx.convo.add(Message("user", (ToolResultPart("c", (TextPart("found"),)),)))
    return ctx


def memory_per_entry() -> tuple[float, float]:
    """Bytes that an entry takes besides its text, before and after a compile."""
    made = texts()
    tracemalloc.start()
    ctx = Context("bench")
    for text in made:
        ctx.convo.add(StringEntry(text))
    added = tracemalloc.get_traced_memory()[0]
    window = ctx.compile()
    compiled = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert window.chars
    return added / ENTRIES, compiled / ENTRIES


def in_a_new_process(script: str) -> float:
    """CPU seconds or seconds that a script prints, the least of several processes."""
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(7)
    ]
    return min(float(run.stdout) for run in runs)


def import_cost() -> float:
    return in_a_new_process(
        "import time; start = time.process_time(); import loom; loom.Context; print(time.process_time() - start)"
    )


def first_entry() -> float:
    return in_a_new_process(
        "import time; from loom import Context, StringEntry; c = Context('c'); start = time.perf_counter();"
        "c.convo.add(StringEntry('first')); print(time.perf_counter() - start)"
    )


def measure(step: Callable[[str], None]) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []

    def row(what: str, value: str, ratio: str = "", target: str = "") -> None:
        rows.append((what, value, ratio, target))
        step(what)

    for size in (200, 2000):
        floor = best(lambda size=size: texts(size), "\n\n".join)
        full = best(lambda size=size: context(size), lambda ctx: ctx.compile())
        both = best(lambda size=size: context(size), lambda ctx: str(ctx.compile()))
        row(f"floor: join {ENTRIES:,} strings of {size:,} characters", us(floor), "1.0x")
        row("compile + render to text, from nothing", us(both), f"{both / floor:.1f}x", "5x" if size == 200 else "")
        row("compile alone, from nothing", us(full), f"{full / floor:.1f}x")
        if size == 200:
            grown = append_one(context())
            row("recompile after one more entry", us(grown), f"{full / grown:,.0f}x faster", "100x")
            tools = append_one(with_tools(context()))
            row("the same in a conversation with tool calls", us(tools), f"{full / tools:,.0f}x faster")
    wide = best(spread, lambda ctx: str(ctx.compile()))
    row("compile + render, four sections, a visitor, dedup", us(wide))
    row("recompile after one more entry, with the visitor", us(append_one(spread())))
    dumped = best(texts, json.dumps)
    ctx = context()
    window = ctx.compile()
    body = best(lambda: window, lambda w: json.dumps(render(w, *MODEL)), 5)
    row("floor: json.dumps of the strings", us(dumped), "1.0x")
    row("Anthropic request body + json.dumps", us(body), f"{body / dumped:.1f}x")
    planned = best(lambda: window, lambda w: plan(w, *MODEL), 3)
    row("plan of all entries", us(planned))
    added, compiled = memory_per_entry()
    row("memory for each entry besides its text, added / compiled", f"{added:.0f} B / {compiled:.0f} B")
    row("time to the first entry in a new process", us(first_entry()))
    row("import loom, first use of Context, CPU", f"{import_cost():.3f} s", "", "0.15 s")
    return rows


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def main() -> None:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=17)
        rows = measure(lambda what: progress.update(task, advance=1, description=what))
    table = Table(title="Context engine", title_justify="left")
    for name in ("what", "time", "against the floor", "target"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
