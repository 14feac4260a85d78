"""The vectors of a large user have an index of their own, which finds what comparing all would find."""

import random

import anyio
import numpy as np
import pytest

from loom.core.filter import Eq
from loom.protocols.memory_store import Query
from loom.stores.postgres import PostgresStore, init_schema, search
from loom.stores.postgres.connection import owner_of
from loom.stores.postgres.schema import SCHEMA, VERSION, as_owner
from loom.stores.postgres.search import Known, index_large_users, index_name, look, packed
from loom.testing.conformance.suite import ALICE, BOB, an_episode

pytestmark = pytest.mark.anyio

LARGE = 300
INDEXES = "SELECT relname FROM pg_class WHERE starts_with(relname, 'near_') ORDER BY 1"


def some_vectors(seed, amount, size=16):
    chance = random.Random(seed)
    return [[chance.gauss(0, 1) for _ in range(size)] for _ in range(amount)]


async def fill(store, scope, amount, size=16):
    records = [an_episode(f"e{n:04}", speaker="rare" if n % 100 == 7 else "often") for n in range(amount)]
    vectors = some_vectors(scope.user_id, amount, size)
    await store.put(scope, *records)
    await store.put_vectors(scope, {record.id: vector for record, vector in zip(records, vectors, strict=True)})


async def index(server):
    async with as_owner(server.admin, SCHEMA, "here") as db:
        await index_large_users(db, SCHEMA, at_least=LARGE)
    return [name for (name,) in server.execute(INDEXES)]


@pytest.fixture
async def store(server):
    async with PostgresStore(server.app) as store:
        await store.bind("test:16", 16)
        await fill(store, ALICE, LARGE)
        await fill(store, BOB, LARGE - 1)
        yield store
    server.empty()
    await index(server)


async def answers(store, scope=ALICE, **asked):
    return [await store.search(scope, Query(vector=vector, **asked)) for vector in some_vectors(9, 20)]


def shared(found, due):
    """The share of the hits due that were found."""
    ids = [
        ({hit.item.id for hit in one}, {hit.item.id for hit in other}) for one, other in zip(found, due, strict=True)
    ]
    return sum(len(one & other) for one, other in ids) / sum(len(other) for _, other in ids)


async def test_only_a_large_user_has_an_index_and_it_finds_the_same(store, server):
    exact, of_bob = await answers(store), await answers(store, BOB)
    assert await index(server) == [index_name(owner_of(ALICE))]
    assert await index(server) == [index_name(owner_of(ALICE))]
    found = await answers(store)
    assert shared(found, exact) >= 0.95
    assert {hit.item.id: hit.score for hit in found[0]}.items() & {h.item.id: h.score for h in exact[0]}.items()
    assert [hit.why.keys() for hit in found[0]] == [{"dense"}] * 10
    assert await answers(store, BOB) == of_bob


async def test_init_makes_the_index_of_a_user_with_very_many_vectors(store, server):
    owner, told = owner_of(ALICE), []
    await store.forget(ALICE)
    server.execute(
        "WITH made AS (INSERT INTO loom.records (owner, number, id, kind, origin, trusted) "
        "SELECT %s, n, 'r' || n, 'episode', 'user', 0 FROM generate_series(1, %s) AS n RETURNING owner, number) "
        "INSERT INTO loom.vectors SELECT owner, number, array_fill(1::real + number, ARRAY[16])::vector FROM made",
        *(owner, search.INDEXED_FROM),
    )
    await init_schema(server.admin, progress=lambda *done: told.append(done))
    assert [name for (name,) in server.execute(INDEXES)] == [index_name(owner)]
    assert told == [(0, 1)]


async def test_the_planner_takes_the_index(store, server):
    await index(server)

    async def is_planned(db, row):
        assert Known(*row) == (LARGE, LARGE, "test:16", 16, True)
        await db.execute("SET LOCAL enable_seqscan TO off")  # a table this small is read in no time
        await db.execute("SET LOCAL enable_sort TO off")
        sql, values = search.nearest_by_index(owner_of(ALICE), packed(np.ones(16)), 10, 16)
        plan = await (await db.execute(f"EXPLAIN {sql}".encode(), values)).fetchall()
        return any(index_name(owner_of(ALICE)) in line for (line,) in plan)

    async def known(_, row):
        return Known(*row)

    assert await store._server.read(ALICE, look(ALICE, 10), is_planned)
    for scope, limit in ((BOB, 10), (ALICE, 501), (ALICE, None)):
        assert not (await store._server.read(scope, look(scope, limit), known)).in_index


async def test_a_narrow_filter_still_finds_all(store, server):
    where = Eq("speaker", "rare")
    exact = await answers(store, where=where)
    await index(server)
    assert await answers(store, where=where) == exact
    assert [len(hits) for hits in exact] == [3] * 20


async def test_writes_go_on_while_an_index_is_made(store, server):
    """It waits for those who began before it, and nobody waits for it."""
    async with anyio.create_task_group() as tasks, store._server.transaction(BOB) as db:
        await db.execute("LOCK TABLE vectors IN ROW EXCLUSIVE MODE")  # as one does who has written and goes on
        tasks.start_soon(index, server)
        while not server.execute("SELECT 1 FROM pg_stat_progress_create_index"):
            await anyio.lowlevel.checkpoint()
        await store.put_vectors(ALICE, {"e0001": [1.0] * 16})
        assert server.execute("SELECT 1 FROM pg_stat_progress_create_index")
    found = await store.search(ALICE, Query(vector=[1.0] * 16, limit=1))
    assert [hit.item.id for hit in found] == ["e0001"]


async def test_another_embedder_is_not_kept_out_by_an_old_index(store, server):
    await index(server)
    await store.rebind("test:8", 8)
    await fill(store, ALICE, LARGE, 8)
    (hits, *_) = [await store.search(ALICE, Query(vector=vector)) for vector in some_vectors(9, 1, 8)]
    assert len(hits) == 10
    old = server.execute("SELECT oid FROM pg_class WHERE starts_with(relname, 'near_')")
    assert await index(server) == [index_name(owner_of(ALICE))]
    assert server.execute("SELECT oid FROM pg_class WHERE starts_with(relname, 'near_')") != old


async def test_the_index_goes_with_the_user(store, server):
    await index(server)
    await store.forget(ALICE)
    assert await store.search(ALICE, Query(vector=[1.0] * 16)) == ()
    assert await index(server) == []


async def test_describe_says_what_is_in_effect(store, server):
    told = await store.describe()
    assert told["server"].startswith("PostgreSQL 18.")
    assert "pgvector 0." in told["server"]
    assert told["durability"].startswith("not safe from a power cut: fsync=off")
    assert told["isolation"] == "row-level security forced, role loom_app (bound by it)"
    assert told["index"] == "exact; 599 records, 599 vectors"
    assert (told["embedder"], told["schema"]) == ("test:16 (16 numbers)", f"loom, format {VERSION}")
    await index(server)
    assert (await store.describe())["index"].startswith("HNSW for 1 users, exact for the others; 599")
    off, on = (f"ALTER TABLE loom.keys {how} ROW LEVEL SECURITY" for how in ("NO FORCE", "FORCE"))
    with server.changed(off, on):
        assert (await store.describe())["isolation"].startswith("no row-level security on keys, role loom_app")
    async with PostgresStore(server.admin, allow_owner=True) as owner:
        assert "role postgres (superuser, bypasses row-level security" in (await owner.describe())["isolation"]
