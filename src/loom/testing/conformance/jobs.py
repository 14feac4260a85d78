"""Laws of background jobs that are stored with the records."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

import anyio
import pytest

from loom.core.scope import Scope
from loom.errors import NotFound, StoreConflict, UsageError
from loom.protocols.memory_store import CountsJobs, KeepsJobs, KeepsKeys, KeepsVectors, Lease, PrimaryStore, Store
from loom.testing.conformance.suite import ALICE, BOB, DAY, HOUR, a_block, a_job, an_episode, ids_of, listed, needs
from loom.testing.fakes import START


@needs(KeepsJobs)
class JobLaws:
    """The laws of a store with jobs."""

    async def test_a_job_comes_back_equal(self, store: Store) -> None:
        """Every field survives, also a payload of nested JSON; `attempts` counts the leases."""
        payload: dict[str, Any] = {"text": "t\u00e9a \U0001f375", "list": [1, 2.5, None, True, {"a": []}], "empty": {}}
        scope = ALICE.for_session("s 1")
        await store.write(scope, jobs=[a_job(scope=scope, key="k:\u00e9", payload=payload)])
        lease = await _the_lease(store)
        assert lease.job == a_job(scope=scope, key="k:\u00e9", payload=payload, attempts=1)
        assert lease.until == START + HOUR

    async def test_records_and_jobs_are_written_together(self, store: Store) -> None:
        """put, delete and jobs of one write all happen."""
        await store.put(ALICE, an_episode("old"))
        assert await store.write(ALICE, put=[an_episode("new")], delete=["old"], jobs=[a_job(), a_job("j2")]) == 2
        assert await listed(store, ALICE) == ["new"]
        assert await store.pending(ALICE) == 2

    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            ({"put": [a_block(version=5)]}, StoreConflict),
            ({"keys": {"unknown": {"k": "tea"}}}, NotFound),
            ({"jobs": [a_job("j2"), a_job("theirs", scope=BOB)]}, UsageError),
        ],
        ids=["record", "key", "job"],
    )
    async def test_a_write_is_all_or_nothing(self, store: Store, bad: dict[str, Any], error: type[Exception]) -> None:
        """One bad part, and neither record nor job is there."""
        if "keys" in bad and not isinstance(store, KeepsKeys):
            pytest.skip(f"{type(store).__name__} keeps no keys")
        await store.put(ALICE, an_episode("old"))
        given: dict[str, Any] = {"put": [an_episode("new", "new tea")], "delete": ["old"], "jobs": [a_job()]}
        given |= {name: [*given[name], *value] for name, value in bad.items() if name != "keys"}
        given["keys"] = bad.get("keys")
        with pytest.raises(error):
            await store.write(ALICE, **given)
        assert await listed(store, ALICE) == ["old"]
        assert await ids_of(store, ALICE, "new") == []
        assert await store.pending(ALICE) == 0
        assert await store.pending(BOB) == 0

    @needs(KeepsJobs, KeepsKeys)
    async def test_a_write_gives_keys_to_what_it_puts(self, store: Store) -> None:
        """Record and keys may be new together."""
        await store.write(ALICE, put=[an_episode()], keys={"e1": {"around": "zeppelin"}})
        assert await ids_of(store, ALICE, "zeppelin") == ["e1"]

    @needs(KeepsJobs, KeepsKeys, KeepsVectors)
    async def test_what_is_deleted_and_put_again_begins_anew(self, store: PrimaryStore) -> None:
        """Neither keys nor the vector of the old record stay."""
        await store.bind("suite:1:2", 2)
        await store.write(ALICE, put=[an_episode()], keys={"e1": {"around": "zeppelin", "asked": "harbour"}})
        await store.put_vectors(ALICE, {"e1": [1.0, 0.0]})
        await store.write(ALICE, delete=["e1"], put=[an_episode()], keys={"e1": {"asked": "piano"}})
        assert await ids_of(store, ALICE, "zeppelin harbour") == []
        assert await ids_of(store, ALICE, "piano") == ["e1"]
        assert await ids_of(store, ALICE, vector=[1.0, 0.0]) == []

    async def test_the_same_work_is_queued_once(self, store: Store) -> None:
        """A key is unique among a user's open jobs, leased ones included; closed ones do not count."""
        assert await store.write(ALICE, jobs=[a_job("j1", key="k"), a_job("j2", key="k")]) == 1
        assert await store.write(ALICE, jobs=[a_job("j3", key="k")]) == 0
        assert await store.write(BOB, jobs=[a_job("j1", key="k", scope=BOB)]) == 1
        lease = await _the_lease(store, scope=ALICE)
        assert await store.write(ALICE, jobs=[a_job("j4", key="k")]) == 0
        await store.finish(lease)
        assert await store.write(ALICE, jobs=[a_job("j5", key="k")]) == 1
        assert (await store.pending(ALICE), await store.pending(BOB)) == (1, 1)

    async def test_jobs_are_leased_oldest_first(self, store: Store) -> None:
        """Only what is due, only so many, and of one user if asked."""
        jobs = [a_job(f"j{n}", run_at=START + n * HOUR) for n in (3, 1, 2, 9)]
        await store.write(ALICE, jobs=jobs)
        await store.write(BOB, jobs=[a_job("bob", scope=BOB)])
        now = START + 3 * HOUR
        leases = await store.lease(now=now, until=now + HOUR, limit=2, scope=ALICE)
        assert [lease.job.id for lease in leases] == ["j1", "j2"]
        leases = await store.lease(now=now, until=now + HOUR, limit=9)
        assert [(lease.job.id, lease.job.scope) for lease in leases] == [("bob", BOB), ("j3", ALICE)]

    async def test_jobs_of_some_kinds_are_leased_alone(self, store: Store) -> None:
        """However many of other kinds are older, which stay free for others; of one user, or of all."""
        older = [a_job(f"a{n:03}", kind="learn") for n in range(150)]
        await store.write(ALICE, jobs=[*older, a_job("z1", kind="digest"), a_job("z2", kind="sediment")])
        await store.write(BOB, jobs=[a_job("z3", kind="digest", scope=BOB)])
        until = START + HOUR
        for scope, expected in ((ALICE, ["z1"]), (None, ["z3"])):
            leases = await store.lease(now=START, until=until, limit=2, scope=scope, kinds=["digest", "other"])
            assert [lease.job.id for lease in leases] == expected
        assert await store.lease(now=START, until=until, limit=9, kinds=["digest"]) == ()
        assert await store.lease(now=START, until=until, limit=9, scope=ALICE, kinds=()) == ()
        leases = await store.lease(now=START, until=until, limit=999, scope=ALICE, kinds=["learn"])
        assert [lease.job.id for lease in leases] == [job.id for job in older]
        assert [lease.job.id for lease in await store.lease(now=START, until=until, limit=9)] == ["z2"]

    async def test_a_job_has_one_holder_at_a_time(self, store: Store) -> None:
        """Tasks that lease at the same moment never get the same job."""
        await store.write(ALICE, jobs=[a_job(f"j{n}") for n in range(10)])
        taken: list[Lease] = []

        async def take() -> None:
            taken.extend(await store.lease(now=START, until=START + HOUR, limit=3))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(take)
        assert sorted(lease.job.id for lease in taken) == [f"j{n}" for n in range(10)]
        assert len({lease.token for lease in taken}) == 10
        assert await store.lease(now=START + HOUR / 2, until=START + DAY) == ()
        assert await store.pending(ALICE) == 10

    async def test_a_users_jobs_are_leased_one_after_the_other_in_order(self, store: Store) -> None:
        """A caller gets none of a user for whom another works, until that is done, put back or too late."""
        await store.write(ALICE, jobs=[a_job(f"j{n}", run_at=START + n * HOUR) for n in (2, 1, 3)])
        await store.write(BOB, jobs=[a_job("bob", scope=BOB, run_at=START + 2 * HOUR)])

        async def take(now: datetime, scope: Scope | None = None, limit: int = 1) -> list[Lease]:
            leases = await store.lease(
                now=now, until=now + HOUR, scope=scope, limit=limit, kinds=["digest"], in_order=True
            )
            return list(leases)

        now = START + DAY
        first, bob = sorted(await take(now, limit=9), key=lambda one: one.job.run_at)
        assert [(one.job.id, one.job.scope) for one in (first, bob)] == [("j1", ALICE), ("bob", BOB)]
        assert await take(now, limit=9) == await take(now, ALICE) == []
        await store.finish(first)
        (second,) = await take(now, ALICE, limit=9)
        assert second.job.id == "j2"
        assert await take(now) == []
        await store.fail(second, reason="no network", now=now, retry_at=now + DAY)
        (third,) = await take(now)
        assert third.job.id == "j3"
        # A holder who is late keeps nobody waiting.
        (again,) = await take(now + 2 * HOUR, ALICE)
        assert (again.job.id, again.job.attempts) == ("j3", 2)
        await _refuses(store, third)
        assert await take(now + 2 * HOUR, ALICE) == []
        await store.finish(again)
        assert [one.job.id for one in await take(now + 2 * DAY, ALICE)] == ["j2"]

    async def test_who_leases_in_order_at_the_same_moment_gets_one_job_of_a_user(self, store: Store) -> None:
        """However many ask, each user has one holder."""
        for scope in (ALICE, BOB):
            await store.write(scope, jobs=[a_job(f"j{n}", scope=scope) for n in range(5)])
        taken: list[Lease] = []

        async def take() -> None:
            taken.extend(await store.lease(now=START, until=START + HOUR, in_order=True))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(take)
        assert sorted((one.job.scope.user_id, one.job.id) for one in taken) == sorted(
            (scope.user_id, "j0") for scope in (ALICE, BOB)
        )

    async def test_a_lease_that_ran_out_may_be_taken_again(self, store: Store) -> None:
        """With another token, and `attempts` one higher."""
        await store.write(ALICE, jobs=[a_job()])
        first = await _the_lease(store)
        now = START + 2 * HOUR
        (second,) = await store.lease(now=now, until=now + HOUR)
        assert (first.job.attempts, second.job.attempts) == (1, 2)
        assert first.token != second.token

    async def test_finish_applies_the_effects_and_closes(self, store: Store) -> None:
        """Records, deletions and further jobs come with the end of the job."""
        await store.write(ALICE, put=[an_episode("raw")], jobs=[a_job()])
        lease = await _the_lease(store)
        await store.finish(lease, put=[an_episode("made")], delete=["raw"], jobs=[a_job("next")])
        assert await listed(store, ALICE) == ["made"]
        assert [job.job.id for job in await store.lease(now=START + DAY, until=START + 2 * DAY, limit=9)] == ["next"]

    async def test_a_finish_that_fails_changes_nothing(self, store: Store) -> None:
        """With a bad effect the job stays open and held."""
        await store.write(ALICE, jobs=[a_job()])
        lease = await _the_lease(store)
        with pytest.raises(StoreConflict):
            await store.finish(lease, put=[an_episode(), a_block(version=5)], jobs=[a_job("next")])
        assert await store.count(ALICE) == 0
        assert await store.pending(ALICE) == 1
        await store.finish(lease, put=[an_episode()])
        assert (await store.count(ALICE), await store.pending(ALICE)) == (1, 0)

    async def test_a_holder_that_comes_late_changes_nothing(self, store: Store) -> None:
        """Only the newest lease finishes or fails a job, and only once."""
        await store.write(ALICE, jobs=[a_job()])
        late = await _the_lease(store)
        (newest,) = await store.lease(now=START + DAY, until=START + 2 * DAY)
        await _refuses(store, late)
        assert await store.pending(ALICE) == 1
        await store.finish(newest, put=[an_episode("good")])
        await _refuses(store, newest)
        assert await listed(store, ALICE) == ["good"]
        assert await store.dead_letters(ALICE) == ()

    async def test_the_jobs_of_all_users_are_counted(self, store: Store) -> None:
        """Those that are due, those that are leased, and those that were given up, where the store knows them."""
        if not isinstance(store, CountsJobs):
            pytest.skip(f"{type(store).__name__} does not count jobs")
        await store.write(ALICE, jobs=[a_job("j1"), a_job("j2"), a_job("late", run_at=START + DAY)])
        await store.write(BOB, jobs=[a_job("j3", scope=BOB), a_job("j4", scope=BOB)])
        await store.fail(await _the_lease(store, BOB), reason="poison", now=START, retry_at=None)
        await _the_lease(store, ALICE)
        counts = {"given_up": 1} | await store.job_counts(now=START)
        assert counts == {"due": 2, "leased": 1, "given_up": 1}
        assert (await store.job_counts(now=START + 2 * DAY))["due"] == 4

    async def test_a_failed_job_comes_back(self, store: Store) -> None:
        """Not before `retry_at`, then with `attempts` one higher; the failed lease is worth nothing."""
        await store.write(ALICE, jobs=[a_job()])
        lease = await _the_lease(store)
        await store.fail(lease, reason="no network", now=START, retry_at=START + DAY)
        assert await store.lease(now=START + DAY - HOUR, until=START + 2 * DAY) == ()
        await _refuses(store, lease)
        assert await store.write(ALICE, jobs=[a_job("again", key="j1")]) == 0
        (second,) = await store.lease(now=START + DAY, until=START + 2 * DAY)
        assert (second.job.id, second.job.attempts) == ("j1", 2)

    async def test_a_job_that_is_given_up_is_a_dead_letter(self, store: Store) -> None:
        """It stays with its reason, is not leased again, and its key is free."""
        await store.write(ALICE, jobs=[a_job(payload={"n": 1})])
        await store.fail(await _the_lease(store), reason="poison: \u00e9", now=START + HOUR, retry_at=None)
        (letter,) = await store.dead_letters(ALICE)
        assert (letter.reason, letter.at) == ("poison: \u00e9", START + HOUR)
        assert (letter.job.id, letter.job.payload, letter.job.attempts) == ("j1", {"n": 1}, 1)
        assert await store.dead_letters(BOB) == ()
        assert await store.lease(now=START + DAY, until=START + 2 * DAY) == ()
        assert await store.pending(ALICE) == 0
        assert await store.write(ALICE, jobs=[a_job("j2", key="j1")]) == 1

    async def test_forget_removes_jobs_and_dead_letters(self, store: Store) -> None:
        """Of that user alone, and a lease on one of them can no longer be finished."""
        for scope in (ALICE, BOB):
            await store.write(scope, jobs=[a_job("j1", scope=scope)])
            await store.fail(await _the_lease(store, scope), reason="x", now=START, retry_at=None)
            await store.write(scope, jobs=[a_job("j2", scope=scope), a_job("j3", scope=scope)])
        held = await _the_lease(store, ALICE)
        theirs = await _the_lease(store, BOB)
        await store.forget(ALICE)
        assert (await store.pending(ALICE), await store.dead_letters(ALICE)) == (0, ())
        await _refuses(store, held)
        assert await store.count(ALICE) == 0
        assert (await store.pending(BOB), len(await store.dead_letters(BOB))) == (2, 1)
        await store.finish(theirs, put=[an_episode()])
        assert await store.count(BOB) == 1


async def _the_lease(store: KeepsJobs, scope: Scope | None = None) -> Lease:
    (lease,) = await store.lease(now=START, until=START + HOUR, limit=1, scope=scope)
    return lease


async def _refuses(store: KeepsJobs, lease: Lease) -> None:
    tries: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
        lambda: store.finish(lease, put=[an_episode("late")], jobs=[a_job("late", scope=lease.job.scope)]),
        lambda: store.fail(lease, reason="late", now=START, retry_at=None),
        lambda: store.fail(lease, reason="late", now=START, retry_at=START),
    )
    for attempt in tries:
        with pytest.raises(StoreConflict):
            await attempt()
