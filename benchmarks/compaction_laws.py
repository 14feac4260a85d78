"""Random histories through every strategy with every fault: run `python -m benchmarks.compaction_laws [histories]`.

Each history goes to each strategy at a random target, with random pins, once with bound thinking and once
without. Every rewrite is checked against the laws of a Compactor from the outside, then the history goes on and
is compacted a second time. Printed: what reached its target, what said that it cannot, what a strategy raised, and
the CPU seconds. A broken law ends the run with the seed that shows it.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import anyio
from rich.console import Console
from rich.table import Table

from loom.core.message import Message
from loom.errors import CannotCompact, LoomError
from loom.text.tokens import EstimateCounter
from tests.session.histories import (
    ASKING,
    FAULTS,
    RETAINS,
    STRATEGIES,
    ScriptedAsk,
    applied,
    check_laws,
    random_messages,
    results_for,
    shown_from,
    strategy,
    tokens,
)

COUNTER = EstimateCounter()
"""One for all: it remembers what it has counted."""


async def run(count: int) -> Counter[tuple[str, str]]:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in range(count):
        for name in STRATEGIES:
            try:
                seen[name, await one(seed, name)] += 1
            except Exception as error:
                error.add_note(f"history {seed}, strategy {name}")
                raise
    return seen


async def one(seed: int, name: str) -> str:
    """One history through one strategy, twice; returns how the first pass ended."""
    rng = random.Random(seed)
    shown = shown_from(random_messages(rng))
    target = int(tokens(shown, COUNTER) * rng.choice((0.0, 0.05, 0.2, 0.4, 0.5, 0.6, 0.8, 0.95)))
    keep = frozenset(rng.sample([item.id for item in shown], min(len(shown), rng.choice((0, 0, 1, 2)))))
    retain, binds = rng.choice(RETAINS), rng.random() < 0.5
    fault = rng.choice(list(FAULTS)) if rng.random() < 0.6 else "none"
    ask = ScriptedAsk(fault if name in ASKING else "none")
    compactor = strategy(name, ask, retain=retain, binds_thinking=binds)
    try:
        rewrite = await compactor.compact(shown, target=target, counter=COUNTER, keep=keep)
    except CannotCompact:
        return "cannot"
    except LoomError as error:
        assert name in ("summarize", "hierarchical"), "only a strategy that asks may raise anything else"
        return type(error).__name__
    except RuntimeError:
        assert ask.fault == "crash"
        return "RuntimeError"
    check_laws(shown, rewrite, target=target, counter=COUNTER, keep=keep, binds_thinking=binds)
    left = applied(shown, rewrite)
    more = [*results_for(left), Message.user("Go on, please."), *random_messages(rng, kind="tools")]
    grown = (*left, *shown_from(more, "n"))
    goal = tokens(grown, COUNTER) // 2
    try:
        again = await compactor.compact(grown, target=goal, counter=COUNTER, keep=keep)
    except (LoomError, RuntimeError):
        return "reached"
    check_laws(grown, again, target=goal, counter=COUNTER, keep=keep, binds_thinking=binds)
    return "reached"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    start = time.process_time()
    seen = anyio.run(run, count)
    spent = time.process_time() - start
    endings = sorted({ending for _, ending in seen}, key=lambda e: (e != "reached", e != "cannot", e))
    table = Table("strategy", *endings, title=f"{count:,} histories, no law broken, {spent:.0f} CPU seconds")
    for name in STRATEGIES:
        table.add_row(name, *(f"{seen[name, ending]:,}" for ending in endings))
    Console().print(table)


if __name__ == "__main__":
    main()
