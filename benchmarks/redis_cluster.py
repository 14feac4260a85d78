"""A Redis Cluster under load: masters killed, slots moved, users who must not meet, and what a call costs.

    python -m benchmarks.redis_cluster [--rounds 100] [--traces 3000] [--calls 400] [--only rounds,traces,speed]

Rounds: four processes write memories and sessions, with `wait=1` and `appendfsync always`, while slots of their users
are moved to another master and back, and a master is killed and its replica takes over. After each round everything
that was acknowledged must be there, and nothing twice. Traces: a random trace of two users, and the same without the
second, on the cluster and in memory; all that the first user sees must be the same. Speed: remember and recall on a
single server and on clusters of 1, 2 and 3 masters, with the CPU time of the clients and of the servers.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from loom import open_memory
from loom.core.scope import Scope
from loom.errors import StoreUnavailable
from loom.stores.inmemory import InMemoryStore
from loom.stores.redis import RedisCheckpointStore, RedisStore
from loom.stores.redis.cluster import ClusterConnection, slot_of
from loom.testing.clusters import ClusterServer, RedisClusterServers, redis_cluster
from loom.testing.conformance.checkpoint_store import a_checkpoint, a_message
from loom.testing.conformance.isolation import TWINS, observe, random_trace
from loom.testing.conformance.suite import a_job, an_episode
from loom.testing.fakes import START, FakeClock
from loom.testing.servers import RedisServer, redis

PROCESSES = 4
USERS = 3
"""Users of each process in a round."""
TIMEOUT = 3.0
SLACK = 1.0
"""Seconds that a busy machine may take to wake a process whose call is over."""
ENOUGH = 5
"""Writes of each process before and after the trouble of a round."""


# One of the processes that write. It is told a round on its standard input, and to end it; then it says what it did.


@dataclass
class Done:
    """What a process did in a round: the ids that were acknowledged, and how often, by user."""

    records: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    turns: dict[str, int] = field(default_factory=dict[str, int])
    touched: dict[str, int] = field(default_factory=dict[str, int])
    unknown: dict[str, int] = field(default_factory=dict[str, int])
    calls: int = 0
    refused: int = 0
    longest: float = 0.0


class Writer:
    """Writes for its users until it is told to stop; a call that is refused is made again, as callers do."""

    def __init__(self, url: str, name: str) -> None:
        self.memory, self.sessions = RedisStore(url, timeout=TIMEOUT), RedisCheckpointStore(url, timeout=TIMEOUT)
        self.name, self.done, self.is_over = name, Done(), False

    async def round(self, number: int) -> None:
        self.done, self.is_over = Done(), False
        async with anyio.create_task_group() as tasks:
            for place in range(USERS):
                tasks.start_soon(self._write, user_of(number, self.name, place))
                tasks.start_soon(self._talk, user_of(number, self.name, place))

    async def _write(self, user: Scope) -> None:
        ids = self.done.records.setdefault(user.user_id, [])
        self.done.touched[user.user_id] = self.done.unknown[user.user_id] = 0
        while not self.is_over:
            id = f"e{len(ids)}"
            jobs = [a_job(f"j{id}", scope=user, key=id)]
            await self.until_done(partial(self.memory.write, user, put=[an_episode(id)], jobs=jobs))
            ids.append(id)
            try:
                # Not made again: whether it counted is not known, and twice would be seen.
                await self.memory.touch(user, "e0", at=START)
                self.done.touched[user.user_id] += 1
            except StoreUnavailable:
                self.done.unknown[user.user_id] += 1

    async def _talk(self, user: Scope) -> None:
        last, scope = None, user.for_session("chat")
        self.done.turns[user.user_id] = 0
        while not self.is_over:
            number = self.done.turns[user.user_id]
            saved = a_checkpoint(f"c{number}", session_id="chat", position=number + 1, parent=last)
            entries = [a_message(f"c{number}", f"turn {number}")]
            await self.until_done(partial(self.sessions.save, scope, saved, entries=entries, head=last))
            last, self.done.turns[user.user_id] = saved.id, number + 1

    async def until_done(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
            except StoreUnavailable:
                self.done.refused += 1
            else:
                self.done.calls += 1
                return


def user_of(number: int, process: str, place: int) -> Scope:
    return Scope("load", f"round {number} {process} {place}")


async def write(url: str, name: str) -> None:
    """What a writing process does."""
    writer = Writer(url, name)
    in_time = ClusterConnection._in_time

    async def timed(link: ClusterConnection, work: Any) -> Any:
        start = time.monotonic()
        try:
            return await in_time(link, work)
        finally:
            writer.done.longest = max(writer.done.longest, time.monotonic() - start)

    setattr(ClusterConnection, "_in_time", timed)  # noqa: B010 - it is private
    async with aclosing(writer.memory), aclosing(writer.sessions):
        for store in (writer.memory, writer.sessions):
            await writer.until_done(store.guarantees)
        print("ready", flush=True)
        while line := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(writer.round, int(line))
                # It is asked how far it is, with an empty answer for "not yet", until it is told to end.
                while (await anyio.to_thread.run_sync(sys.stdin.readline)).strip() != "end":
                    print(writer.done.calls, flush=True)
                writer.is_over = True
            print(json.dumps(writer.done.__dict__), flush=True)


class Process:
    """A writing process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a writing process has ended")
        return line.strip()

    def wait_for(self, more: int) -> None:
        """Wait until it has done so many calls more."""
        self.say("?")
        start = int(self.hear())
        while True:
            time.sleep(0.02)
            self.say("?")
            if int(self.hear()) >= start + more:
                return


