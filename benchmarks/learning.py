"""Does learning by a model delay answers: the same turns with facts by a model, by rules, and with facts off.

    python benchmarks/learning.py [--turns 100] [--answer 0.3] [--learn 3.0] [--json]

The model is a local one that waits `--answer` seconds for an answer and `--learn` seconds for what it learns, and
memory is a SQLite file. The three agents take each turn one after the other, in changing order, so that whatever else
the machine does meets all of them alike. A ratio of 1.05 is the limit.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table

from loom import Agent
from loom.protocols.model import ModelRequest, ModelResponse
from loom.testing import ScriptedModel

MODES: dict[str, Any] = {"off": None, "rules": "rules", "model": "model"}
LIMIT = 1.05


class Waiting(ScriptedModel):
    """A model that takes its time."""

    def __init__(self, answer: float, learn: float) -> None:
        super().__init__(self._said, name="anthropic:claude-sonnet-5")
        self._answer, self._learn = answer, learn

    async def complete(self, request: ModelRequest) -> ModelResponse:
        await anyio.sleep(self._learn if request.settings.output_schema else self._answer)
        return await super().complete(request)

    @staticmethod
    def _said(request: ModelRequest) -> str:
        if not request.settings.output_schema:
            return "That is good to know."
        fact = {"sources": ["e1"], "subject": "user", "predicate": "saw", "object": "a beast"}
        return json.dumps({"facts": [fact] * 3})


async def measure(turns: int, answer: float, learn: float) -> dict[str, Any]:
    """The time of each turn in each mode, and what each agent asked for."""
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    agents: dict[str, Agent] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            for mode, facts in MODES.items():
                agent = Agent(
                    "Be brief.", model=Waiting(answer, learn), memory=f"sqlite:{Path(folder) / mode}.db", facts=facts
                )
                agents[mode] = await stack.enter_async_context(agent)
            names = list(MODES)
            for turn in range(-2, turns):  # the first two open files and load vectors
                for mode in names[turn % 3 :] + names[: turn % 3]:
                    start = time.perf_counter()
                    await agents[mode].run(
                        f"Today I walked to town {turn} and saw a beast.", session_id=f"s{turn // 10}"
                    )
                    times[mode] += [time.perf_counter() - start] if turn >= 0 else []
        bills = {mode: agent.bill for mode, agent in agents.items()}
    typical = {mode: median(found) for mode, found in times.items()}
    return {
        "seconds": typical,
        "ratio": {mode: typical[mode] / typical["off"] for mode in MODES},
        "requests": {mode: bill.requests for mode, bill in bills.items()},
    }


def main() -> None:
    given = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    turns = int(given.get("--turns", "100"))
    found = anyio.run(measure, turns, float(given.get("--answer", "0.3")), float(given.get("--learn", "3.0")))
    if "--json" in sys.argv:
        print(json.dumps(found))
    else:
        table = Table("facts", "median run", "beside off", "requests", box=None)
        for mode in MODES:
            seconds, ratio = found["seconds"][mode], found["ratio"][mode]
            table.add_row(mode, f"{seconds * 1000:.1f} ms", f"{ratio:.3f}", f"{found['requests'][mode]:,}")
        Console().print(table)
    sys.exit(found["ratio"]["model"] > LIMIT)


if __name__ == "__main__":
    main()
