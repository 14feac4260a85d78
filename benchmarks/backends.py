"""Remember and recall on every backend, beside its plain client doing the same query in the same run.

    python benchmarks/backends.py [folder] [--sizes 10k,100k] [--only sqlite,redis] [--minutes 8] [--json]
                                  [--plot FILE.png]

Loom is measured through its public door, `open_memory(URL)`, with the offline embedder, facts off, no background work.
Servers are started from pip packages, durable, and stopped again. One user has as many records as the size says, ten
others have a hundredth of that each. Every question is asked in turn of Loom's recall, of the search of its store, and
of the plain client (see `backends_raw.py`). Each backend has a process of its own; where filling would take longer
than `--minutes`, a size is left out. The folder holds LoCoMo, whose sentences the texts are made of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import backends_raw as raws
import numpy as np
from backends_raw import Raw
from backends_report import plot, print_tables
from rich.console import Console
from rich.progress import Progress
from scale import option, size_of
from scale_data import questions, texts

from loom import Memory, open_memory
from loom.admin.maintenance import init_store
from loom.core.filter import Eq, Not
from loom.core.scope import Scope
from loom.memory._recall.search import search_hybrid
from loom.protocols.memory_store import Query
from loom.providers.embedding.local import StaticEmbedder
from loom.testing.servers import chroma, postgres, redis

BATCH = 100
QUESTIONS = 100
OTHERS = 10
USER = "u0"
SURE_FROM = 2_000
"""From so many records on, the time to fill is foretold from the time so far."""


class Opened(NamedTuple):
    """A backend that runs: the place of a memory, the plain client, and what an administrator does after filling."""

    url: str
    raw: Raw
    settle: Callable[[], Awaitable[object]] | None = None


@contextmanager
def opened(name: str, place: Path) -> Generator[Opened]:
    beside = str(place / "beside.db")
    with ExitStack() as stack:
        if name == "inmemory":
            yield Opened("inmemory", raws.Sqlite(":memory:"))
        elif name == "sqlite":
            yield Opened(f"sqlite:{place / 'memory.db'}", raws.Sqlite(beside))
        elif name == "postgres":
            server = stack.enter_context(postgres(fsync="on", shared_buffers="512MB", maintenance_work_mem="512MB"))
            anyio.run(init_store, server.url())
            yield Opened(server.url("loom_app"), raws.Postgres(server.url()), lambda: init_store(server.url()))
        elif name == "redis":
            url = stack.enter_context(redis(loadmodule=raws.redisearch())).url()
            yield Opened(url, raws.Redis(url))
        elif name == "qdrant":
            yield Opened(f"qdrant:{place / 'qdrant'}", raws.QdrantLocal(beside))
        elif name == "qdrant-edge":
            yield Opened(f"qdrant:edge:{place / 'edge'}", raws.QdrantEdge(place / "raw", beside))
        else:
            yield _chroma(name, place, beside, stack)


def _chroma(name: str, place: Path, beside: str, stack: ExitStack) -> Opened:
    import chromadb

    if name == "chroma":
        return Opened(f"chroma:{place / 'chroma'}", raws.Chroma(chromadb.PersistentClient(place / "raw"), beside))
    server = stack.enter_context(chroma())
    client = chromadb.HttpClient("127.0.0.1", server.port)
    return Opened(f"chroma+{server.url}?primary=sqlite:{place / 'memory.db'}", raws.Chroma(client, beside))


BACKENDS = ("inmemory", "sqlite", "postgres", "redis", "qdrant", "qdrant-edge", "chroma", "chroma-server")


# -- measuring ------------------------------------------------------------------------------------------------------


class Meter:
    """Wall and CPU milliseconds of things done, of this process, and CPU of the servers it started."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[float]]] = {}

    @asynccontextmanager
    async def timed(self, what: str) -> AsyncGenerator[None]:
        theirs, mine, begin = servers_cpu(), time.process_time(), time.perf_counter()
        yield
        end, used = time.perf_counter(), time.process_time()
        row = {"wall": end - begin, "cpu": used - mine, "server": servers_cpu() - theirs}
        for kind, seconds in row.items():
            self.found.setdefault(what, {}).setdefault(kind, []).append(seconds * 1000)


