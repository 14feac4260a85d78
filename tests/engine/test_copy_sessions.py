"""Copying sessions: branches, forks, and logs whose checkpoints are gone arrive as they are, under their own ids."""

import random
from contextlib import suppress
from itertools import pairwise

import pytest

from loom.admin.copy import NO_PLACE, SessionCopies, compare_sessions, copy_places, copy_sessions, copy_store
from loom.core.scope import Scope
from loom.engine.open import open_checkpoints
from loom.stores.inmemory import InMemoryStore
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.stores.sqlite import SqliteStore
from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
from loom.testing.conformance.checkpoint_log import a_record
from loom.testing.conformance.checkpoint_store import CHAT, NAMES, a_message, save
from loom.testing.conformance.suite import ALICE, an_episode
from tests.engine.breaking import Breaking, Broken

pytestmark = pytest.mark.anyio

ODD = [Scope(one, other, one) for one, other in NAMES]
USERS = [ALICE, *(scope.for_user() for scope in ODD)]


async def filled(store):
    """A session that went back, two forks of it, one that was pruned, and one whose checkpoints lost their parent."""
    first = await save(store, CHAT, "c1", "one", "two")
    second = await save(store, CHAT, "c2", "three", after=first)
    await save(store, CHAT, "c3", "four", "five", after=second)
    await save(store, CHAT, "c4", "another four", after=second)
    fork = await store.fork(CHAT, "c3", session_id="fork")
    await save(store, ALICE.for_session("fork"), "f2", "six", after=fork)
    await store.fork(CHAT, "c4", session_id="fork of what goes")
    await store.delete(CHAT, "c4")
    last = None
    for number in range(6):
        last = await save(store, ALICE.for_session("pruned"), f"p{number}", f"turn {number}", after=last)
    await store.prune(ALICE.for_session("pruned"), keep=2)
    root = await save(store, ALICE.for_session("lost"), "root", "begin")
    for number in range(3):
        await save(store, ALICE.for_session("lost"), f"branch{number}", f"branch {number}", after=root)
    await store.delete(ALICE.for_session("lost"), "root")
    recorded = [a_record("r1", {"n": [1]}), a_record("r2", bytes(range(256))), a_message("m1")]
    await store.append(ALICE.for_session("recorded"), recorded, attributes={"run": "one"}, once=True)
    await store.append(ALICE.for_session("recorded"), [a_record("r3", b"")], attributes={"run": "two"}, once=True)
    for scope in ODD:
        await save(store, scope, scope.user_id[:100], scope.key()[:200])
    return store


async def are_equal(one, other):
    for user in USERS:
        assert [kind for kind in await compare_sessions(one, other, user) if not kind.is_equal] == []
        assert await one.list(user) == await other.list(user) != ()  # in the same order, too
        for checkpoint in await one.list(user):
            scope = user.for_session(checkpoint.session_id)
            assert await one.history(scope, checkpoint.id) == await other.history(scope, checkpoint.id)


async def test_there_and_back_through_every_engine(tmp_path, postgres_url, redis_url, cluster_url):
    first = await filled(SqliteCheckpointStore(tmp_path / "first.db"))
    source = first
    cluster = (f"{cluster_url}?prefix=there", f"{redis_url}?prefix=back")
    for place in (postgres_url, redis_url, *cluster, f"files:{tmp_path}/files", f"sqlite:{tmp_path}/last.db"):
        target = open_checkpoints(place)
        for user in USERS:
            assert await copy_sessions(source, target, user)
            assert await copy_sessions(source, target, user) == 0
        await are_equal(source, target)
        if source is not first:
            await source.aclose()
        source = target
    await are_equal(first, source)
    await save(source, CHAT, "c9", "on it goes", after=await source.load(CHAT))
    await first.aclose()
    await source.aclose()


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_copy_that_is_broken_off_anywhere_goes_on(is_after):
    source, target = await filled(MemoryCheckpointStore()), MemoryCheckpointStore()
    chance = random.Random(3)
    tries = 0
    for user in USERS:
        done = None
        while done is None:
            tries += 1
            with suppress(Broken):
                done = await copy_sessions(
                    source, Breaking(target, chance.randrange(1, 4), is_after, names={"save", "delete"}), user
                )
    assert tries > len(USERS) + 3
    await are_equal(source, target)


