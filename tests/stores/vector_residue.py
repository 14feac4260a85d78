"""What stays of a forgotten user's vectors in the files of an engine, beside what the receipt says of it."""

import random
import struct

from loom.protocols.memory_store import Query
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, BOB, an_episode
from loom.testing.fakes import FakeClock
from loom.wrappers.indexed import IndexedStore

EMBEDDER = ("residue:1:16", 16)


def vector_of(id):
    """A unit vector whose numbers no engine rounds."""
    chance = random.Random(id)
    return [chance.choice((-0.25, 0.25)) for _ in range(16)]


IDS = [f"canary-{number:03}" for number in range(20)]


def found_in(folder):
    """How many of the ids and of the vectors, as 32-bit numbers or as a pickle has them, stand in the files."""
    held = b"".join(file.read_bytes().replace(bytes(4096), b"") for file in folder.rglob("*") if file.is_file())
    vectors = [vector_of(id) for id in IDS]
    as_numbers = [struct.pack("<16f", *vector) for vector in vectors]
    as_pickle = [b"".join(b"G" + struct.pack(">d", number) for number in vector) for vector in vectors]
    return {
        "ids": sum(id.encode() in held for id in IDS),
        "vectors": sum(a in held or b in held for a, b in zip(as_numbers, as_pickle, strict=True)),
    }


async def check_residue(tmp_path, open_index, finish):
    """Forget a user; returns what was found before, after, and after what the receipt says was done."""
    folder, clock = tmp_path / "index", FakeClock()

    def opened():
        primary = SqliteStore(tmp_path / "memory.db", clock=clock)
        return IndexedStore(primary, open_index(folder), clock=clock)

    async with opened() as store:
        await store.bind(*EMBEDDER)
        for scope, ids in ((ALICE, IDS), (BOB, ["b"])):
            await store.put(scope, *(an_episode(id) for id in ids))
            await store.put_vectors(scope, {id: vector_of(id) for id in ids})
    before = found_in(folder)
    async with opened() as store:
        receipt = await store.forget(ALICE)
        assert store._index.residue in receipt.pending
    after = found_in(folder)
    async with opened() as store:
        await finish(store, folder)
    done = found_in(folder)
    async with opened() as store:
        await store.bind(*EMBEDDER)
        assert (await store.verify()).is_equal
        assert [hit.item.id for hit in await store.search(BOB, Query(vector=vector_of("b")))] == ["b"]
    return before, after, done