@contextmanager
def processes(command: list[str], amount: int) -> Generator[list[Process]]:
    """Processes of this file that are connected and wait for a line."""
    with ExitStack() as stack:
        found: list[Process] = []
        for number in range(amount):
            run = [sys.executable, "-m", "benchmarks.redis_cluster", *command, f"process {number}"]
            popen = subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(popen.wait)
            stack.callback(popen.stdin.close)  # pyright: ignore[reportOptionalMemberAccess]
            found.append(Process(popen))
        for one in found:
            assert one.hear() == "ready"
        yield found


# Rounds.


def rounds(amount: int) -> dict[str, Any]:
    """So many rounds of trouble; ends with what was lost, doubled and late in all of them."""
    total = {"rounds": 0, "acknowledged": 0, "refused": 0, "lost": 0, "doubled": 0, "late": 0, "longest": 0.0}
    with redis_cluster(cluster_node_timeout="1000", appendfsync="always") as servers:
        url = servers.url("wait=1")
        with processes(["--write", url], PROCESSES) as writers:
            for number in range(amount):
                start = time.monotonic()
                for writer in writers:
                    writer.say(str(number))
                for writer in writers:
                    writer.wait_for(ENOUGH)
                what = trouble(servers, url, number)
                for writer in writers:
                    writer.wait_for(ENOUGH)
                for writer in writers:
                    writer.say("end")
                done = [Done(**json.loads(writer.hear())) for writer in writers]
                found = anyio.run(verify, url, done)
                found["acknowledged"] = sum(one.calls + sum(one.touched.values()) for one in done)
                found["refused"] = sum(one.refused + sum(one.unknown.values()) for one in done)
                longest = max(one.longest for one in done)
                found["late"] = sum(one.longest > TIMEOUT + SLACK for one in done)
                for name, count in found.items():
                    total[name] += count
                total["rounds"] += 1
                total["longest"] = max(total["longest"], longest)
                said = ", ".join(f"{count} {name}" for name, count in found.items())
                print(
                    f"round {number + 1}: {what}; {said}; longest answer {longest:.2f} s; "
                    f"{time.monotonic() - start:.1f} s in all",
                    flush=True,
                )
    return total


