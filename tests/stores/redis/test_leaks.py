"""A Redis store that forgets whose data it touches, or leaves some of it behind, is caught: one planted fault each."""

from contextlib import aclosing
from hashlib import sha256

import pytest

from loom.core.scope import Scope
from loom.protocols.memory_store import Job
from loom.stores.redis import records, schema, search, store
from loom.stores.redis import records as job_rows
from loom.stores.redis import store as forgetting
from loom.stores.redis import store as reembed
from loom.stores.redis.schema import StoreNames, UserNames
from loom.testing.conformance import MemoryStoreSuite
from loom.testing.conformance.isolation import check_non_interference
from loom.testing.conformance.suite import BOB, HOUR, a_block, a_fact, a_job, an_episode, listed
from loom.testing.fakes import START, FakeClock
from tests.stores.redis.conftest import new_store, twin_of
from tests.testing.laws import broken_laws

pytestmark = pytest.mark.anyio

NEVER_MEET = "test_scopes_never_meet"
NOBODY_ELSE = "test_forgetting_one_user_touches_nobody_else"
TWO_RECORDS = "test_the_same_id_of_two_users_is_two_records"
NON_INTERFERENCE = "test_a_user_cannot_tell_whether_others_exist"
FORGET_JOBS = "test_forget_removes_jobs_and_dead_letters"


def shared(name):
    """A key that all users share."""
    return UserNames, name, property(lambda user: f"{user.prefix}:{name}")


def named_by(text):
    """Users told apart by less than their whole scope."""
    return StoreNames, "user", lambda names, scope: UserNames(names.prefix, sha256(text(scope).encode()).hexdigest())


def said(module, name, old, new):
    """A script that says something else."""
    script = getattr(schema, name)
    assert script.count(old) == 1
    return module, name, script.replace(old, new)


async def everybodys_jobs(link, user, scope):
    users = [data.decode() for data in await link.call("HKEYS", f"{user.prefix}:users")]
    found = [await link.call("HVALS", UserNames(user.prefix, digest).jobs) for digest in users]
    return job_rows._unpacked(data for of_user in found for data in of_user)


LEAKS = {
    "drops the namespace": (named_by(lambda scope: scope.user_id), NEVER_MEET),
    "drops the user": (named_by(lambda scope: scope.namespace), NEVER_MEET),
    "folds case": (named_by(lambda scope: scope.for_user().key().casefold()), NEVER_MEET),
    "trims names": (named_by(lambda s: f"{len(s.namespace)}:{s.namespace}{s.user_id.strip()}"), NEVER_MEET),
    "shares records": (shared("records"), TWO_RECORDS),
    "shares keys": (shared("keys"), NON_INTERFERENCE),
    "shares vectors": (shared("vectors"), NON_INTERFERENCE),
    "shares the list of changes": (shared("changed"), NON_INTERFERENCE),
    "shares jobs": (shared("jobs"), NON_INTERFERENCE),
    "shares the keys of jobs": (shared("job_keys"), NON_INTERFERENCE),
    "shares dead letters": (shared("dead"), FORGET_JOBS),
    "leases everybody's jobs": ((job_rows, "of_scope", everybodys_jobs), NON_INTERFERENCE),
    "names jobs without their user": (
        (UserNames, "member", lambda user, id: f"{id}\0{'0' * 64}"),
        "test_jobs_are_leased_oldest_first",
    ),
    "ignores the session": (
        (store, "sees", lambda scope, record: True),
        "test_only_what_the_scope_sees_is_handed_over",
    ),
    "never drops old vectors": (
        said(reembed, "REBIND", "redis.call('DEL', ARGV[3] .. digest)", ""),
        "test_rebind_exchanges_every_vector_and_the_embedder",
    ),
    "does not compare": (
        said(records, "COMMIT", "then return 0 end", "then end"),
        "test_concurrent_touches_all_count",
    ),
}
"""Each fault: what is replaced where by what, and the law that breaks."""

LEFT_BEHIND = {
    "records and more": said(forgetting, "FORGET", "for place = 5, 14 do", "for place = 5, 6 do"),
    "dead letters": said(forgetting, "FORGET", "for place = 5, 14 do", "for place = 5, 11 do"),
    "jobs that nobody holds": said(forgetting, "FORGET", "redis.call('ZREM', KEYS[2],", "redis.call('ZREM', 'x',"),
    "jobs that somebody holds": said(forgetting, "FORGET", "redis.call('ZREM', KEYS[3],", "redis.call('ZREM', 'x',"),
    "the user's name": said(forgetting, "FORGET", "redis.call('HDEL', KEYS[1], ARGV[1])", ""),
}


def fixtures():
    clock = FakeClock()
    return {"clock": clock, "store": new_store(clock)}


