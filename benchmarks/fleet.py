"""How many nodes, how much memory and what price a memory needs that does not fit on one machine.

    python benchmarks/fleet.py [--skew 1.0] [--records 400] [--adds 4] [--recalls 8] [--dollars 400] [--json]

What a call costs is measured first: CPU of the server, CPU of the client, bytes of a record and of a user, on one node
of each engine, by users whose share of the calls follows Zipf's law. From that, and from the way Loom places users (a
digest of their name, one of a fixed number of buckets, buckets in equal parts on the nodes), the load of every node of
a fleet follows by arithmetic. The arithmetic is checked where it can be: on one, two and three nodes that run here,
with loads that it was not made from. Beyond 20% the program fails. What cannot be checked here (networks, neighbours,
failures, other people's prices) is printed as an assumption.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import numpy as np
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loom import Memory, open_memory
from loom.core.scope import Scope
from loom.stores.postgres import init_schema
from loom.stores.redis.schema import bucket_number
from loom.testing.clusters import redis_cluster
from loom.testing.servers import postgres

BUCKETS = 256
SIZES = (10_000, 1_000_000, 100_000_000)
ALLOWED = 0.2
"""How far a prediction may be from what is measured."""
HEAD = 200_000
"""Users who are placed one by one; those behind them have so small a share that they lie evenly."""
WARM = 15
"""Calls of each kind on each connection of a node before a load: what is done once is not counted."""
IDLE = 3.0
"""Seconds for which nodes are watched before a load."""
WORDS = [
    "garden",
    "river",
    "letter",
    "window",
    "bread",
    "winter",
    "music",
    "train",
    "paper",
    "summer",
    "coffee",
    "mountain",
    "doctor",
    "school",
    "market",
]


class Machine(NamedTuple):
    """A node that can be rented, as an assumption."""

    cores: int
    gigabytes: int
    disk: int
    dollars: float


MACHINE = Machine(cores=8, gigabytes=64, disk=2_000, dollars=400.0)
BUSY, FULL, PEAK, COPIES = 0.5, 0.7, 4.0, 2
MOST_BUCKETS, MOST_SERVERS = 4096, 1000
"""Of one store on a Redis Cluster, and of one cluster, beyond which its own makers advise against it."""
HOT = 0.25
"""The part of a node's working time that one user may have: a user is on one node, however many there are."""
ASSUMED = (
    f"a node has {MACHINE.cores} cores, {MACHINE.gigabytes} GB of memory and {MACHINE.disk:,} GB of disk",
    "its price is a round number of November 2026, and no offer of anybody: give your own with --dollars",
    f"the busiest hour has {PEAK:.0f} times as many calls as the average; a node is then {BUSY:.0%} busy at most",
    f"memory and disk are {FULL:.0%} full at most; every node has a replica ({COPIES} copies in all)",
    "Redis works on one core of a node; Postgres on all of them",
    f"one Redis Cluster has {MOST_SERVERS:,} servers at most; the application splits more users over several",
    f"a user is on one node; the calls of one who needs more than {HOT:.0%} of a busy node (hot) are limited to that",
    "every user has the same number of records, whatever they do: retention sees to it",
    "traffic between machines and backups cost nothing",
    "a process of the application serves the same users all day: it reads a user from Redis once",
    "vectors of the built-in embedder, turns of some 100 characters",
)


@dataclass(frozen=True)
class Load:
    """What users do: `adds` and `recalls` are calls in all, spread over them by Zipf's law with this exponent."""

    users: int
    adds: int
    recalls: int
    skew: float
    seed: int
    """Of the order of the calls; it is in the names of the users, too."""


@dataclass(frozen=True)
class Costs:
    """What calls cost on an engine: CPU milliseconds of the server and of the client, and stored bytes."""

    add: float
    recall: float
    client_add: float
    client_recall: float
    record: float
    user: float


class NodeLoad(NamedTuple):
    """What one node did or will do: CPU seconds and stored bytes."""

    cpu: float
    stored: float


# Where users and their calls are.


def shares(users: int, skew: float) -> np.ndarray[Any, Any]:
    """The part of all calls that each user makes, the most active first."""
    weights = np.arange(1, users + 1, dtype=np.float64) ** -skew
    return weights / weights.sum()


def node_of(user: str, nodes: int) -> int:
    """The node of a user, as the store places them."""
    digest = sha256(Scope("default", user).key().encode()).hexdigest()
    return bucket_number(digest, BUCKETS) * nodes // BUCKETS