def servers_cpu() -> float:
    """Seconds of CPU that the processes started by this one have used, and those that they started."""
    parents: dict[int, tuple[int, int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            parents[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine, ticks = {os.getpid()}, 0
    while below := {pid for pid, (parent, _) in parents.items() if parent in mine and pid not in mine}:
        ticks += sum(parents[pid][1] for pid in below)
        mine |= below
    return ticks / os.sysconf("SC_CLK_TCK")


async def ask(memory: Memory, raw: Raw, asked: Sequence[str], vectors: Sequence[raws.Vector]) -> Meter:
    """Ask each question of all three in turn, after one that does not count."""
    meter, scope, embedder = Meter(), Scope(user_id=USER), StaticEmbedder()
    for place, (question, vector) in enumerate(zip([asked[0], *asked], [vectors[0], *vectors], strict=True)):
        query = Query(text=question, vector=vector, where=Not(Eq("kind", "block")), limit=raws.BY_WORDS, archived=True)
        if place == 1:
            meter = Meter()
        async with meter.timed("recall"):
            await memory.recall(question, user_id=USER)
        async with meter.timed("search"):
            await search_hybrid(memory.store, scope, query, near=raws.BY_VECTOR)
        async with meter.timed("words"):
            raw.words(USER, question, vector)
        async with meter.timed("near"):
            await embedder.embed([question], purpose="query")  # a recall begins with the question as well
            fetched = raw.near(USER, vector)
        assert fetched == raws.BY_VECTOR, f"the plain client found {fetched}"
    return meter


class TooSlow(Exception):
    """Filling would take longer than it may."""


class Filling:
    """Writes the texts to Loom and to the plain client, batch by batch, the others' among those of the one."""

    def __init__(self, memory: Memory, raw: Raw, folder: Path, limit: float) -> None:
        self._memory, self._raw, self._limit = memory, raw, limit
        self._embedder = StaticEmbedder()
        self._said: Iterator[str] = texts(folder)
        self.written = 0
        self._number = 0

    async def to(self, size: int) -> Meter:
        """Add records until the user has so many; returns the time of each batch."""
        meter, begin, first = Meter(), time.perf_counter(), self.written
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"to {size:,} records", total=size - first)
            while self.written < size:
                await self._write(USER, meter)
                self.written += BATCH
                if self.written // BATCH % OTHERS == 0:
                    await self._write(f"other{self.written // BATCH // OTHERS % OTHERS}", Meter())
                progress.update(task, completed=self.written - first)
                done, took = self.written - first, time.perf_counter() - begin
                if done >= SURE_FROM and took / done * (size - first) > self._limit:
                    raise TooSlow(f"{done / took:,.0f} records/s with the plain client's; left out")
        return meter

    async def _write(self, user: str, meter: Meter) -> None:
        said, session = list(islice(self._said, BATCH)), f"s{self._number}"
        async with meter.timed("remember"):
            await self._memory.remember(said, user_id=user, session_id=session)
        vectors = np.asarray(await self._embedder.embed(said, purpose="document"), np.float32)
        self._raw.add(raws.rows_of(self._number, user, session, said, list(vectors)))
        self._number += len(said)


async def measure(backend: Opened, sizes: Sequence[int], folder: Path, limit: float) -> None:
    """Fill a backend to each size in turn; print what was measured there, one line of JSON for each."""
    asked = questions(folder, QUESTIONS)
    vectors = list(np.asarray(await StaticEmbedder().embed(asked, purpose="query"), np.float32))
    async with open_memory(backend.url, embedder="static", with_facts=False) as memory:
        filling = Filling(memory, backend.raw, folder, limit)
        for size in sizes:
            try:
                filled = await filling.to(size)
            except TooSlow as reason:
                print(json.dumps({"size": size, "left_out": str(reason)}), flush=True)
                return
            if backend.settle is not None:
                await backend.settle()
            backend.raw.ready()
            meter = await ask(memory, backend.raw, asked, vectors)
            found = {"size": size, "raw": backend.raw.means, "load": os.getloadavg()[0]}
            print(json.dumps(found | filled.found | meter.found), flush=True)


def child(name: str, sizes: str, minutes: str, folder: Path) -> list[dict[str, Any]]:
    """What a process of its own measured; one that fails, and says why, costs the others nothing."""
    command = [sys.executable, __file__, "--child", name, sizes, minutes, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [*found, {"size": 0, "left_out": "it ended with an error"}] if done.returncode else found


def run_child(name: str, sizes: str, minutes: str, folder: Path) -> None:
    with TemporaryDirectory() as place, opened(name, Path(place)) as backend:
        anyio.run(measure, backend, [size_of(word) for word in sizes.split(",")], folder, float(minutes) * 60)


def main() -> None:
    words = sys.argv[1:]
    sizes, minutes = option(words, "--sizes", "10k,100k") or "", option(words, "--minutes", "8") or ""
    only, png = option(words, "--only", ",".join(BACKENDS)) or "", option(words, "--plot")
    folders = [Path(word) for word in words if not word.startswith("-")]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "locomo" / "locomo10.json").exists():
        raise SystemExit(f"{folder}/locomo/locomo10.json is not there; give the folder of the data sets")
    if unknown := set(only.split(",")) - set(BACKENDS):
        raise SystemExit(f"there is no backend {', '.join(sorted(unknown))}; the backends are {', '.join(BACKENDS)}")
    report: dict[str, list[dict[str, Any]]] = {}
    for name in only.split(","):
        Console(stderr=True).print(name)
        report[name] = child(name, sizes, minutes, folder)
    print(json.dumps(report)) if "--json" in words else print_tables(report)
    if png:
        plot(report, Path(png))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
    else:
        main()
