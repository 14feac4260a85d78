"""Load on `loom serve` as it is shipped: CPU per request, capacity, and what 70% of it feels like.

    python -m benchmarks.load [--seconds 300] [--sessions 1000] [--records 100] [--json] [--url sqlite:FILE]

The server is a process of its own on SQLite with durability `full`, reached over HTTP with tokens; the callers are this
process. Every user has so many records at first: searches of users who have little cost less, and what is measured is
to be what the server carries later, too. First each kind of request is sent by callers that wait for their answers (a
closed loop): CPU of the server process for one, all threads together, and how many a second. Then the mix of them,
which is the capacity. Then 70% of it arrive at random moments, whether or not the server keeps up (an open loop), and a
latency counts from the moment at which its request was due. The lag of the server's event loop is what the server
measures of itself, in `/metrics`.

A machine that others use as well is not always as fast. So the caller times a fixed piece of work four times a second,
in CPU time: latencies are also given for the seconds in which that took at most a tenth longer than while the capacity
was measured, since 70% of a capacity says nothing once the machine is slower than that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from loom.server.tokens import TokenFile

Kind = Literal["add", "add and learn", "batch of ten", "search"]
KINDS: Final[tuple[Kind, ...]] = ("add", "add and learn", "batch of ten", "search")
MIXED: Final[tuple[Kind, ...]] = ("add",) * 10 + ("batch of ten",) + ("search",) * 10
"""What is sent among each other, each as often as the others."""
CALLERS: Final = 32
"""Connections of the closed loops."""
MOST_WAITING: Final = 512
"""Connections of the open loop; requests beyond that wait in the caller, and their waiting counts."""
SHARE: Final = 0.7
TOKENS: Final = 8
"""Applications that call; each has a rate limit of its own."""
GOALS: Final = {"add": 2.5, "batch of ten": 0.8}
LATENCIES: Final = {"add": 350.0, "search": 100.0}
LAG: Final = 20.0
_WORK: Final = 10_000
_EVERY: Final = 0.25
_SLOWER: Final = 1.1
_THINGS: Final = ("tea", "coffee", "bread", "cheese", "plums", "pears", "soup", "rice", "noodles", "cake", "honey")
_PLACES: Final = ("Madrid", "Lisbon", "Oslo", "Turin", "Graz", "Ghent", "Porto", "Basel", "Malmo", "Leeds", "Brno")
_NAMES: Final = ("Maria", "Jonas", "Aylin", "Pedro", "Ingrid", "Tomas", "Leila", "Marek", "Sofia", "Bruno")
_SENTENCES: Final = (
    "On day {number} we had {thing} with {name} near the station of {place}.",
    "{name} called about the contract, and wants an answer before week {number}.",
    "The train to {place} was late again; I read {number} pages and bought {thing}.",
    "Could you remind me to send {name} the photos of {place}? There are {number} of them.",
    "My sister's flat in {place} has a garden, so {name} planted {thing} there in row {number}.",
    "I think invoice {number} was paid twice, please check it with {name}.",
    "We decided against {place}: too far, and {name} does not like the {thing}.",
)


def text_of(number: int) -> str:
    """A sentence as people write them; no two are equal."""
    return _SENTENCES[number % len(_SENTENCES)].format(
        number=number,
        thing=_THINGS[number // 3 % len(_THINGS)],
        place=_PLACES[number // 5 % len(_PLACES)],
        name=_NAMES[number // 7 % len(_NAMES)],
    )


@dataclass(slots=True)
class Load:
    """Requests as bytes, made from a running number."""

    sessions: int
    secrets: Sequence[str]
    number: int = 0

    def request(self, kind: Kind) -> bytes:
        self.number += 1
        number = self.number
        user = f"user-{number * 7919 % self.sessions}"
        if kind == "search":
            thing = _THINGS[number % len(_THINGS)]
            return self._post(f"/v1/users/{user}/recall", {"query": f"Where did we have {thing}?", "limit": 5})
        return self._adding(user, 10 if kind == "batch of ten" else 1, learn=kind == "add and learn")

    def filling(self, user: int, count: int) -> bytes:
        """What a user has said before."""
        self.number += 1
        return self._adding(f"user-{user}", count, learn=False)

    def _adding(self, user: str, count: int, *, learn: bool) -> bytes:
        items = [{"text": text_of(self.number * 10 + place)} for place in range(count)]
        return self._post(f"/v1/users/{user}/memories", {"items": items, "session": "talk", "learn": learn})

    def _post(self, path: str, body: dict[str, Any]) -> bytes:
        content = json.dumps(body).encode()
        secret = self.secrets[self.number % len(self.secrets)]
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode() + content


class Line:
    """One connection that stays open; it costs the caller little, so that the server has the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> Line:
        place = urlsplit(address)
        return cls(*await asyncio.open_connection(place.hostname, place.port))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        body = await self._reader.readexactly(int(found.group(1)) if found else 0)
        return int(head[9:12]), body

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def lines_to(address: str, count: int) -> AsyncGenerator[list[Line]]:
    lines = [await Line.open(address) for _ in range(count)]
    try:
        yield lines
    finally:
        for line in lines:
            line.close()


