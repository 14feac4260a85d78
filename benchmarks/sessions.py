"""What a durable `remember` costs, what the first recall after opening costs, and how many sessions a process carries.

    python benchmarks/sessions.py [folder] [--minutes 0.5] [--sessions 1000] [--adds 500] [--searches 300]
    python benchmarks/sessions.py [folder] --remember     one text at a time, and 100 in flight
    python benchmarks/sessions.py [folder] --first 100k   the first recall of a user with so many records

Sessions are offered in an open loop: every add and every search starts at its own time, whether or not those before it
are done, so that a process that cannot keep up shows a queue instead of a lower rate. All is durable, on SQLite in a
temporary folder. CPU is that of the whole process; bytes are those handed to write calls (`/proc/self/io`). The floor
of a `remember` is FTS5 and a vector of 1 KB, written by the same texts in the same run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from scale import option, size_of
from scale_data import questions, texts

from loom import Memory, open_memory
from loom.stores.sqlite.connection import Database, connect

TURNS = 300
"""How many texts the table of one `remember` writes, after as many that do not count."""
IN_FLIGHT = 100
LENGTH = 150
TICK = 0.005
"""How often the lag of the event loop is measured, in seconds."""


def open_file(path: Path) -> Memory:
    return open_memory(f"sqlite:{path}", embedder="static", with_facts=False)


def written_bytes() -> int:
    """What this process handed to write calls so far."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def file_bytes(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


def said_texts(folder: Path, count: int) -> list[str]:
    return [text[:LENGTH].ljust(LENGTH, ".") for text in islice(texts(folder), count)]


class Costs:
    """CPU, wall time and written bytes of a piece of work."""

    def __init__(self) -> None:
        self._start = time.process_time(), time.perf_counter(), written_bytes()

    def of_each(self, count: int) -> tuple[float, float, float]:
        cpu, wall, written = self._start
        taken = time.process_time() - cpu, time.perf_counter() - wall, written_bytes() - written
        return taken[0] / count * 1000, taken[1] / count * 1000, taken[2] / count / 1000


# One `remember`.


async def one_by_one(memory: Memory, said: Sequence[str]) -> None:
    for number, text in enumerate(said):
        await memory.remember(text, user_id="u", session_id=f"s{number // 100}")


async def in_flight(memory: Memory, said: Sequence[str], *, users: int) -> None:
    """The same with many at a time, each of a session of its own."""
    lanes = [said[lane::IN_FLIGHT] for lane in range(IN_FLIGHT)]

    async def lane(number: int) -> None:
        for text in lanes[number]:
            await memory.remember(text, user_id=f"u{number % users}", session_id=f"s{number}")

    await asyncio.gather(*map(lane, range(IN_FLIGHT)))


async def measured(path: Path, said: Sequence[str], write: Callable[[Memory, Sequence[str]], Awaitable[None]]) -> str:
    """Half of the texts first, then the cost of each of the others."""
    half = len(said) // 2
    async with open_file(path) as memory:
        await memory.recall("anything", user_id="nobody")  # loads the embedder
        await write(memory, said[:half])
        costs = Costs()
        await write(memory, said[half:])
        cpu, wall, written = costs.of_each(len(said) - half)
    return f"{cpu:.2f} | {wall:.2f} | {written:.1f} | {file_bytes(path) / len(said) / 1000:.2f} |"


def floor(path: Path, said: Sequence[str]) -> str:
    """FTS5 and a vector, one durable transaction each."""
    db: Database = connect(str(path))
    db.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61')")
    db.execute("CREATE TABLE vectors (row INTEGER PRIMARY KEY, data BLOB)")
    half = len(said) // 2
    costs = Costs()
    for number, text in enumerate(said):
        if number == half:
            costs = Costs()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO said VALUES (?)", (text,))
        db.execute("INSERT INTO vectors (data) VALUES (?)", (Random(number).randbytes(1024),))
        db.execute("COMMIT")
    cpu, wall, written = costs.of_each(len(said) - half)
    db.close()
    return f"{cpu:.2f} | {wall:.2f} | {written:.1f} | {file_bytes(path) / len(said) / 1000:.2f} |"


async def remember_table(folder: Path, place: Path) -> None:
    print(f"| one `remember` of {LENGTH} bytes | CPU ms | wall ms | KB written | file KB a record |")
    print("|---|--:|--:|--:|--:|")
    few, many = said_texts(folder, 2 * TURNS), said_texts(folder, 20 * TURNS)
    print("| one by one |", await measured(place / "single.db", few, one_by_one), flush=True)
    for users in (1, IN_FLIGHT):

        async def write(memory: Memory, said: Sequence[str], users: int = users) -> None:
            await in_flight(memory, said, users=users)

        name = f"{IN_FLIGHT} in flight, {users} user{'s' * (users > 1)}"
        print(f"| {name} |", await measured(place / f"{users}.db", many, write), flush=True)
    print("| floor: FTS5 and a vector, one by one |", floor(place / "floor.db", few), flush=True)


