"""What one message to an agent costs with an instant model: CPU a turn, by how much the user has said before.

    python benchmarks/turn.py FOLDER [--sizes 10,1000,10000,100000] [--turns 60] [--store postgres|redis] [--backlog]

Each size is a user with so many remembered turns, whose jobs have run; with `--backlog` none has, as after an import.
Turns of a conversation follow each other: recall, profile, answer, save, remember, facts by rules. The floor takes its
turns in between: it embeds the question, finds the best by FTS5 and by numpy, and keeps two texts and vectors in one
durable commit. `--profile` prints where the time goes at the last size, `--keep FOLDER` keeps the filled files for the
next run. FOLDER holds LoCoMo.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scale_data import questions, texts
from scale_floor import POOL, fill_fts, make_fts

from loom import Agent, Memory, open_memory
from loom.core.message import TextPart, Usage
from loom.core.scope import Scope
from loom.protocols.model import Chunk, ModelRequest, ModelResponse
from loom.providers.embedding.local import embed_static
from loom.testing.servers import postgres, redis
from loom.text.words import query_terms

BATCH = 500
ANSWER = "All right, noted."
WARM = 5
"""Turns that are not counted: they open files and load vectors."""


class Instant:
    """A model that answers at once, and looks at nothing."""

    name = "instant:model"
    context_window = 10_000_000
    reads_text = False

    async def complete(self, request: ModelRequest) -> ModelResponse:  # noqa: ARG002  (looks at nothing)
        parts = (TextPart(ANSWER),)
        return ModelResponse(parts=parts, stop="end", usage=Usage(input=10, output=4), model=self.name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield await self.complete(request)

    async def aclose(self) -> None:
        """Nothing to release."""


async def fill(memory: Memory, folder: Path, size: int, *, settled: bool) -> None:
    """A user who has said so much, in conversations of 20 turns."""
    source = texts(folder)
    for start in track(range(0, size, BATCH), description=f"{size:,} turns", disable=not sys.stderr.isatty()):
        for first in range(start, min(start + BATCH, size), 20):
            said = [
                {"role": "assistant" if place % 2 else "user", "content": next(source)}
                for place in range(first, min(first + 20, size))
            ]
            await memory.remember(said, user_id="alice", session_id=f"old{first // 20}")
    while settled and (await memory.metabolize(user_id="alice")).jobs > 10:
        pass


class Floor:
    """The least that a turn of a user with so many remembered turns takes."""

    def __init__(self, path: Path, folder: Path, size: int) -> None:
        self._db = make_fts(path)
        said = list(islice(texts(folder), size))
        fill_fts(self._db, said)
        self._db.execute("CREATE TABLE vectors (data BLOB)")
        self._db.execute("PRAGMA synchronous=FULL").fetchall()
        self._matrix = np.stack(embed_static(said)).astype(np.float32)

    def turn(self, text: str) -> float:
        """Milliseconds of CPU of a turn."""
        start = time.process_time()
        (asked,) = embed_static([text])
        words = " OR ".join(f'"{term}"' for term in query_terms(text))
        sql = "SELECT rowid, text FROM said WHERE said MATCH ? ORDER BY rank LIMIT ?"
        self._db.execute(sql, (words, POOL)).fetchall()
        np.argpartition(np.vecdot(self._matrix, asked), -min(POOL, len(self._matrix)))
        new = [text, ANSWER]
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO said VALUES (?)", [(one,) for one in new])
        self._db.executemany("INSERT INTO vectors VALUES (?)", [(vector.tobytes(),) for vector in embed_static(new)])
        self._db.execute("COMMIT")
        return (time.process_time() - start) * 1000

    def close(self) -> None:
        self._db.close()


async def turns_of(
    url: str, given: argparse.Namespace, size: int, *, profile: bool, floor: Floor | None
) -> tuple[list[float], list[float]]:
    """Milliseconds of CPU of each turn of one conversation, the first ones included; and those of the floor."""
    async with open_memory(url, facts="rules") as memory:
        if not await memory.store.list(Scope(memory.namespace, "alice"), limit=1):
            await fill(memory, given.folder, size, settled=not given.backlog)
    chance, spent, least = random.Random(0), list[float](), list[float]()
    watch = cProfile.Profile() if profile else nullcontext()
    async with Agent("You are helpful.", model=Instant(), memory=url, facts="rules") as agent:
        for place, question in enumerate(questions(given.folder, given.turns + WARM)):
            text = question if chance.random() < 0.5 else f"{question} I walked to town number {place} today."
            start = time.process_time()
            with watch if place >= WARM else nullcontext():
                await agent.run(text, user_id="alice", session_id="now")
            spent.append((time.process_time() - start) * 1000)
            least += [floor.turn(text)] if floor is not None else []
    if isinstance(watch, cProfile.Profile):
        pstats.Stats(watch).sort_stats("cumulative").print_stats(90)
        pstats.Stats(watch).sort_stats("tottime").print_stats(40)
    return spent, least


@contextmanager
def place_of(given: argparse.Namespace, size: int) -> Generator[str]:
    """The URL of a store for a user of this size; a kept file is copied, so that each run begins alike."""
    with TemporaryDirectory() as folder:
        if given.store != "sqlite":
            with (postgres if given.store == "postgres" else redis)() as server:
                yield server.url()
            return
        path = Path(folder) / "turn.db"
        if given.keep is None:
            yield f"sqlite:{path}"
            return
        kept = given.keep / f"{size}{'-backlog' if given.backlog else ''}.db"
        if not kept.exists():
            given.keep.mkdir(parents=True, exist_ok=True)
            anyio.run(filled, f"sqlite:{kept}", given, size)
        shutil.copy(kept, path)
        yield f"sqlite:{path}"


async def filled(url: str, given: argparse.Namespace, size: int) -> None:
    async with open_memory(url, facts="rules") as memory:
        await fill(memory, given.folder, size, settled=not given.backlog)


def row(size: int, spent: list[float], least: list[float]) -> dict[str, Any]:
    counted = spent[WARM:]
    found = {
        "remembered": size,
        "first": spent[0],
        "p50": median(counted),
        "p95": quantiles(counted, n=20)[-1],
        "last ten": median(counted[-10:]),
    }
    return {**found, "floor p50": median(least[WARM:])} if least else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="10,1000,10000,100000")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    parser.add_argument("--backlog", action="store_true", help="leave all jobs of the user for the agent")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    found: list[dict[str, Any]] = []
    for size in sizes:
        with place_of(given, size) as url:
            profile = given.profile and size == sizes[-1]
            with TemporaryDirectory() as folder:
                floor = Floor(Path(folder) / "floor.db", given.folder, size) if given.store == "sqlite" else None
                found.append(row(size, *anyio.run(partial(turns_of, url, given, size, profile=profile, floor=floor))))
                if floor is not None:
                    floor.close()
    if given.json:
        print(json.dumps(found))
        return
    table = Table(*found[0], box=None)
    for one in found:
        table.add_row(*(f"{value:,}" if name == "remembered" else f"{value:.1f} ms" for name, value in one.items()))
    Console().print(table)


if __name__ == "__main__":
    main()