class Yardstick:
    """How long a fixed piece of Python takes, in CPU seconds, at moments of a run."""

    def __init__(self) -> None:
        self._took: list[tuple[float, float]] = []
        threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        while True:
            start = time.thread_time()
            sum(number * number for number in range(_WORK))
            self._took.append((time.perf_counter(), time.thread_time() - start))
            time.sleep(_EVERY)

    def usual(self, since: float) -> float:
        """The median since a moment."""
        return median([took for at, took in self._took if at >= since])

    def slow_seconds(self, since: float, usual: float) -> set[int]:
        """The seconds since a moment in which it took a tenth longer than usual, or more."""
        by_second: dict[int, list[float]] = {}
        for at, took in self._took:
            by_second.setdefault(int(at - since), []).append(took)
        return {second for second, all_of_it in by_second.items() if median(all_of_it) > _SLOWER * usual}


@dataclass(slots=True)
class Measured:
    """What one phase did."""

    begin: float = field(default_factory=time.perf_counter)
    wall: float = 0.0
    cpu: float = 0.0
    taken: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    due: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    errors: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        return sum(map(len, self.taken.values()))

    async def ask(self, line: Line, kind: Kind, request: bytes, due: float) -> None:
        try:
            status, body = await line.send(request)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.errors.append(f"{kind}: {error!r}")
            return
        if status >= 300:
            self.errors.append(f"{kind}: {status} {body[:200]!r}")
        self.taken.setdefault(kind, []).append(time.perf_counter() - due)
        self.due.setdefault(kind, []).append(due)

    def without(self, seconds: set[int]) -> dict[str, list[float]]:
        """The latencies of each kind, but for requests that were due in these seconds, or in the one after."""
        left_out = seconds | {second + 1 for second in seconds}
        return {
            kind: [
                took for took, due in zip(taken, self.due[kind], strict=True) if int(due - self.begin) not in left_out
            ]
            for kind, taken in self.taken.items()
        }


