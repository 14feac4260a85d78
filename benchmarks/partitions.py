"""Remember and recall in Postgres on plain tables and on eight partitions. Run: python -m benchmarks.partitions.

    python -m benchmarks.partitions [--users 200] [--episodes 20] [--rounds 4] [--json]

Both schemas are in one server, with `fsync` on, and hold the same users with as many episodes each. Then they are asked
in turn, block by block, so that what else the machine does hits both alike: `remember` of one text and `recall` of one
question for users in random order, eight calls at a time. Printed are calls for each second, the client's CPU for each
call, that of the server, and how many times as much eight partitions take.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from loom import Memory, open_memory
from loom.stores.postgres import init_schema
from loom.testing.servers import PostgresServer, postgres

PARTITIONS = (1, 8)
AT_ONCE = 8
WORDS = (
    "tea",
    "train",
    "garden",
    "violin",
    "river",
    "lamp",
    "bread",
    "winter",
    "letter",
    "bicycle",
    "harbour",
    "stone",
)


def text(chance: random.Random) -> str:
    return f"We talked about the {' and the '.join(chance.sample(WORDS, 4))}."


def server_cpu(server: PostgresServer) -> float:
    """The seconds of CPU that the server has taken, with the connections that are over."""
    first = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if entry.name == str(first):
            ticks += sum(map(int, fields[11:15]))
        elif fields[1] == str(first):
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def block(calls: list[Callable[[], Awaitable[Any]]], server: PostgresServer) -> tuple[float, float, float]:
    """Make calls, so many at a time; returns for each of them seconds, CPU of this process and CPU of the server."""
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def make(call: Callable[[], Awaitable[Any]]) -> None:
        async with limit:
            await call()

    start, cpu, theirs = time.perf_counter(), time.process_time(), server_cpu(server)
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(make, call)
    taken = (time.perf_counter() - start, time.process_time() - cpu, server_cpu(server) - theirs)
    seconds, ours, server_seconds = (value / len(calls) for value in taken)
    return seconds, ours, server_seconds


def calls_of(memory: Memory, what: str, users: int, chance: random.Random) -> list[Callable[[], Awaitable[Any]]]:
    order = chance.sample(range(users), users)

    def call(number: int, said: str) -> Callable[[], Awaitable[Any]]:
        user = f"user {number}"
        if what == "remember":
            return lambda: memory.remember(said, user_id=user)
        return lambda: memory.recall(f"What about the {said}?", user_id=user)

    return [call(number, text(chance) if what == "remember" else chance.choice(WORDS)) for number in order]


async def measure(server: PostgresServer, users: int, episodes: int, rounds: int) -> dict[str, dict[int, Any]]:
    figures: dict[str, dict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    chance = random.Random(7)
    memories: dict[int, Memory] = {}
    for amount in PARTITIONS:
        await init_schema(server.url(database=f"with_{amount}"), partitions=amount)
        memory = memories[amount] = open_memory(server.url("loom_app", database=f"with_{amount}"))
        for _ in range(episodes):
            for call in calls_of(memory, "remember", users, chance):
                await call()
    for number in range(rounds * 2):
        for what in ("remember", "recall"):
            # The first of two is not always the same: caches are warmer for the second.
            for amount in PARTITIONS if number % 2 else PARTITIONS[::-1]:
                taken = await block(calls_of(memories[amount], what, users, chance), server)
                if number:  # the first warms up
                    figures[what][amount].append(taken)
    for memory in memories.values():
        await memory.aclose()
    return {
        what: {amount: [median(one) for one in zip(*taken, strict=True)] for amount, taken in of.items()}
        for what, of in figures.items()
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("users", 200), ("episodes", 20), ("rounds", 4)):
        words.add_argument(f"--{name}", type=int, default=usual)
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    import psycopg

    with postgres(fsync="on") as server:
        with psycopg.connect(server.url(), autocommit=True) as db:
            for amount in PARTITIONS:
                db.execute(f"CREATE DATABASE with_{amount}".encode())
        found = anyio.run(measure, server, asked.users, asked.episodes, asked.rounds)
    if asked.json:
        print(json.dumps(found))
    too_much = False
    for what, of in found.items():
        for amount, (seconds, ours, theirs) in of.items():
            if not asked.json:
                print(
                    f"{what}, {amount} partitions: {1 / seconds:.0f} calls/s, client {ours * 1000:.2f} ms CPU, "
                    f"server {theirs * 1000:.2f} ms CPU"
                )
        ratio = of[PARTITIONS[1]][1] / of[PARTITIONS[0]][1]
        too_much |= ratio > 1.3
        if not asked.json:
            print(f"{what}: client CPU {ratio:.2f}x, server CPU {of[PARTITIONS[1]][2] / of[PARTITIONS[0]][2]:.2f}x")
    if too_much:
        raise SystemExit("a call on partitions takes more than 1.3 times the client's CPU")


if __name__ == "__main__":
    main()
