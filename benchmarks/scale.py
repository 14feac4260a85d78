"""How writing and recall grow with what is stored: 1k to 1M records of one user, and of many users.

    python benchmarks/scale.py [folder] [--sizes 1k,10k,100k,1m] [--json] [--plot FILE.png] [--loomflow PYTHON]

Loom is measured through its public door, on SQLite in a temporary folder, durable, with the embedder that works
offline. Beside it stand floors over the same texts and vectors in the same run, and loomflow, if a Python that has it
is named. The folder holds LoCoMo, whose sentences the texts are made of (see `scale_data.py`). Latencies are CPU time
of the whole process, so that a busy machine changes them little; each layout has a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import numpy as np
from rich.console import Console
from rich.progress import Progress
from scale_data import questions, texts
from scale_floor import fill_fts, fts_floor, make_fts, numpy_floor, read_vectors, usearch_floor
from scale_report import plot, print_tables

from loom import Memory, open_memory
from loom.providers.embedding.local import StaticEmbedder

BATCH = 100
QUESTIONS = 100
FLOW_SECONDS = 300
SIZES = "1k,10k,100k,1m"
LAYOUTS = {"one user": None, "users of 100": 100}
"""How many records each user has; None is all of them."""


def size_of(word: str) -> int:
    return int(word.lower().replace("k", "000").replace("m", "000000"))


def open_file(path: Path) -> Memory:
    return open_memory(f"sqlite:{path}", embedder="static", with_facts=False)


def user_of(record: int, each: int | None) -> str:
    return "u0" if each is None else f"u{record // each}"


async def remember(memory: Memory, said: Sequence[str], first: int, each: int | None) -> float:
    """Write these in batches of one session; returns turns per second."""
    begin = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for start in progress.track(range(0, len(said), BATCH), description=f"records from {first:,}"):
            number = first + start
            session = f"s{number // BATCH}"
            await memory.remember(said[start : start + BATCH], user_id=user_of(number, each), session_id=session)
    return len(said) / (time.perf_counter() - begin)


async def remember_singly(memory: Memory, said: Sequence[str], first: int, each: int | None) -> float:
    """Write these one by one, each durable before the next; returns turns per second."""
    begin = time.perf_counter()
    for text in said:
        await memory.remember(text, user_id=user_of(first, each), session_id=f"s{first // BATCH}")
    return len(said) / (time.perf_counter() - begin)


async def recall(memory: Memory, asked: Sequence[tuple[str, str]]) -> dict[str, list[float]]:
    """CPU and wall milliseconds of each question to a user."""
    cpu: list[float] = []
    wall: list[float] = []
    for question, user in asked:
        start, begin = time.process_time(), time.perf_counter()
        await memory.recall(question, user_id=user)
        cpu.append((time.process_time() - start) * 1000)
        wall.append((time.perf_counter() - begin) * 1000)
    return {"cpu_ms": cpu, "wall_ms": wall}


async def grow(path: Path, sizes: Sequence[int], folder: Path, each: int | None) -> None:
    """Fill a file to each size in turn; print what was measured there, one line of JSON for each."""
    asked = questions(folder, QUESTIONS)
    stream, written = texts(folder), 0
    async with open_file(path) as memory:
        await memory.remember(list(islice(texts(folder), BATCH)), user_id="small", session_id="s")
    for size in sizes:
        async with open_file(path) as memory:
            many = list(islice(stream, size - written - BATCH))
            batched = await remember(memory, many, written, each)
            singly = await remember_singly(memory, list(islice(stream, BATCH)), size - BATCH, each)
        written = size
        users = [user_of(place * size // QUESTIONS, each) for place in range(QUESTIONS)]
        async with open_file(path) as memory:
            begin = time.perf_counter()
            await memory.recall(asked[0], user_id=users[0])
            first = time.perf_counter() - begin
            large = await recall(memory, list(zip(asked, users, strict=True)))
            small = await recall(memory, [(question, "small") for question in asked])
            found = {"size": size, "batched": batched, "singly": singly, "first_s": first, "recall": large}
            print(json.dumps(found | {"small": small, "rss_mb": rss_mb(), "file_mb": file_mb(path)}), flush=True)


def rss_mb() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"now": pages * resource.getpagesize() / 2**20, "peak": peak}


def file_mb(path: Path) -> float:
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) / 2**20


async def floors(path: Path, sizes: Sequence[int], folder: Path) -> None:
    """What the parts of a search cost by themselves, over the vectors of a file and its texts."""
    asked = questions(folder, QUESTIONS)
    vectors = np.asarray(await StaticEmbedder().embed(asked, purpose="query"), np.float32)
    stream, written = texts(folder), 0
    fts = make_fts(path.with_suffix(".fts"))
    for size in sizes:
        fill_fts(fts, list(islice(stream, size - written)))
        written = size
        matrix = read_vectors(path, size)
        found = {"numpy": numpy_floor(matrix, vectors), "usearch": usearch_floor(matrix, vectors)}
        print(json.dumps({"size": size, "fts5": fts_floor(fts, asked)} | found), flush=True)


def child(what: str, path: Path, sizes: str, folder: Path) -> list[dict[str, Any]]:
    """What a process of its own measured."""
    command = [sys.executable, __file__, "--child", what, str(path), sizes, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def flow(python: str, folder: Path, place: Path, size: int) -> dict[str, Any] | None:
    """What loomflow takes for the same texts and a fifth of the questions; None where the time was not enough."""
    given = {"texts": list(islice(texts(folder), size)), "questions": questions(folder, QUESTIONS)[::5]}
    command = [python, str(Path(__file__).with_name("scale_flow.py")), str(place / f"flow{size}.db")]
    try:
        done = subprocess.run(
            command, input=json.dumps(given), stdout=subprocess.PIPE, check=True, text=True, timeout=FLOW_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) | {"size": size}


def flows(python: str | None, folder: Path, place: Path, sizes: Sequence[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for size in sizes if python else ():
        one = flow(python or "", folder, place, size)
        if one is None:  # a larger one takes longer still
            break
        found.append(one)
    return found


def run_child(what: str, path: Path, sizes: Sequence[int], folder: Path) -> None:
    if what == "floors":
        anyio.run(floors, path, sizes, folder)
    else:
        anyio.run(grow, path, sizes, folder, LAYOUTS[what])


def option(words: list[str], name: str, default: str | None = None) -> str | None:
    """Take an option with its value out of the words."""
    if name not in words:
        return default
    place = words.index(name)
    _, value = words.pop(place), words.pop(place)
    return value


def main() -> None:
    words = sys.argv[1:]
    sizes_given = option(words, "--sizes", SIZES) or SIZES
    png, python = option(words, "--plot"), option(words, "--loomflow")
    folders = [Path(word) for word in words if not word.startswith("-")]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "locomo" / "locomo10.json").exists():
        raise SystemExit(f"{folder}/locomo/locomo10.json is not there; give the folder of the data sets")
    sizes = [size_of(word) for word in sizes_given.split(",")]
    report: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        for name in LAYOUTS:
            report[name] = child(name, Path(place) / f"{name}.db", sizes_given, folder)
        report["floors"] = child("floors", Path(place) / "one user.db", sizes_given, folder)
        report["loomflow"] = flows(python, folder, Path(place), sizes)
    print(json.dumps(report)) if "--json" in words else print_tables(report)
    if png:
        plot(report, Path(png))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], Path(sys.argv[3]), [size_of(word) for word in sys.argv[4].split(",")], Path(sys.argv[5]))
    else:
        main()
