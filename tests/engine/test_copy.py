"""Copying a store to another: everything arrives, a copy that is broken off goes on, and what differs is said."""

import random
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from loom.admin.copy import PAGE, compare_user, copy_places, copy_store, copy_user
from loom.admin.maintenance import verify_store
from loom.core.record import Layer
from loom.core.scope import Scope
from loom.engine import open_memory
from loom.engine.urls import Opening, store_at
from loom.protocols.memory_store import AdminStore
from loom.providers.embedding.local import HashEmbedder
from loom.stores.inmemory import InMemoryStore
from loom.stores.postgres import PostgresStore
from loom.stores.redis import RedisStore
from loom.stores.sqlite import SqliteStore
from loom.testing.conformance.suite import ALICE, BOB, TWINS, a_block, a_fact, a_job, an_episode, one_of_each
from loom.testing.fakes import START, Interrupter
from loom.wrappers.composite import CompositeStore
from loom.wrappers.indexed import IndexedStore
from tests.engine.breaking import Breaking, Broken

pytestmark = pytest.mark.anyio

# Checked by pyright, signatures included.
WHOLE: tuple[type[AdminStore], ...] = (
    InMemoryStore,
    SqliteStore,
    PostgresStore,
    RedisStore,
    IndexedStore,
    CompositeStore,
)

EMBEDDER = ("copy:1:3", 3)
X, Y = [1.0, 0.1, 0.0], [0.3, 1.0, 7.0]
ODD = [Scope(namespace, user) for one, other in TWINS for namespace, user in ((one, other), (other, one))]


async def filled(store):
    """Every kind of record in every layer, with keys, vectors and jobs, for users whose ids are easily mixed up."""
    await store.bind(*EMBEDDER)
    layers = [an_episode(f"l{layer}", layer=layer, sources=("a", "b")) for layer in Layer]
    archived = an_episode("old", archived_at=START, session_id="s1", accesses=3, accessed_at=START)
    facts = [a_fact(), a_fact("f2", "coffee", valid_until=START, superseded_at=START, superseded_by="f1")]
    await store.put(ALICE, *one_of_each(), *layers, archived, *facts)
    for version in range(1, 4):
        await store.put(ALICE, a_block("standing", f"says {version}", version=version))
    await store.put_keys(ALICE, {"l1": {"near": "the turns around", "summary": "a summary"}, "f1": {"near": "x"}})
    await store.put_vectors(ALICE, {"l1": X, "old": Y, "f1": X})
    await store.write(BOB, jobs=[a_job("j1", scope=BOB.for_session("s"), payload={"ids": ["a", 1, None]}, attempts=2)])
    await store.write(BOB, jobs=[a_job("j2", scope=BOB, run_at=START + timedelta(days=9))])
    for number, user in enumerate(ODD):
        await store.put(user, an_episode(user.user_id[:100], f"number {number}"))
        await store.put_vectors(user, {user.user_id[:100]: X if number % 2 else Y})
    return store


async def copied(source, target, **options):
    done = await copy_store(source, target, **options)
    assert [one for one in done.kinds if not one.is_equal] == []
    return done


async def are_equal(one, other):
    for user in (ALICE, BOB, *ODD):
        assert [kind for kind in await compare_user(one, other, user) if not kind.is_equal] == []


async def test_there_and_back_through_every_engine(tmp_path, postgres_url, redis_url, cluster_url):
    """SQLite to Postgres to Redis to a cluster and so on to SQLite; the end has the same digests as the beginning."""
    places = [
        postgres_url,
        redis_url,
        f"{cluster_url}?prefix=there",
        f"{redis_url}?prefix=back",
        f"qdrant:{tmp_path}/vectors",
        f"sqlite:{tmp_path}/last.db",
    ]
    first = await filled(SqliteStore(tmp_path / "first.db"))
    source = first
    for place in places:
        target = store_at(place, Opening())
        done = await copied(source, target)
        assert (done.users, done.notes) == (2 + len(ODD), ())
        assert {one.kind for one in done.kinds} == {"episode", "fact", "block", "key", "vector", "job"}
        assert (await copied(source, target)).written == 0
        if source is not first:
            await source.aclose()
        source = target
    await are_equal(first, source)
    assert await source.list(ALICE) == await first.list(ALICE)
    assert await source.open_jobs(BOB) == await first.open_jobs(BOB)
    assert await source.open_jobs(BOB)
    assert (await source.verify()).is_equal
    await first.aclose()
    await source.aclose()