# The first recall.


async def first_recall(folder: Path, place: Path, size: int) -> None:
    """CPU of the first recall after opening, beyond that of an embedder that is loaded."""
    stream = texts(folder)
    path = place / "first.db"
    async with open_file(path) as memory:
        for start in range(0, size, 1000):
            await memory.remember(list(islice(stream, min(1000, size - start))), user_id="u", session_id=f"s{start}")
    asked = questions(folder, 30)
    async with open_file(path) as memory:
        await memory.recall(asked[0], user_id="nobody")  # loads the embedder
        times: list[float] = []
        for question in asked:
            start_at = time.process_time()
            await memory.recall(question, user_id="u")
            times.append((time.process_time() - start_at) * 1000)
    print(
        f"| {size:,} | {times[0]:.0f} | {quantile(times[1:], 0.5):.1f} | {quantile(times[1:], 0.95):.1f} |", flush=True
    )


# Many sessions.


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Load:
    """Adds and searches of many sessions, offered at given rates."""

    def __init__(self, memory: Memory, folder: Path, sessions: int) -> None:
        self._memory, self._sessions = memory, sessions
        self._said = said_texts(folder, 5000)
        self._asked = questions(folder, 200)
        self._chance = Random(7)
        self.taken: dict[str, list[float]] = {"add": [], "search": []}
        self.lags: list[float] = []
        self.errors = 0

    async def one(self, what: str, number: int) -> None:
        session = self._chance.randrange(self._sessions)
        start = time.perf_counter()
        try:
            if what == "add":
                said = self._said[number % len(self._said)]
                await self._memory.remember(said, user_id=f"u{session}", session_id="s")
            else:
                await self._memory.recall(self._asked[number % len(self._asked)], user_id=f"u{session}")
        except Exception as error:  # noqa: BLE001 - a load counts errors
            self.errors += 1
            print(error, file=sys.stderr)
        self.taken[what].append((time.perf_counter() - start) * 1000)

    async def offer(self, what: str, rate: float, seconds: float) -> None:
        """Start one every 1/rate seconds, whether or not those before it are done."""
        if not rate:
            return
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))
                tasks.create_task(self.one(what, number))

    async def watch(self) -> None:
        """How much later than asked for the event loop wakes."""
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK)
            self.lags.append((time.perf_counter() - start - TICK) * 1000)


async def many_sessions(folder: Path, place: Path, options: dict[str, float]) -> None:
    sessions, seconds = int(options["sessions"]), options["minutes"] * 60
    async with open_file(place / "many.db") as memory:
        load = Load(memory, folder, sessions)
        await memory.recall("anything", user_id="nobody")
        for start in range(0, sessions, 100):  # every session has said something before
            users = range(start, min(start + 100, sessions))
            said = said_texts(folder, 10)
            await asyncio.gather(*(memory.remember(said, user_id=f"u{user}", session_id="s") for user in users))
        watching = asyncio.create_task(load.watch())
        cpu, begin = time.process_time(), time.perf_counter()
        await asyncio.gather(*(load.offer(what, options[f"{what}s"], seconds) for what in ("add", "search")))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
        watching.cancel()
    done = {what: len(taken) for what, taken in load.taken.items()}
    print(
        "| offered adds + searches/s | done/s | CPU ms an operation | cores | add p50 / p99 ms | search p50 / p99 ms |",
        end="",
    )
    print(" lag p99 ms | errors |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    both = [f"{quantile(load.taken[what], 0.5):.0f} / {quantile(load.taken[what], 0.99):.0f}" for what in load.taken]
    rates = f"{options['adds']:.0f} + {options['searchs']:.0f} | {done['add'] / wall:.0f} + {done['search'] / wall:.0f}"
    each = f"{cpu / max(1, sum(done.values())) * 1000:.2f} | {cpu / wall:.2f}"
    print(f"| {rates} | {each} | {both[0]} | {both[1]} | {quantile(load.lags, 0.99):.0f} | {load.errors} |")


def main() -> None:
    words = sys.argv[1:]
    given = {name: option(words, f"--{name}") for name in ("minutes", "sessions", "adds", "searches", "first")}
    folders = [Path(word) for word in words if not word.startswith("-")]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "locomo" / "locomo10.json").exists():
        raise SystemExit(f"{folder}/locomo/locomo10.json is not there; give the folder of the data sets")
    with TemporaryDirectory() as made:
        place = Path(made)
        if "--remember" in words:
            asyncio.run(remember_table(folder, place))
        elif given["first"] is not None:
            asyncio.run(first_recall(folder, place, size_of(given["first"])))
        else:
            wanted = {"minutes": 0.5, "sessions": 1000, "adds": 500, "searchs": 300}
            wanted |= {name.replace("searches", "searchs"): float(value) for name, value in given.items() if value}
            asyncio.run(many_sessions(folder, place, wanted))


if __name__ == "__main__":
    main()