@pytest.mark.parametrize("law", sorted({law for _, law in LEAKS.values()}))
async def test_a_sound_store_keeps_the_law(law):
    assert hasattr(MemoryStoreSuite, law)
    assert await broken_laws(MemoryStoreSuite, fixtures, law) == set()


@pytest.mark.parametrize("leak", LEAKS)
async def test_a_planted_leak_breaks_its_law(leak, monkeypatch):
    planted, law = LEAKS[leak]
    monkeypatch.setattr(*planted)
    assert await broken_laws(MemoryStoreSuite, fixtures, law) == {law}


async def left_after_removals():
    """What a store still lists that has a copy, after another store removed one record and then all."""
    async with aclosing(new_store()) as one, aclosing(twin_of(one)) as two:
        await one.put(BOB, an_episode("e1"), an_episode("e2"))
        await two.list(BOB)
        await one.delete(BOB, "e1")
        after_one = await listed(two, BOB)
        await one.forget(BOB)
        return after_one, await listed(two, BOB)


async def test_a_copy_lets_go_of_what_another_removed():
    assert await left_after_removals() == (["e2"], [])


@pytest.mark.parametrize(
    ("planted", "left"),
    [
        (said(search, "PAGE", "meta[2] and meta[2] ~= ARGV[2]", "false"), (["e1", "e2"], [])),
        ((search, "_is_behind", lambda version, held: False), (["e2"], ["e2"])),
    ],
    ids=["never asks what is left", "never starts again"],
)
async def test_a_copy_that_keeps_what_another_removed_is_found(planted, left, monkeypatch):
    monkeypatch.setattr(*planted)
    assert await left_after_removals() == left


async def meetings():
    """Scopes that read what another wrote, of some whose parts look the same when they are put together."""
    parts = ("a", "a:", ":a", "a:b", "b", "1:a", "a1:b", "*", "[ab]", "a*", "a}", "{a", "a\n", "\u00e4", "a\u0308")
    scopes = [Scope(namespace, user) for namespace in parts for user in parts]
    async with aclosing(new_store()) as one:
        for number, scope in enumerate(scopes):
            await one.put(scope, an_episode(f"e{number}"))
        return [scope for number, scope in enumerate(scopes) if await listed(one, scope) != [f"e{number}"]]


async def test_names_that_look_alike_never_meet():
    assert await meetings() == []


async def test_names_joined_without_their_lengths_meet(monkeypatch):
    monkeypatch.setattr(*named_by(lambda scope: f"{scope.namespace}:{scope.user_id}"))
    assert Scope("a", ":a") in await meetings()


async def everything(store):
    """Whatever the server holds under the names of this store, but for counters and the embedder."""
    found = {}
    for key in sorted(await store._link.call("KEYS", f"{store._names.prefix}:*")):
        name = key.decode().removeprefix(f"{store._names.prefix}:")
        if name not in ("format", "version", "embedder", "forgotten"):
            found[name] = await store._link.call("DUMP", key)
    return found


async def what_forgetting_changes():
    """What is on the server before a user comes, and after he was there and was forgotten."""
    eve = Scope("default", "eve")
    async with aclosing(new_store()) as one:
        await one.bind("m:1:2", 2)
        await fill(one, BOB)
        before = await everything(one)
        await fill(one, eve)
        removed = (await one.forget(eve)).removed
        assert removed == {"episode": 1, "fact": 1, "block": 1, "job": 2, "dead_letter": 1}
        return before, await everything(one)


async def fill(one, scope):
    await one.put(scope, an_episode(), a_fact(), a_block())
    await one.put_keys(scope, {"e1": {"around": "zeppelin"}})
    await one.put_vectors(scope, {"e1": [1.0, 0.0]})
    for retry_at in (None, START + 9 * HOUR):
        name = f"{retry_at is None}"
        await one.write(scope, jobs=[Job(id=name, scope=scope, kind="digest", key=name, run_at=START)])
        (lease,) = await one.lease(now=START, until=START + HOUR, scope=scope)
        await one.fail(lease, reason="x", now=START, retry_at=retry_at)
    await one.write(scope, jobs=[a_job("held", scope=scope)])
    await one.lease(now=START, until=START + HOUR, scope=scope)


async def test_forgetting_leaves_the_server_as_if_the_user_had_never_come():
    before, after = await what_forgetting_changes()
    assert len(before) == 11
    assert after == before


@pytest.mark.parametrize("rest", LEFT_BEHIND)
async def test_a_planted_rest_of_a_forgotten_user_is_found(rest, monkeypatch):
    monkeypatch.setattr(*LEFT_BEHIND[rest])
    before, after = await what_forgetting_changes()
    assert after != before


async def test_non_interference_over_many_traces():
    async with aclosing(new_store(FakeClock())) as one:
        for seed in range(1000, 1040):
            await check_non_interference(one, seed)