async def test_a_composed_store_is_a_source_and_a_target(tmp_path, redis_url):
    where = f"composite:?primary=sqlite:{tmp_path}/t.db&vectors=qdrant:{tmp_path}/v&l2={redis_url}"
    first = await filled(InMemoryStore())
    middle, last = store_at(where, Opening()), InMemoryStore()
    await copied(first, middle)
    assert await middle.parts["l1+l2"].count(ALICE) == 2
    assert [one.is_right for one in await verify_store(middle)] == [True, True, True]
    assert (await copied(middle, last)).users == 2 + len(ODD)
    await are_equal(first, last)
    await middle.aclose()


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_copy_that_is_broken_off_anywhere_goes_on(tmp_path, is_after):
    """Broken off again and again, each time a little later: in the end all is there, once."""
    source = await filled(InMemoryStore())
    many = [an_episode(f"m{number:04}", f"text {number}", session_id="s") for number in range(PAGE + 50)]
    await source.put(ALICE, *many)
    target = SqliteStore(tmp_path / "t.db", durability="fast")
    chance = random.Random(7)
    tries, done = 0, None
    while done is None:
        tries += 1
        with suppress(Broken):
            done = await copy_store(
                source, Breaking(target, chance.randrange(1, 12), is_after, names={"write", "put_vectors"})
            )
    assert tries > 3
    assert done.is_equal
    assert done.written < 60
    await are_equal(source, target)
    assert await target.count(ALICE) == await source.count(ALICE)
    await target.aclose()


async def test_a_copy_that_is_cancelled_goes_on(tmp_path, postgres_url):
    source = InMemoryStore()
    await source.put(ALICE, *(an_episode(f"m{number:04}") for number in range(5 * PAGE)))
    target = store_at(postgres_url, Opening())
    with anyio.CancelScope() as scope:
        await copy_store(source, target, progress=lambda done, _: scope.cancel() if done >= 2 * PAGE else None)
    there = await target.count(ALICE)
    assert 2 * PAGE <= there < 5 * PAGE
    assert (await copied(source, target)).written == 5 * PAGE - there
    await target.aclose()


async def test_progress_goes_from_nothing_to_all(tmp_path):
    said = []
    source = await filled(InMemoryStore())
    await copied(source, InMemoryStore(), progress=lambda done, total: said.append((done, total)))
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert said[-1][0] == said[-1][1] == 2 * sum([await source.count(user) for user in (ALICE, BOB, *ODD)])


async def test_one_namespace_alone():
    source, target = await filled(InMemoryStore()), InMemoryStore()
    done = await copied(source, target, namespace="alice")
    assert {one.user.namespace for one in done.kinds} == {"alice"}
    assert {user.namespace for user in await target.users()} == {"alice"}


async def test_what_differs_at_the_target_is_replaced_and_what_is_more_is_said():
    source, target = await filled(InMemoryStore()), InMemoryStore()
    await copied(source, target)
    await target.put(ALICE, an_episode("l1", "changed", layer=Layer.L1))
    await target.put(ALICE, a_block("standing", "later", version=4))
    await target.put_keys(ALICE, {"l3": {"odd": "not of the source"}, "f1": {"near": "changed"}})
    await target.put_vectors(ALICE, {"l1": X, "l2": X, "old": X})  # that of l1 is right, and goes with its wrong text
    await copied(source, target)
    assert await target.list(ALICE) == await source.list(ALICE)
    await target.put(ALICE, an_episode("more"))
    await target.put_vectors(BOB, {})
    done = await copy_store(source, target)
    assert not done.is_equal
    (differing,) = [one for one in done.kinds if not one.is_equal]
    assert (differing.user, differing.kind) == (ALICE, "episode")
    assert differing.target.count == differing.source.count + 1
    assert differing.source.digest != differing.target.digest


