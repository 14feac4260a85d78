"""What the journal of requests adds to a turn: CPU, and bytes of a record.

    python -m benchmarks.journal [--turns 400]

Two bare sessions, one as it is and one whose journal writes nothing, turn by turn in alternation, on SQLite and in
memory; the model answers at once. `adds` is the median of what the turn of the one took more than that of the other:
of a pair of turns both were slowed by the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from loom.core.codec import to_bytes
from loom.core.scope import Scope
from loom.session.journal import REQUEST, Journal
from loom.session.session import Session
from loom.stores.checkpoints import BaseCheckpointStore
from loom.stores.inmemory import MemoryCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore
from loom.testing.fakes import ScriptedModel

WARM = 50
WORDS = "some words of a turn " * 12


def _nothing(*_: object) -> None:
    """What the journal of the other session writes."""


async def measure(make: Callable[[str], BaseCheckpointStore], turns: int) -> tuple[float, float, int]:
    """Milliseconds of a turn without the journal, what it adds, and the bytes of the longest record."""
    stores = [make("with"), make("without")]
    sessions = [
        Session(
            model=ScriptedModel([f"answer {n}: {WORDS}" for n in range(turns)]),
            checkpoints=store,
            user_id="alice",
            session_id="chat",
        )
        for store in stores
    ]
    write, took = Journal.write, (list[float](), list[float]())
    for n in range(turns):
        for which in (0, 1) if n % 2 else (1, 0):
            Journal.write = write if which == 0 else cast("Any", _nothing)
            began = time.process_time()
            await sessions[which].send(f"message {n}: {WORDS}")
            took[which].append(time.process_time() - began)
    Journal.write = write
    records = await stores[0].recorded(Scope("default", "alice", "chat"), kind=REQUEST)
    assert len(records) == turns, "a request was not recorded"
    for store in stores:
        await store.aclose()
    adds = median(one - other for one, other in zip(took[0][WARM:], took[1][WARM:], strict=True))
    return median(took[1][WARM:]) * 1000, adds * 1000, max(len(to_bytes(one.body)) for one in records)


def main() -> None:
    """Print the table."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--turns", type=int, default=400)
    asked = given.parse_args()
    table = Table("store", "a turn without it", "it adds", "share", "longest record")
    with TemporaryDirectory() as folder:
        places: dict[str, Callable[[str], BaseCheckpointStore]] = {
            "SQLite": lambda name: SqliteCheckpointStore(Path(folder) / f"{name}.db"),
            "in memory": lambda _: MemoryCheckpointStore(),
        }
        for place, make in places.items():
            turn, adds, longest = asyncio.run(measure(make, asked.turns))
            table.add_row(place, f"{turn:.2f} ms", f"{adds:.3f} ms", f"{adds / turn:.1%}", f"{longest} bytes")
    Console().print(table)


if __name__ == "__main__":
    main()