async def test_sessions_beside_a_memory_are_copied_with_it(tmp_path):
    """Also those of users of whom nothing is remembered."""
    await (await filled(SqliteCheckpointStore(tmp_path / "m.db", small_pages=False))).aclose()
    async with SqliteStore(tmp_path / "m.db") as store:
        await store.put(ALICE, an_episode())
    for written in (1, 0):
        done = await copy_places(f"sqlite:{tmp_path}/m.db", f"qdrant:{tmp_path}/v")
        assert done.is_equal
        assert bool(done.written) is bool(written)
        assert {one.kind for one in done.kinds} == {"episode", "checkpoint", "log entry"}
        assert done.users == len(USERS)
    one, other = (SqliteCheckpointStore(tmp_path / name) for name in ("m.db", "v/memory.db"))
    await are_equal(one, other)
    await one.delete(CHAT, "c3")
    await save(other, CHAT, "extra", "more")
    await one.aclose()
    await other.aclose()
    done = await copy_places(f"sqlite:{tmp_path}/m.db", f"qdrant:{tmp_path}/v")
    assert {one.kind for one in done.kinds if not one.is_equal} == {"checkpoint", "log entry"}
    assert NO_PLACE in (await copy_places(f"sqlite:{tmp_path}/m.db", "inmemory")).notes


async def test_a_file_without_sessions_is_not_given_any(tmp_path):
    async with SqliteStore(tmp_path / "m.db") as store:
        await store.put(ALICE, an_episode())
    before = (tmp_path / "m.db").read_bytes()
    done = await copy_places(f"sqlite:{tmp_path}/m.db", f"sqlite:{tmp_path}/n.db")
    assert (done.is_equal, done.notes) == (True, ())
    assert (tmp_path / "m.db").read_bytes() == before


async def test_users_who_only_have_conversations_are_copied_between_servers(
    tmp_path, postgres_url, redis_url, cluster_url
):
    """The memory of the source knows nobody: its sessions alone tell who is there."""
    first = await filled(SqliteCheckpointStore(tmp_path / "first.db"))
    await first.aclose()
    cluster = f"{cluster_url}?prefix=talks"
    places = [f"sqlite:{tmp_path}/first.db", postgres_url, redis_url, cluster, f"sqlite:{tmp_path}/last.db"]
    for source, target in pairwise(places):
        done = await copy_places(source, target)
        assert (done.is_equal, done.users, done.notes) == (True, len(USERS), ())
        assert {one.user for one in done.kinds} == set(USERS)
    one, other = (SqliteCheckpointStore(tmp_path / name) for name in ("first.db", "last.db"))
    await are_equal(one, other)
    await one.aclose()
    await other.aclose()


async def test_a_user_is_named_as_long_as_they_have_a_session(tmp_path, postgres_url, redis_url, cluster_url):
    for place in (f"sqlite:{tmp_path}/m.db", postgres_url, redis_url, f"{cluster_url}?prefix=named"):
        store = open_checkpoints(place)
        assert await store.users() == ()
        last = await save(store, CHAT, "c1", "one")
        await save(store, ALICE.for_session("other"), "c2", "two")
        others = [Scope("app", f"user {number}") for number in range(3)]
        for user in others:
            await save(store, user.for_session("s"), "c1", "three")
        assert await store.users() == (*others, ALICE)
        assert await store.users(limit=2) == tuple(others[:2])
        assert await store.users(after=others[1]) == (others[2], ALICE)
        await store.forget(others[0])
        await store.forget(others[1].for_session("s"))
        await store.delete(CHAT, last.id)
        assert await store.users() == (others[2], ALICE), "one of two sessions is left"
        await store.delete(ALICE.for_session("other"), "c2")
        assert await store.users() == (others[2],)
        await store.aclose()


async def test_a_store_that_cannot_name_its_users_says_so():
    source = await filled(MemoryCheckpointStore())
    memory = InMemoryStore()
    await memory.put(ALICE, an_episode())
    done = await copy_store(memory, InMemoryStore(), sessions=SessionCopies(source, MemoryCheckpointStore()))
    assert done.is_equal
    assert "cannot say who else" in done.notes[0]
    assert {one.user for one in done.kinds} == {ALICE}