def trouble(servers: RedisClusterServers, url: str, number: int) -> str:
    """Move slots of the users there and back, then kill a master and let its replica take over."""
    store = RedisStore(url)
    users = [user_of(number, f"process {process}", 0) for process in range(2)]
    keys = 0
    for slot in {slot_of(store._names.user(user).meta) for user in users}:  # pyright: ignore[reportPrivateUsage]
        home = servers.owner(slot)
        for target in (next(one for one in servers.masters() if one is not home), home):
            keys += servers.move(slot, target, page=5)
    masters = servers.masters()
    killed: ClusterServer = masters[number % len(masters)]
    start = time.monotonic()
    servers.kill(killed)
    servers.wait_for_promotion(killed)
    took = time.monotonic() - start
    killed.start()
    servers.settle()
    return f"{keys} keys moved there and back, master killed and its replica promoted in {took:.1f} s"


async def verify(url: str, done: list[Done]) -> dict[str, int]:
    """How many acknowledged writes of a round are lost, and how many are there twice."""
    lost = doubled = 0
    async with aclosing(RedisStore(url)) as memory, aclosing(RedisCheckpointStore(url)) as sessions:
        for one in done:
            for name, ids in one.records.items():
                user = Scope("load", name)
                kept = [record.id for record in await memory.list(user, limit=100_000)]
                jobs = [job.key for job in await memory.open_jobs(user)]
                lost += len(set(ids) - set(kept)) + len(set(ids) - set(jobs))
                doubled += len(kept) - len(set(ids)) + len(jobs) - len(set(ids))
                first: Any = await memory.get(user, ids[0]) if ids else None
                accesses: int = 0 if first is None else first.accesses
                sure, unknown = one.touched[name], one.unknown[name]
                lost += max(0, sure - accesses)
                doubled += max(0, accesses - sure - unknown)
            for name, turns in one.turns.items():
                chat = Scope("load", name).for_session("chat")
                saved = [checkpoint.id for checkpoint in await sessions.list(chat)]
                lost += turns - len(saved)
                log = await sessions.history(chat, saved[0]) if saved else ()
                doubled += len(log) - turns
                assert [entry.id for entry in log] == [f"c{turn}" for turn in range(len(log))]
    return {"lost": lost, "doubled": max(0, doubled)}


# Traces.


def traces(amount: int) -> dict[str, Any]:
    """So many traces, with what differs: with and without the other user, and from the same trace in memory."""
    with redis_cluster() as servers:
        return anyio.run(_traces, servers.url(), amount)


async def _traces(url: str, amount: int) -> dict[str, Any]:
    differences = 0
    # Time stands still: when something was archived is part of what is seen.
    clock = FakeClock()
    async with aclosing(RedisStore(url, clock=clock)) as store, aclosing(InMemoryStore(clock=clock)) as plain:
        for seed in range(amount):
            mine, theirs = TWINS[seed % len(TWINS)]
            trace = random_trace(random.Random(seed), steps=40)
            both = {"A": Scope(f"both {seed}", mine), "B": Scope(f"both {seed}", theirs)}
            seen = await observe(store, trace, both)
            alone = await observe(store, [op for op in trace if op[0] == "A"], {"A": Scope(f"alone {seed}", mine)})
            due = await observe(plain, trace, both)
            differences += (seen != alone) + (seen != due)
            if (seed + 1) % 500 == 0:
                print(f"{seed + 1} traces, {differences} differences", flush=True)
            for one in (store, plain):
                for scope in (*both.values(), Scope(f"alone {seed}", mine)):
                    await one.forget(scope)
    return {"traces": amount, "differences": differences}


# Speed.


async def call(url: str, name: str) -> None:
    """What a process does that measures calls: as many as it is told, first remember, then recall."""
    async with open_memory(url, embedder="hash") as memory:
        await memory.remember("I drink tea.", user_id=name)
        await memory.recall("tea", user_id=name)
        print("ready", flush=True)
        while line := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip():
            verb, amount = line.split()
            start, cpu = time.monotonic(), time.process_time()
            for number in range(int(amount)):
                user = f"{name} {number % 50}"
                if verb == "remember":
                    await memory.remember(f"On day {number} I drank tea number {number}.", user_id=user)
                else:
                    await memory.recall(f"What did I drink on day {number}?", user_id=user)
            spent = {"wall": time.monotonic() - start, "cpu": time.process_time() - cpu}
            print(json.dumps(spent), flush=True)


