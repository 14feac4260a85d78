"""Whether one user can notice another, on every backend. Run: python -m benchmarks.traces [COUNT] [NAME ...].

Each trace is a random sequence of calls by two users whose ids are chosen to be confused (empty, `*`, `%`, quotes, one
a prefix of the other, ...). It runs with both and again without the second: the first must see the same. Servers are
started from pip packages. The first difference ends the run with its seed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import Progress

from loom.admin.maintenance import init_store
from loom.engine.urls import Opening, store_at
from loom.testing import FakeClock
from loom.testing.conformance import check_non_interference
from loom.testing.servers import chroma, postgres, redis

BACKENDS = (
    *("inmemory", "sqlite", "postgres", "postgres-partitions", "redis", "qdrant", "qdrant-edge", "chroma"),
    "chroma-server",
)
FIRST_SEED = 100_000
AT_ONCE = 8
"""How many traces run side by side on a server: they wait for it, and for each other they are other users."""


@contextmanager
def running(name: str, folder: Path) -> Generator[str]:
    """The URL of a backend that runs and is empty."""
    if name.startswith("postgres"):
        with postgres() as server:
            anyio.run(lambda: init_store(server.url(), partitions=8 if name.endswith("partitions") else None))
            yield server.url("loom_app")
    elif name == "redis":
        with redis() as server:
            yield server.url()
    elif name == "chroma-server":
        with chroma() as server:
            yield f"chroma+{server.url}?truth=sqlite:{folder / 'memory.db'}"
    else:
        urls = {"inmemory": "inmemory", "qdrant-edge": f"qdrant:edge:{folder / 'edge'}"}
        yield urls.get(name, f"{name}:{folder / name}")


async def run(url: str, count: int, *, at_once: int, progress: Progress, name: str) -> None:
    task = progress.add_task(name, total=count)
    async with aclosing(store_at(url, Opening(clock=FakeClock(), durability="fast"))) as store:
        for first in range(FIRST_SEED, FIRST_SEED + count, at_once):
            async with anyio.create_task_group() as tasks:
                for seed in range(first, min(first + at_once, FIRST_SEED + count)):
                    tasks.start_soon(check_non_interference, store, seed)
            progress.advance(task, at_once)
    progress.remove_task(task)


def main() -> None:
    words = sys.argv[1:]
    count = int(words.pop(0)) if words and words[0].isdigit() else 3_000
    unknown = set(words) - set(BACKENDS)
    if unknown:
        raise SystemExit(f"there is no backend {', '.join(sorted(unknown))}; use some of {', '.join(BACKENDS)}")
    for name in words or BACKENDS:
        begin = time.perf_counter()
        with (
            tempfile.TemporaryDirectory() as folder,
            running(name, Path(folder)) as url,
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            at_once = AT_ONCE if name in ("postgres", "postgres-partitions", "redis") else 1
            anyio.run(lambda: run(url, count, at_once=at_once, progress=progress, name=name))  # noqa: B023 - run at once
        print(f"{name}: {count:,} traces, 0 differences, {time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