@contextmanager
def server(url: str, tokens: Path) -> Generator[tuple[str, int]]:
    """The address and the process id of a server."""
    command = [sys.executable, "-m", "loom", "serve", "--url", url, "--port", "0", "--json", "--tokens", str(tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"], process.pid
        finally:
            process.send_signal(signal.SIGINT)


def cpu_of(process: int) -> float:
    """CPU seconds of a process, all threads."""
    return time.clock_gettime(~process << 3 | 2)  # the clock of another process, as clock_getcpuclockid() names it


async def closed(address: str, process: int, load: Load, kinds: Sequence[Kind], *, seconds: float) -> Measured:
    """Callers that wait for each answer before they ask again."""
    done = Measured()
    order = random.Random(18).choices(kinds, k=10_000)
    next_kind = iter(order * 100)
    begin, start, end = time.perf_counter(), cpu_of(process), time.perf_counter() + seconds

    async def call(line: Line) -> None:
        while (now := time.perf_counter()) < end:
            kind = next(next_kind)
            await done.ask(line, kind, load.request(kind), now)

    async with lines_to(address, CALLERS) as lines:
        await asyncio.gather(*(call(line) for line in lines))
    done.wall, done.cpu = time.perf_counter() - begin, cpu_of(process) - start
    return done


async def opened(address: str, process: int, load: Load, *, rate: float, seconds: float) -> Measured:
    """Requests that arrive at random moments, `rate` a second."""
    done, chance = Measured(), random.Random(7)
    begin, start = time.perf_counter(), cpu_of(process)
    running: set[asyncio.Task[None]] = set()
    async with lines_to(address, 0) as lines:
        idle: asyncio.Queue[Line] = asyncio.Queue()

        async def call(kind: Kind, request: bytes, due: float) -> None:
            if idle.empty() and len(lines) < MOST_WAITING:
                lines.append(await Line.open(address))
                idle.put_nowait(lines[-1])
            line = await idle.get()
            try:
                await done.ask(line, kind, request, due)
            finally:
                idle.put_nowait(line)

        due = begin
        while due < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            kind = chance.choice(MIXED)
            task = asyncio.create_task(call(kind, load.request(kind), due))
            running.add(task)
            task.add_done_callback(running.discard)
            due += chance.expovariate(rate)
        await asyncio.gather(*running)
    done.wall, done.cpu = time.perf_counter() - begin, cpu_of(process) - start
    return done


async def lags(address: str, secret: str) -> dict[float, int]:
    """How often the event loop of the server was late, at most by each of these seconds, since it started."""
    line = await Line.open(address)
    head = f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
    _, body = await line.send(head.encode())
    line.close()
    found = re.findall(r'loom_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)', body.decode())
    return {float(bound): int(count) for bound, count in found}


def lag_p99(before: dict[float, int], after: dict[float, int]) -> float:
    """The bound in milliseconds below which 99 of 100 of the lags between two readings are."""
    counts = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    total = max(counts.values(), default=0)
    return next((bound * 1000 for bound, count in sorted(counts.items()) if count >= 0.99 * total), float("inf"))


def percentile(values: Sequence[float], share: float) -> float:
    """In milliseconds."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


async def measure(
    url: str, folder: Path, *, seconds: float, sessions: int, records: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """All phases."""
    tokens, yardstick = TokenFile(folder / "tokens.json"), Yardstick()
    load = Load(sessions, [tokens.add(f"application {number}") for number in range(TOKENS)])
    operator = tokens.add("operator", rights=["operate"])
    each = max(3.0, min(15.0, seconds / 10))
    with server(url, tokens.path) as (address, process):
        say(f"filling {sessions} sessions with {records} records each")
        async with lines_to(address, CALLERS) as lines:
            fill = Measured()
            for start in range(0, sessions, CALLERS):
                users = range(start, min(start + CALLERS, sessions))
                some = [(line, load.filling(user, records)) for line, user in zip(lines, users, strict=False)]
                await asyncio.gather(*(fill.ask(line, "batch of ten", request, 0) for line, request in some))
        found: dict[str, Any] = {"errors": fill.errors[:5], "per request": {}}
        for kind in KINDS:
            say(f"closed loop: {kind}")
            done = await closed(address, process, load, [kind], seconds=each)
            per = done.cpu / max(done.count, 1) * 1000 / (10 if kind == "batch of ten" else 1)
            found["per request"][kind] = {"cpu_ms": per, "per_second": done.count / done.wall, "count": done.count}
            found["errors"] += done.errors[:5]
        say("closed loop: the mix")
        done = await closed(address, process, load, MIXED, seconds=each)
        found["capacity"] = done.count / done.wall
        found["capacity_cpu_ms"] = done.cpu / max(done.count, 1) * 1000
        found["errors"] += done.errors[:5]
        rate = found["capacity"] * SHARE
        say(f"open loop: {rate:.0f} a second for {seconds:.0f} s")
        usual, before = yardstick.usual(done.begin), await lags(address, operator)
        done = await opened(address, process, load, rate=rate, seconds=seconds)
        found["loop_lag_p99_ms"] = lag_p99(before, await lags(address, operator))
        found["open"] = {
            "rate": rate,
            "seconds": seconds,
            "count": done.count,
            "cpu_share": done.cpu / done.wall,
            "p50_ms": {kind: percentile(taken, 0.5) for kind, taken in done.taken.items()},
            "p99_ms": {kind: percentile(taken, 0.99) for kind, taken in done.taken.items()},
            "errors": len(done.errors),
        }
        slow = yardstick.slow_seconds(done.begin, usual)
        found["open"]["slow_seconds"] = len(slow)
        found["open"]["slower"] = yardstick.usual(done.begin) / usual
        as_fast = done.without(slow)
        found["open"]["p99_ms_as_fast"] = {kind: percentile(taken, 0.99) for kind, taken in as_fast.items()}
        found["errors"] += done.errors[:5]
    return found


def report(found: dict[str, Any]) -> None:
    console = Console()
    table = Table("request", "CPU ms of the server", "goal", "a second, closed loop")
    for kind, one in found["per request"].items():
        name = f"one of a {kind}" if kind == "batch of ten" else kind
        goal = f"<= {GOALS[kind]}" if kind in GOALS else ""
        table.add_row(name, f"{one['cpu_ms']:.2f}", goal, f"{one['per_second']:.0f}")
    console.print(table)
    console.print(
        f"capacity: {found['capacity']:.0f} requests/s of the mix, {found['capacity_cpu_ms']:.2f} CPU ms each"
    )
    done = found["open"]
    console.print(
        f"at {SHARE:.0%} of it, {done['rate']:.0f}/s for {done['seconds']:.0f} s ({done['count']:,} requests):"
    )
    for kind, value in done["p99_ms"].items():
        goal = f" (goal < {LATENCIES[kind]:.0f})" if kind in LATENCIES else ""
        console.print(f"  {kind}: p50 {done['p50_ms'][kind]:.1f} ms, p99 {value:.1f} ms{goal}")
    console.print(
        f"  the machine took {done['slower']:.2f} times as long for a fixed piece of work as while the capacity was "
        f"measured; without the {done['slow_seconds']} seconds of more than {_SLOWER}: "
        + ", ".join(f"{kind} p99 {value:.1f} ms" for kind, value in done["p99_ms_as_fast"].items())
    )
    console.print(f"  event loop late by at most {found['loop_lag_p99_ms']:.0f} ms, 99 of 100 times (goal < {LAG:.0f})")
    console.print(f"  errors: {done['errors']} (goal 0); server CPU {done['cpu_share']:.0%} of one core")
    for error in found["errors"]:
        console.print(f"  ! {error}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=100, help="what each user has at first")
    parser.add_argument("--url", help="the store; by default a new SQLite file")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    console = Console(stderr=True)
    with TemporaryDirectory() as folder:
        url = given.url or f"sqlite:{folder}/load.db"
        sizes = {"sessions": given.sessions, "records": given.records}
        found = asyncio.run(measure(url, Path(folder), seconds=given.seconds, **sizes, say=console.print))
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        report(found)


if __name__ == "__main__":
    main()
