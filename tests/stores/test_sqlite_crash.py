"""What the SQLite store promises when processes die, meet or forget."""

import base64
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from loom.core.record import Fact, Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.protocols.memory_store import Job, Query
from loom.stores._record_table import unit_vector
from loom.stores.sqlite import SqliteStore
from tests.stores.crash_child import ALICE, AT, an_episode

pytestmark = pytest.mark.anyio

BOB = Scope(user_id="bob")
KILLS = 30


def start(path, name, writers, each):
    command = [sys.executable, "-m", "tests.stores.crash_child", str(path), name, str(writers), str(each)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_sound(path):
    db = apsw.Connection(str(path))
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()


async def check_equal(store, acknowledged):
    """Every acknowledged write is there once, with its key and job, and the index equals the records."""
    kept = [record.id for record in await store.list(ALICE, limit=100_000)]
    assert len(kept) == len(set(kept))
    assert set(acknowledged) <= set(kept)
    assert await store.pending(ALICE) == len(kept)
    hits = await store.search(ALICE, Query(text="tea around", limit=100_000))
    assert sorted(hit.item.id for hit in hits) == kept
    assert all(set(hit.why) == {"bm25", "bm25.around"} for hit in hits)
    return kept


async def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path):
    path, acknowledged, chance = tmp_path / "memory.db", [], random.Random(7)
    for kill in range(KILLS):
        child = start(path, f"k{kill}w", writers=4, each=10_000)
        # The moment is counted in acknowledgements, not in seconds, and so is the same on any machine.
        lines = [child.stdout.readline() for _ in range(chance.randrange(1, 60))]
        child.kill()
        rest, errors = child.communicate()
        assert errors == ""
        acknowledged += [
            line.strip() for line in "".join([*lines, rest]).splitlines(keepends=True) if line.endswith("\n")
        ]
    check_sound(path)
    async with SqliteStore(path) as store:
        kept = await check_equal(store, acknowledged)
    assert len(acknowledged) >= KILLS
    print(f"{KILLS} kills, {len(acknowledged)} acknowledged, {len(kept)} kept")  # noqa: T201 - the count is the result


async def test_two_processes_with_four_writers_each_never_see_a_locked_file(tmp_path):
    path = tmp_path / "memory.db"
    children = [start(path, name, writers=4, each=50) for name in ("a", "b")]
    done = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], done
    acknowledged = [id for out, _ in done for id in out.split()]
    assert len(acknowledged) == 400
    check_sound(path)
    async with SqliteStore(path) as store:
        assert len(await check_equal(store, acknowledged)) == 400


WORDS = [f"{stem}canary{n}" for n, stem in enumerate(("zeppelin", "quokka", "marzipan", "xylograph", "fjordlike"))]
USER = "eve-canaryuser"
NUMBERS = [0.123, -0.456, 0.789, 0.321]


def traces():
    """What a forgotten user may leave: ends of words, in three encodings, and the bytes of vectors."""
    found = []
    for word in (*WORDS, USER):
        end = word[-9:]
        found += [end.encode(), end.encode("utf-16-le"), end.encode("utf-16-be")]
        found += [base64.b64encode(word.encode()[shift:])[:8] for shift in range(3)]
    unit = unit_vector(NUMBERS, 4, "a vector").tolist()
    return [*found, *(struct.pack("<f", n) for n in unit)]


def found_in(folder):
    data = b"".join(file.read_bytes() for file in sorted(Path(folder).iterdir()))
    return [trace for trace in traces() if trace in data]


async def write_canaries(store, scope):
    one, two, three, four, five = WORDS
    fact = Fact(
        id=f"f{five}", subject=two, predicate="likes", object=three, recorded_at=AT, provenance=Provenance("user")
    )
    block = WorkingBlock(name=four, text=one, updated_at=AT, provenance=Provenance("user"))
    jobs = [Job(id=f"j{n}", scope=scope, kind="digest", key=f"{one}{n}", run_at=AT, payload={"t": two}) for n in (1, 2)]
    encoded = [base64.b64encode(word.encode()).decode() for word in (*WORDS, USER)]
    episodes = [an_episode(f"e{n}{five}") for n in range(300)]
    await store.write(
        scope,
        put=[*episodes, fact, block],
        keys={episode.id: {f"kind{four}": " ".join([*WORDS, *encoded])} for episode in episodes},
        jobs=jobs,
    )
    (lease,) = await store.lease(now=AT, until=AT.replace(year=2027), scope=scope)
    await store.fail(lease, reason=one, now=AT, retry_at=None)
    await store.put_vectors(scope, {episodes[0].id: NUMBERS})
    await store.search(scope, Query(text=one, vector=NUMBERS))


async def test_forgetting_leaves_no_byte_of_the_user(tmp_path):
    eve, planted = Scope(user_id=USER), WORDS[0].encode()
    async with SqliteStore(tmp_path / "memory.db") as store:
        await store.bind("test:4", 4)
        await store.put(BOB, *(an_episode(f"b{n}") for n in range(50)))
        before = found_in(tmp_path)
        await write_canaries(store, eve)
        # UTF-16 and some shifts of base64 are never written, so the scanner is tried on a planted file too.
        (tmp_path / "planted").write_bytes(b" ".join(traces()))
        assert found_in(tmp_path) == traces()
        (tmp_path / "planted").unlink()
        seen = found_in(tmp_path)
        assert planted in b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert len(seen) >= 2 * (len(WORDS) + 1) + len(NUMBERS)
        receipt = await store.forget(eve)
        assert receipt.pending == ()
        assert receipt.removed == {"episode": 300, "fact": 1, "block": 1, "job": 1, "dead_letter": 1}
        assert (before, found_in(tmp_path)) == ([], [])
        assert await store.count(BOB) == 50
        assert store._cache._held == {}


async def test_forgetting_leaves_no_byte_of_words_that_were_moved(tmp_path, small_runs):
    eve, chance = Scope(user_id=USER), random.Random(11)
    async with SqliteStore(tmp_path / "memory.db", durability="fast") as store:
        for n in range(200):
            said = [f"{chance.choice(WORDS)} {chance.choice(WORDS)} {'tea ' * chance.randrange(40)}" for _ in range(5)]
            await store.put(eve, *(replace(an_episode(f"e{chance.randrange(600)}"), text=text) for text in said))
            await store.put(BOB, an_episode(f"b{n}"))
            if n % 20 == 0:
                await store.delete(eve, *(f"e{chance.randrange(600)}" for _ in range(5)))
        assert [word for word in WORDS if word[-9:].encode() in found_in(tmp_path)] == WORDS
        assert (await store.forget(eve)).pending == ()
        assert found_in(tmp_path) == []
        assert await store.count(BOB) == 200


async def test_an_open_reader_makes_the_receipt_say_what_is_pending(tmp_path):
    path, eve = tmp_path / "memory.db", Scope(user_id=USER)
    async with SqliteStore(path) as store:
        await store.bind("test:4", 4)
        await write_canaries(store, eve)
        reader = apsw.Connection(str(path))
        cursor = reader.execute("SELECT * FROM records")
        next(cursor)
        receipt = await store.forget(eve)
        assert len(receipt.pending) == 1
        assert "write-ahead log" in receipt.pending[0]
        assert found_in(tmp_path) != []
        cursor.close(True)
        reader.close()
        await store.put(BOB, an_episode("b1"))  # the log is emptied behind the next write
        assert (await store.forget(eve)).pending == ()
        assert found_in(tmp_path) == []
