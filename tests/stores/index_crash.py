"""Kills processes that write to a store with an index beside it, at random moments, and looks at what they leave.

`python -m tests.stores.index_crash ENGINE FOLDER KILLS SEED` prints a count of each thing that was seen, as JSON.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import anyio

from loom.protocols.memory_store import Query
from loom.stores.chroma import ChromaVectorStore
from loom.stores.qdrant import QdrantVectorStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, an_episode
from loom.wrappers.indexed import IndexedStore

ENGINES = {
    "chroma": lambda folder: ChromaVectorStore(folder / "index"),
    "qdrant": lambda folder: QdrantVectorStore(folder / "index"),
    "qdrant-edge": lambda folder: QdrantVectorStore(f"edge:{folder}/index"),
}
LONGEST = 20
"""Lines that a process may say, at the most, from its first write until it is killed."""


def vector_of(id):
    """A vector that is another for each id and text."""
    chance = random.Random(id)
    return [chance.gauss(0, 1) for _ in range(3)]


class Writer:
    """One life of a process: looks at what the last one left, says so, and writes until it is killed."""

    def __init__(self, engine, folder, life, acknowledged, say):
        self.store = IndexedStore(SqliteStore(folder / "memory.db"), ENGINES[engine](folder))
        self.life, self.acknowledged, self.say = life, acknowledged, say

    async def live(self):
        await self.say_what_was_left()
        number = 0
        while True:
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(self.write, f"{self.life:05}.{number:05}")
                    number += 1

    async def say_what_was_left(self):
        left = await self.store.verify()
        if self.life % 2:
            repaired = await self.store.verify(repair=True)
            assert repaired.is_repaired is not left.is_equal
        await self.store.bind("crash:1:3", 3)
        seen = {"left in step" if left.is_equal else "left behind": 1}
        seen["lost"] = seen["back again"] = 0
        for id, is_there in self.acknowledged.items():
            held = await self.store.get(ALICE, id)
            seen["lost"] += is_there is True and held is None
            seen["back again"] += is_there is False and held is not None
        ids = await self.store._index.ids(ALICE)
        seen["doubled"] = len(ids) - len(set(ids))
        seen["not repaired"] = int(not (await self.store.verify()).is_equal or self.store.failure is not None)
        if ids:
            (hit,) = await self.store.search(ALICE, Query(vector=vector_of(ids[0]), limit=1))
            seen["wrong answers"] = int(hit.item.id != ids[0])
        self.say({"seen": seen})

    async def write(self, id):
        await self.store.put(ALICE, an_episode(id, "piano"))
        await self.store.put_vectors(ALICE, {id: vector_of(id)})
        self.say({"id": id, "is_there": True})
        if random.random() < 0.5:
            self.say({"id": id, "is_there": None})  # from now on nobody knows
            await self.store.delete(ALICE, id)
            self.say({"id": id, "is_there": False})


def start(engine, folder, life, acknowledged):
    """A new process that begins one life; returns its id and where it speaks. It shares what is imported already."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, os.fdopen(reading, "rb")
    os.close(reading)

    def say(what):
        os.write(writing, json.dumps(what).encode() + b"\n")

    async def live():
        await Writer(engine, folder, life, acknowledged, say).live()

    try:
        anyio.run(live)
    except BaseException as error:  # noqa: BLE001 - the parent is to know
        say({"error": f"{type(error).__name__}: {error}"})
    os._exit(1)


def campaign(engine, folder, kills, seed):
    """Let so many processes live and die, one after the other, and one more that only looks."""
    chance, acknowledged, seen = random.Random(seed), {}, Counter()
    for life in range(kills + 1):
        pid, said = start(engine, folder, life, acknowledged)
        # The first line says what was found. The moment is counted in lines, and so is the same on any machine; at
        # least one write came to its end then, and others are on their way.
        lines = [said.readline() for _ in range(1 + (chance.randrange(1, LONGEST) if life < kills else 0))]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with said:
            lines += said.readlines()
        for line in lines:
            if not line.endswith(b"\n"):
                continue
            told = json.loads(line)
            if "error" in told:
                raise SystemExit(told["error"])
            seen.update(told.get("seen", {}))
            if "id" in told:
                acknowledged[told["id"]] = told["is_there"]
    return {"kills": kills, "acknowledged": len(acknowledged), **seen}


if __name__ == "__main__":
    print(json.dumps(campaign(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))  # noqa: T201
