"""Why the prompt cache misses, found in recorded requests. Their program writes the time into its system prompt.

It prints:

    0% read, 1.25 times the uncached price
    - volatile_in_prefix: move_volatile saves 82%, $0.0523
    - The system text block changed at byte 20 (system[0]).
    90% read, 0.22 times the uncached price
"""

import json
from pathlib import Path
from typing import Any

from loom import explain, simulate

RULES = "".join(f"{n}. Quote the line you mean, then say what you would change.\n" for n in range(1, 121))


def record(turn: int, *, clock: bool) -> str:
    """A line as a logger writes it: the time, and the body that was sent."""
    system = (f"Now: 2026-11-15 08:{turn:02d}:07\n" if clock else "") + RULES
    messages: list[Any] = [{"role": ("user", "assistant")[n % 2], "content": f"Part {n}."} for n in range(2 * turn + 1)]
    mark = {"cache_control": {"type": "ephemeral"}}
    messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], **mark}]
    body = {"model": "claude-sonnet-5", "system": [{"type": "text", "text": system, **mark}], "messages": messages}
    return json.dumps({"at": 60 * turn, "request": body})


for clock in (True, False):
    log = Path(f"trace-{clock}.jsonl")
    log.write_text("\n".join(record(turn, clock=clock) for turn in range(10)))
    trace = [json.loads(line) for line in log.read_text().splitlines()]
    done = simulate(trace)
    print(f"{done.read_share:.0%} read, {done.relative_cost:.2f} times the uncached price")
    for finding in done.findings:
        print(f"- {finding.cause}: {finding.fix} saves {finding.saving:.0%}, ${finding.usd:.4f}")
        print(f"- {explain(trace[0], trace[1]).message}")
