"""Laws of writes that were prepared from a read: records removed after the read do not come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import pytest

from loom.errors import StaleWrite, StoreConflict
from loom.protocols.jobs import KeepsJobs
from loom.testing.conformance.samples import (
    ALICE,
    BOB,
    HOUR,
    START,
    JobKeepingStore,
    a_block,
    a_fact,
    a_job,
    an_episode,
    listed,
)
from loom.testing.conformance.suite import needs

_Change: TypeAlias = Callable[[JobKeepingStore], Awaitable[Any]]

_REMOVALS: dict[str, _Change] = {
    "delete": lambda store: store.delete(ALICE, "e1"),
    "delete in a write": lambda store: store.write(ALICE, delete=["e1"]),
    "delete and put again": lambda store: store.write(ALICE, delete=["e1"], put=[an_episode()]),
    "forget a session": lambda store: store.forget(ALICE.for_session("s1")),
    "forget the user": lambda store: store.forget(ALICE),
    "another text": lambda store: store.put(ALICE, an_episode(text="we drank coffee")),
    "another text of a block": lambda store: store.put(ALICE, a_block(text="likes coffee", version=2)),
}
_OTHER_CHANGES: dict[str, _Change] = {
    "put": lambda store: store.put(ALICE, an_episode("e9"), a_fact("f9")),
    "the same again": lambda store: store.put(ALICE, an_episode(), a_block()),
    "another field": lambda store: store.put(ALICE, an_episode(importance=0.5)),
    "delete what is not there": lambda store: store.delete(ALICE, "unknown"),
    "forget a session that is not there": lambda store: store.forget(ALICE.for_session("other")),
    "what others remove": lambda store: store.forget(BOB),
    "a job": lambda store: store.write(ALICE, jobs=[a_job("j9")]),
}


class EpochLaws:
    """The laws of a read, a computation and a write that depends on both."""

    @needs(KeepsJobs)
    @pytest.mark.parametrize("name", _REMOVALS)
    async def test_a_write_prepared_before_a_removal_is_refused(self, store: JobKeepingStore, name: str) -> None:
        """Records, keys and jobs of it: none is written, and the epoch read now is good for the next."""
        await _filled(store)
        since = await store.epoch(ALICE)
        await _REMOVALS[name](store)
        left, pending = await listed(store, ALICE), await store.pending(ALICE)
        with pytest.raises(StaleWrite, match="alice"):
            await store.write(ALICE, put=[an_episode("late")], jobs=[a_job("late")], since=since)
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (left, pending)
        assert await store.write(ALICE, put=[an_episode("new")], since=await store.epoch(ALICE)) == 0
        assert "new" in await listed(store, ALICE)

    @needs(KeepsJobs)
    @pytest.mark.parametrize("name", [name for name in _REMOVALS if name != "forget the user"])
    async def test_a_job_that_read_before_a_removal_cannot_finish(self, store: JobKeepingStore, name: str) -> None:
        """It stays open and held; what it does after reading again is taken."""
        await _filled(store)
        await store.write(ALICE, jobs=[a_job()])
        (lease,) = await store.lease(now=START, until=START + HOUR)
        since = await store.epoch(ALICE)
        await _REMOVALS[name](store)
        left = await listed(store, ALICE)
        with pytest.raises(StaleWrite):
            await store.finish(lease, put=[a_fact("late")], jobs=[a_job("next")], since=since)
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (left, 1)
        await store.finish(lease, put=[a_fact("good")], since=await store.epoch(ALICE))
        assert (await listed(store, ALICE), await store.pending(ALICE)) == (sorted([*left, "good"]), 0)

    @needs(KeepsJobs)
    async def test_a_forgotten_user_who_comes_back_is_somebody_else(self, store: JobKeepingStore) -> None:
        """A write is refused if its read was before the user's first record, or before the user was forgotten."""
        absent = await store.epoch(ALICE)
        await _filled(store)
        there = await store.epoch(ALICE)
        await store.forget(ALICE)
        for since in (absent, there):
            with pytest.raises(StaleWrite):
                await store.write(ALICE, put=[an_episode("late")], since=since)
        await _filled(store)
        for since in (absent, there):
            with pytest.raises(StaleWrite):
                await store.write(ALICE, put=[an_episode("late")], since=since)
        assert "late" not in await listed(store, ALICE)

    @needs(KeepsJobs)
    async def test_the_first_write_of_a_user_may_name_its_epoch(self, store: JobKeepingStore) -> None:
        """Where nothing was, nothing was removed."""
        await store.write(ALICE, put=[an_episode()], since=await store.epoch(ALICE))
        assert await listed(store, ALICE) == ["e1"]

    @needs(KeepsJobs)
    @pytest.mark.parametrize("name", _OTHER_CHANGES)
    async def test_what_removes_no_text_of_the_user_keeps_the_epoch(self, store: JobKeepingStore, name: str) -> None:
        """So that writers who only add never stop each other."""
        await _filled(store)
        await store.put(BOB, an_episode())
        since = await store.epoch(ALICE)
        await _OTHER_CHANGES[name](store)
        assert await store.epoch(ALICE) == since
        await store.write(ALICE, put=[an_episode("new")], since=since)

    @needs(KeepsJobs)
    async def test_of_a_removal_and_a_prepared_write_one_comes_first(self, store: JobKeepingStore) -> None:
        """At the same moment, whatever is left is as if one had followed the other."""
        for number in range(8):
            await store.put(ALICE, an_episode(f"said{number}", "zeppelin"))

        async def derive(number: int) -> None:
            since = await store.epoch(ALICE)
            if await store.get(ALICE, f"said{number}") is not None:
                try:
                    await store.write(ALICE, put=[an_episode(f"made{number}", "zeppelin")], since=since)
                except StoreConflict:
                    return

        async def remove(number: int) -> None:
            await store.write(ALICE, delete=[f"said{number}", f"made{number}"])

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(derive, number)
                tasks.start_soon(remove, number)
        assert await listed(store, ALICE) == []


async def _filled(store: JobKeepingStore) -> None:
    await store.put(ALICE, an_episode("e1", session_id="s1"), an_episode("e2"), a_fact(), a_block())