def speed(amount: int) -> list[dict[str, Any]]:
    """Calls on a single server and on 1, 2 and 3 masters; each with the CPU time of a call, here and there."""
    with ExitStack() as stack:
        single = stack.enter_context(redis(appendfsync="everysec"))
        places: dict[str, tuple[str, list[RedisServer]]] = {"single server": (single.url(), [single])}
        for masters in (1, 2, 3):
            cluster = stack.enter_context(redis_cluster(masters=masters, replicas=0))
            places[f"{masters} masters"] = (cluster.url(), list(cluster.servers))
        running = {
            name: stack.enter_context(processes(["--call", url], PROCESSES)) for name, (url, _) in places.items()
        }
        spent: dict[tuple[str, str], list[dict[str, float]]] = {}
        # The places take turns, so that a machine that is busy for a while is busy for all of them.
        for _ in range(TURNS):
            for verb in ("remember", "recall"):
                for name, (_, servers) in places.items():
                    spent.setdefault((verb, name), []).append(turn(verb, amount // TURNS, running[name], servers))
    found: list[dict[str, Any]] = [
        {"verb": verb, "place": name, **{what: sum(one[what] for one in turns) / TURNS for what in turns[0]}}
        for (verb, name), turns in spent.items()
    ]
    for one in found:
        base = next(other for other in found if (other["verb"], other["place"]) == (one["verb"], "single server"))
        one["cpu ratio"] = one["client CPU ms"] / base["client CPU ms"]
        print(
            f"{one['verb']} on {one['place']}: {one['calls/s']:.0f} calls/s, client CPU {one['client CPU ms']:.2f} ms "
            f"a call ({one['cpu ratio']:.2f}x), servers {one['server CPU ms']:.2f} ms, the busiest "
            f"{one['busiest ms']:.2f}",
            flush=True,
        )
    return found


TURNS = 4


def turn(verb: str, amount: int, running: list[Process], servers: list[RedisServer]) -> dict[str, float]:
    """So many calls by each process."""
    before = [cpu_of(server) for server in servers]
    for one in running:
        one.say(f"{verb} {amount}")
    told = [json.loads(one.hear()) for one in running]
    used = [cpu_of(server) - start for server, start in zip(servers, before, strict=True)]
    calls = amount * len(running)
    return {
        "calls/s": calls / max(one["wall"] for one in told),
        "client CPU ms": 1000 * sum(one["cpu"] for one in told) / calls,
        "server CPU ms": 1000 * sum(used) / calls,
        "busiest ms": 1000 * max(used) / calls,
    }


def cpu_of(server: RedisServer) -> float:
    """CPU seconds that a server has used."""
    from redis import Redis

    with Redis(port=server.port) as client:
        told: Any = client.info("cpu")  # pyright: ignore[reportUnknownMemberType]
        return told["used_cpu_user"] + told["used_cpu_sys"]


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--traces", type=int, default=3000)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--only", default="rounds,traces,speed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        anyio.run(write, *given.write)
        return
    if given.call:
        anyio.run(call, *given.call)
        return
    asked = given.only.split(",")
    found: dict[str, Any] = {}
    if "speed" in asked:
        found["speed"] = speed(given.calls)
    if "rounds" in asked:
        found["rounds"] = rounds(given.rounds)
        print(found["rounds"])
    if "traces" in asked:
        found["traces"] = traces(given.traces)
        print(found["traces"])
    if given.json:
        print(json.dumps(found))
    failed = found.get("rounds", {})
    if any(failed.get(name) for name in ("lost", "doubled", "late")) or found.get("traces", {}).get("differences"):
        raise SystemExit("something was lost, doubled, late or different")


if __name__ == "__main__":
    main()