@pytest.mark.parametrize(
    "harm",
    [
        lambda store: store.put(ALICE, an_episode("l3", "other", layer=Layer.L3)),
        lambda store: store.touch(ALICE, "l3", at=START),
        lambda store: store.put(ALICE, replace(a_fact(), confidence=0.5)),
        lambda store: store.put(ALICE, a_block("standing", "other", version=4)),
        lambda store: store.put_keys(ALICE, {"l1": {"near": "other"}}),
        lambda store: store.put_vectors(ALICE, {"l1": Y}),
        lambda store: store.put_vectors(ALICE, {"l2": Y}),
        lambda store: store.delete(ALICE, "l3"),
        lambda store: store.write(ALICE, jobs=[a_job("another")]),
    ],
)
async def test_no_difference_escapes_the_comparison(harm):
    source, target = await filled(InMemoryStore()), InMemoryStore()
    await copied(source, target)
    await harm(target)
    assert not all(one.is_equal for one in await compare_user(source, target, ALICE))


async def test_vectors_of_another_embedder_are_left_to_reembed(tmp_path):
    source, target = await filled(InMemoryStore()), InMemoryStore()
    await target.bind("other:1:2", 2)
    done = await copied(source, target)
    assert "reembed" in done.notes[0]
    assert "other:1:2" in done.notes[0]
    assert {one.kind for one in done.kinds} == {"episode", "fact", "block", "key", "job"}
    assert await target.count_unembedded() == sum([await target.count(user) for user in await target.users(limit=1000)])


async def test_jobs_that_were_given_up_are_said():
    source = InMemoryStore()
    await source.write(ALICE, jobs=[a_job()])
    (lease,) = await source.lease(now=START, until=START + timedelta(minutes=1))
    await source.fail(lease, reason="no", now=START, retry_at=None)
    await source.put(ALICE, an_episode())
    assert (await copied(source, InMemoryStore())).notes[0].startswith("1 jobs")


async def test_a_memory_goes_on_where_the_other_stopped(tmp_path, postgres_url):
    async with open_memory(f"sqlite:{tmp_path}/m.db", embedder=HashEmbedder()) as memory:
        await memory.remember(["I live in Oslo.", "I have a boat."], user_id="ann")
        await memory.instruct("Always answer in French.", user_id="ann")
        jobs = await memory.store.pending(Scope(user_id="ann"))
        assert jobs
        async with open_memory(postgres_url, embedder=HashEmbedder()) as other:
            await copied(memory.store, other.store)
            found = await other.recall("where do I live?", user_id="ann")
            assert "I live in Oslo." in [hit.item.text for hit in found]
            assert (await other.metabolize()).jobs >= jobs
            assert "French" in str(await other.profile(user_id="ann"))


async def forgotten_while_copied(step):
    """What the copy holds where something is forgotten at one of its steps; None where it has fewer."""
    source, target, steps = InMemoryStore(), InMemoryStore(), Interrupter()
    await source.put(ALICE, an_episode("e1", "zeppelin"), an_episode("e2"))
    await source.put_keys(ALICE, {"e2": {"around": "zeppelin and tea"}})

    async def forget():
        await source.write(ALICE, delete=["e1"], keys={"e2": {"around": "tea"}})

    steps.watch(source)
    steps.watch(target)
    async with steps.counting(step, forget):
        await copy_user(source, target, ALICE, with_vectors=False, progress=lambda _: None)
    keys = (await target.search_keys(ALICE, "e2"))["e2"].keys
    return ([record.id for record in await target.list(ALICE)], dict(keys)) if steps.reached else None


async def test_what_is_forgotten_while_it_is_copied_is_not_in_the_copy():
    """At every step up to the last look at the source; what is forgotten after it is forgotten after the copy."""
    outcomes = []
    while (outcome := await forgotten_while_copied(len(outcomes))) is not None:
        outcomes.append(outcome)
    good = (["e2"], {"around": "tea"})
    late = len(outcomes) - next(n for n, outcome in enumerate([*reversed(outcomes), good]) if outcome == good)
    assert late > 10
    assert outcomes[:late] == [good] * late
    assert len(outcomes) - late <= 3  # behind the look: open_jobs, before and after it


async def test_a_copy_has_the_old_texts_of_blocks(tmp_path):
    places = [f"sqlite:{tmp_path}/{name}.db" for name in ("from", "to")]
    async with open_memory(places[0], embedder="hash") as memory:
        for text in ("a", "b", "c"):
            await memory.set_block("persona", text, user_id="ann")
        before = await memory.block_history("persona", user_id="ann")
    await copy_places(*places)
    async with open_memory(places[1], embedder="hash") as memory:
        assert await memory.block_history("persona", user_id="ann") == before
        await memory.set_block("persona", "d", user_id="ann")
        assert [v.number for v in await memory.block_history("persona", user_id="ann")] == [1, 2, 3, 4]