def head_shares(users: int, skew: float) -> np.ndarray[Any, Any]:
    """The part of all calls that each of the most active users makes; the sum over the others is an integral."""
    head = min(users, HEAD)
    weights = np.arange(1, head + 1, dtype=np.float64) ** -skew
    first, last = head + 0.5, users + 0.5
    rest = np.log(last / first) if skew == 1 else (last ** (1 - skew) - first ** (1 - skew)) / (1 - skew)
    return weights / (weights.sum() + (rest if users > head else 0.0))


def busiest(head: np.ndarray[Any, Any], rest: float, users: int, nodes: int, buckets: int) -> tuple[float, float]:
    """The most that one node gets of what the users of the head do and of the `rest`, and of all users its part."""
    places = np.random.default_rng(1).integers(0, buckets, len(head)) * nodes // buckets
    sizes = np.bincount(np.arange(buckets) * nodes // buckets, minlength=nodes) / buckets
    calls = np.bincount(places, weights=head, minlength=nodes) + sizes * rest
    people = (np.bincount(places, minlength=nodes) + sizes * max(0, users - len(head))) / users
    return float(calls.max()), float(people.max())


# What a fleet does, by arithmetic.


def predicted(costs: Costs, load: Load, names: Sequence[str], nodes: int) -> list[NodeLoad]:
    """The load of every node of a small fleet, whose users are known by name."""
    part = shares(load.users, load.skew)
    found = [[0.0, 0.0] for _ in range(nodes)]
    for name, share in zip(names, part, strict=True):
        node = found[node_of(name, nodes)]
        node[0] += share * (load.adds * costs.add + load.recalls * costs.recall) / 1000
        node[1] += costs.user + share * load.adds * costs.record
    return [NodeLoad(*node) for node in found]


class Fleet(NamedTuple):
    """What a number of users needs on an engine."""

    users: int
    nodes: int
    machines: int
    clusters: int
    """Stores that the application has to choose from: Redis Clusters, or one for Postgres."""
    buckets: int
    """Of each store, or partitions, to be chosen when it is made."""
    stored_gb: float
    memory_gb: float
    """Of all machines."""
    calls: float
    """A second, at the busiest hour."""
    hottest: float
    """Calls a second of the most active user, if nothing limits them."""
    hot: int
    """Users whose calls are limited, because they need too much of a node."""
    limited: float
    """The part of all calls that this takes."""
    client_cores: float
    dollars: float
    limit: str
    """What asks for more than one node."""


def buckets_for(nodes: int) -> int:
    """Buckets of a store that may grow to so many nodes: sixteen of them differ little in size."""
    return max(BUCKETS, 1 << (16 * nodes - 1).bit_length())


@dataclass(frozen=True)
class Habits:
    """What users have and do, on average: `adds` and `recalls` are those of a user in a day."""

    records: float
    adds: float
    recalls: float
    skew: float


def fleet(costs: Costs, users: int, habits: Habits, *, cores: int, dollars: float) -> Fleet:
    """The smallest fleet that carries so many users."""
    records, adds, recalls = habits.records, habits.adds, habits.recalls
    per_second = PEAK * users / 86_400
    cpu = per_second * (adds * costs.add + recalls * costs.recall) / 1000
    stored = users * (costs.user + records * costs.record)
    space = (MACHINE.gigabytes if cores == 1 else MACHINE.disk) * 1e9
    part = head_shares(users, habits.skew)
    most = HOT * BUSY * cores / cpu
    head, rest = np.minimum(part, most), max(0.0, 1.0 - float(part.sum()))
    nodes, limit = 1, ""
    while True:
        calls, people = busiest(head, rest, users, nodes, buckets_for(nodes))
        if calls * cpu <= BUSY * cores and people * stored <= FULL * space:
            break
        limit = "CPU" if calls * cpu / (BUSY * cores) > people * stored / (FULL * space) else "space"
        nodes += max(1, nodes // 16)
    client = per_second * (adds * costs.client_add + recalls * costs.client_recall) / 1000 / BUSY
    machines = nodes * COPIES
    clusters = -(-machines // MOST_SERVERS) if cores == 1 else 1
    return Fleet(
        users=users,
        nodes=nodes,
        machines=machines,
        clusters=clusters,
        buckets=min(MOST_BUCKETS, buckets_for(-(-nodes // clusters))),
        stored_gb=stored / 1e9,
        memory_gb=machines * MACHINE.gigabytes,
        calls=per_second * (adds + recalls),
        hottest=per_second * (adds + recalls) * float(part[0]),
        hot=int((part > most).sum()),
        limited=float((part - head).sum()),
        client_cores=client,
        dollars=machines * dollars,
        limit=limit,
    )


# What is measured.


def user_names(load: Load) -> list[str]:
    return [f"user {load.seed}.{number}" for number in range(load.users)]


def calls_of(load: Load) -> list[tuple[str, bool]]:
    """Whose call it is, and whether it adds: every user by their share, in a random order."""
    part = shares(load.users, load.skew)
    made: list[tuple[str, bool]] = []
    for is_add, total in ((True, load.adds), (False, load.recalls)):
        counts = np.diff(np.round(np.concatenate([[0.0], np.cumsum(part)]) * total)).astype(int)
        for name, amount in zip(user_names(load), counts, strict=True):
            made += [(name, is_add)] * int(amount)
    Random(load.seed).shuffle(made)
    return made


def text(random: Random) -> str:
    return f"I like {' '.join(random.choices(WORDS, k=14))} and my {random.choice(WORDS)} {random.randrange(1000)}."


class Node(NamedTuple):
    """A node that runs here: the CPU seconds it has used, and the bytes it holds."""

    cpu: Callable[[], float]
    stored: Callable[[], float]


class Running(NamedTuple):
    """A fleet that runs here: a memory for every user, and its nodes."""

    memory_of: Callable[[str], Memory]
    nodes: list[Node]


@asynccontextmanager
async def redis_fleet(nodes: int) -> AsyncGenerator[Running]:
    with redis_cluster(masters=nodes, replicas=0, appendfsync="everysec") as servers:
        url = servers.url(f"buckets={BUCKETS}")
        async with open_memory(url, embedder="static", with_facts=False) as memory:
            masters = sorted(servers.masters(), key=servers.servers.index)

            def node(server: Any) -> Node:
                def cpu() -> float:
                    told = server.ask("INFO", "cpu")
                    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

                return Node(cpu, lambda: float(server.ask("INFO", "memory")["used_memory_dataset"]))

            def same(_: str) -> Memory:
                return memory

            yield Running(same, [node(server) for server in masters])


def process_cpu(folder: Path) -> float:
    """CPU seconds of the server whose files are in a folder: the first process, its children, and those that ended."""
    first = int((folder / "data" / "postmaster.pid").read_text(encoding="ascii").split()[0])
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == first:
            total += int(fields[11]) + int(fields[12])
        elif stat.parent.name == str(first):
            total += sum(int(field) for field in fields[11:15])
    return total / 100


@asynccontextmanager
async def postgres_fleet(nodes: int) -> AsyncGenerator[Running]:
    """Servers of their own, each with its part of the users, as partitions that were split over servers would be."""
    with ExitStack() as stack:
        servers = [stack.enter_context(postgres()) for _ in range(nodes)]
        memories: list[Memory] = []
        for server in servers:
            await init_schema(server.url())
            memories.append(open_memory(server.url("loom_app"), embedder="static", with_facts=False))

        def node(server: Any) -> Node:
            def stored() -> float:
                with psycopg.connect(server.url()) as db:
                    return float((db.execute("SELECT pg_database_size(current_database())").fetchone() or [0])[0])

            return Node(lambda: process_cpu(server.folder), stored)

        def memory_of(user: str) -> Memory:
            return memories[node_of(user, nodes)]

        try:
            yield Running(memory_of, [node(server) for server in servers])
        finally:
            for memory in memories:
                await memory.aclose()


class Engine(NamedTuple):
    """How a fleet starts here, how many cores of a node it uses, and how many calls are under way when it is measured.

    Redis reads what has arrived from several clients in one go, which makes calls cheaper the more there are on a node.
    Its calls come one by one here: that is the most that they cost, and the same on every number of nodes. On Postgres
    each has a process of its own, and only waits for the disk together with others.
    """

    start: Callable[[int], Any]
    cores: int
    at_once: int


ENGINES = {
    "Redis Cluster": Engine(redis_fleet, 1, 1),
    "Postgres": Engine(postgres_fleet, MACHINE.cores, 4),
}


class Observed(NamedTuple):
    """What a load did: on every node, and in this process (CPU seconds for adds and for recalls)."""

    nodes: list[NodeLoad]
    adds: list[float]
    """CPU of the servers and of the client for the adds."""
    recalls: list[float]


async def idle_cpu(nodes: Sequence[Node]) -> list[float]:
    """What each node uses in a second in which nobody calls it: it does not belong to the cost of a call."""
    before, begun = [node.cpu() for node in nodes], time.perf_counter()
    await anyio.sleep(IDLE)
    lasted = time.perf_counter() - begun
    return [(node.cpu() - old) / lasted for node, old in zip(nodes, before, strict=True)]


async def warm_up(running: Running, at_once: int) -> None:
    """Let every node do once what it does once, and hold the first pages of what it holds."""
    names, nodes = (f"warm {number}" for number in count()), len(running.nodes)
    for node in range(nodes):
        here = list(islice((name for name in names if node_of(name, nodes) == node), WARM))
        for is_add in (True, False):
            await call_all(running, here * at_once, Random(node), is_add=is_add, at_once=at_once)


async def observe(running: Running, load: Load, at_once: int, advance: Callable[[], None]) -> Observed:
    """Run a load: all adds, then all recalls, so that each kind can be told from the other."""
    made = calls_of(load)
    idle = await idle_cpu(running.nodes)
    before, begun = [NodeLoad(node.cpu(), node.stored()) for node in running.nodes], time.perf_counter()
    spent: list[list[float]] = []
    for is_add in (True, False):
        start_at, client = time.perf_counter(), time.process_time()
        server = sum(node.cpu() for node in running.nodes)
        users = [user for user, adds in made if adds == is_add]
        await call_all(running, users, Random(load.seed), is_add=is_add, at_once=at_once, advance=advance)
        client = time.process_time() - client
        waited = sum(idle) * (time.perf_counter() - start_at)
        spent.append([sum(node.cpu() for node in running.nodes) - server - waited, client])
    after, lasted = [NodeLoad(node.cpu(), node.stored()) for node in running.nodes], time.perf_counter() - begun
    did = [
        NodeLoad(new.cpu - old.cpu - lasted * rest, new.stored - old.stored)
        for old, new, rest in zip(before, after, idle, strict=True)
    ]
    return Observed(did, *spent)


async def call_all(
    running: Running,
    users: Sequence[str],
    random: Random,
    *,
    is_add: bool,
    at_once: int,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Make a call for each of the users, some at a time."""
    left = iter(users)

    async def call() -> None:
        for user in left:
            memory = running.memory_of(user)
            if is_add:
                await memory.remember(text(random), user_id=user)
            else:
                await memory.recall(random.choice(WORDS), user_id=user)
            advance()

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(call)


def costs_of(few: tuple[Load, Observed], many: tuple[Load, Observed]) -> Costs:
    """The costs from two loads on one node: with the same calls, the second has more users."""
    loads, seen = (few[0], many[0]), (few[1], many[1])
    adds, recalls = sum(load.adds for load in loads), sum(load.recalls for load in loads)
    ms = [1000 * sum(values) for values in zip(*((*one.adds, *one.recalls) for one in seen), strict=True)]
    sizes = np.array([[load.users, load.adds] for load in loads], dtype=np.float64)
    user, record = np.linalg.lstsq(sizes, np.array([one.nodes[0].stored for one in seen]), rcond=None)[0]
    return Costs(ms[0] / adds, ms[2] / recalls, ms[1] / adds, ms[3] / recalls, float(record), float(user))


class Check(NamedTuple):
    """A prediction beside what was measured, on one node of a fleet or on all of them."""

    engine: str
    nodes: int
    what: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def is_close(self) -> bool:
        return abs(self.off) <= ALLOWED


def compare(engine: str, costs: Costs, load: Load, nodes: int, seen: Observed) -> Generator[Check]:
    told = predicted(costs, load, user_names(load), nodes)
    for place, what in enumerate(("CPU, s", "stored, KB")):
        scale = (1.0, 1e-3)[place]
        wanted, found = [node[place] * scale for node in told], [node[place] * scale for node in seen.nodes]
        yield Check(engine, nodes, f"{what}, busiest node", max(wanted), max(found))
        if nodes > 1:
            yield Check(engine, nodes, f"{what}, all nodes", sum(wanted), sum(found))


async def measure(console: Console, skew: float) -> tuple[dict[str, Costs], list[Check]]:
    few, many = Load(30, 500, 250, skew, 1), Load(150, 500, 250, skew, 2)
    trials = {1: Load(90, 600, 300, skew / 2, 3), 2: Load(120, 600, 300, skew, 4), 3: Load(150, 600, 300, skew, 5)}
    total = len(ENGINES) * sum(load.adds + load.recalls for load in (few, many, *trials.values()))
    costs: dict[str, Costs] = {}
    checks: list[Check] = []
    with Progress(console=console) as progress:
        task = progress.add_task("starting", total=total)

        def advance() -> None:
            progress.advance(task)

        for engine, (start, _, at_once) in ENGINES.items():
            for nodes, load in trials.items():
                progress.update(task, description=f"{engine}, {nodes} nodes")
                async with start(nodes) as running:
                    await warm_up(running, at_once)
                    if nodes == 1:
                        seen = [(one, await observe(running, one, at_once, advance)) for one in (few, many)]
                        costs[engine] = costs_of(*seen)
                    found = await observe(running, load, at_once, advance)
                checks += compare(engine, costs[engine], load, nodes, found)
    return costs, checks


# What is printed.


def print_costs(console: Console, costs: dict[str, Costs]) -> None:
    table = Table("engine", "add, server", "add, client", "recall, server", "recall, client", "record", "user",
                  title="what was measured (CPU in ms, bytes stored)")  # fmt: skip
    for engine, cost in costs.items():
        times = (cost.add, cost.client_add, cost.recall, cost.client_recall)
        table.add_row(engine, *(f"{value:.2f}" for value in times), f"{cost.record:,.0f}", f"{cost.user:,.0f}")
    console.print(table)


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    table = Table("engine", "nodes", "what", "predicted", "measured", "off by", title="small fleets, run here")
    for check in checks:
        style = "" if check.is_close else "red"
        values = f"{check.predicted:,.2f}", f"{check.measured:,.2f}", f"{check.off:+.0%}"
        table.add_row(check.engine, str(check.nodes), check.what, *values, style=style)
    console.print(table)


def print_fleets(console: Console, fleets: dict[str, list[Fleet]]) -> None:
    sizes = Table("engine", "users", "calls/s", "stored, GB", "nodes", "machines", "memory, GB", "$/month", "by",
                  title="what it takes")  # fmt: skip
    more = Table("engine", "users", "clusters", "buckets", "client cores", "hottest user, calls/s", "hot users",
                 "calls limited", title="how it is laid out, and who is too much for a node")  # fmt: skip
    for engine, found in fleets.items():
        for one in found:
            values = one.calls, one.stored_gb, one.nodes, one.machines, one.memory_gb, one.dollars
            sizes.add_row(engine, f"{one.users:,}", *(f"{value:,.0f}" for value in values), one.limit)
            hot = f"{one.hottest:,.1f}", f"{one.hot:,}", f"{one.limited:.1%}"
            laid = f"{one.clusters:,}", f"{one.buckets:,}", f"{one.client_cores:,.1f}"
            more.add_row(engine, f"{one.users:,}", *laid, *hot)
    console.print(sizes)
    console.print(more)


def main() -> int:
    """Measure, check and print; the exit code is 1 where a prediction is off by more than is allowed."""
    words = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    given = {"records": 400.0, "adds": 4.0, "recalls": 8.0, "skew": 1.0, "dollars": MACHINE.dollars}
    for name, value in given.items():
        words.add_argument(f"--{name}", type=float, default=value)
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    as_json, dollars = asked.json, asked.dollars
    habits = Habits(asked.records, asked.adds, asked.recalls, asked.skew)
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 120)
    costs, checks = anyio.run(measure, console, habits.skew)
    fleets = {
        engine: [fleet(cost, users, habits, cores=ENGINES[engine].cores, dollars=dollars) for users in SIZES]
        for engine, cost in costs.items()
    }
    print_costs(console, costs)
    print_checks(console, checks)
    day = f"{habits.records:g} records of a user, {habits.adds:g} adds and {habits.recalls:g} recalls a day"
    console.print(f"Every user: {day}, Zipf's law with {habits.skew:g}, ${dollars:g} a month for a node. Assumed:")
    for line in ASSUMED:
        console.print(f"- {line}")
    print_fleets(console, fleets)
    if as_json:
        found = {engine: [one._asdict() for one in sizes] for engine, sizes in fleets.items()}
        told = [{**check._asdict(), "off": check.off} for check in checks]
        document = {"costs": {engine: asdict(cost) for engine, cost in costs.items()}, "checks": told, "fleets": found}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return int(not all(check.is_close for check in checks))


if __name__ == "__main__":
    sys.exit(main())
