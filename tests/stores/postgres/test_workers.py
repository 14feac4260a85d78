"""A worker process that dies or sleeps over its job: another takes over, and every effect is there once."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from loom.errors import StoreConflict
from loom.stores.postgres import PostgresStore
from loom.testing.conformance.suite import ALICE, HOUR, a_job, listed
from loom.testing.fakes import START
from tests.stores.postgres.worker_child import effect_of
from tests.timing import LONG

pytestmark = pytest.mark.anyio

CHILD = Path(__file__).with_name("worker_child.py")
LATER = START + 2 * HOUR


@contextmanager
def worker(server, phase):
    """A worker that has come to this point of its job and waits there; it is killed afterwards."""
    command = [sys.executable, str(CHILD), server.app, phase, START.isoformat()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == f"at {phase}\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
async def store(server):
    async with PostgresStore(server.app, timeout=LONG) as store:
        await store.write(ALICE, jobs=[a_job("j1")])
        yield store


async def take_over(store):
    """Take the job as soon as the server lets go of it; it does when it notices that the other is gone."""
    while not (leases := await store.lease(now=LATER, until=LATER + HOUR)):
        pass
    (lease,) = leases
    return lease


async def finish(store, lease):
    await store.finish(lease, put=[effect_of(lease.job.id, "another", LATER)])


@pytest.mark.parametrize("phase", ["claimed", "written"])
async def test_after_a_killed_worker_another_takes_over_once_the_lease_is_over(phase, store, server):
    with worker(server, phase) as process:
        kill(process)
        assert await listed(store, ALICE) == []
        assert await store.lease(now=START + HOUR / 2, until=LATER) == ()
        lease = await take_over(store)
        assert lease.job.attempts == 2
        await finish(store, lease)
    assert await listed(store, ALICE) == ["done j1 by another"]
    assert await store.pending(ALICE) == 0


async def test_what_a_killed_worker_had_finished_is_not_done_again(store, server):
    with worker(server, "finished") as process:
        kill(process)
    assert await store.lease(now=LATER, until=LATER + HOUR) == ()
    assert await listed(store, ALICE) == ["done j1 by child"]


async def test_a_worker_that_wakes_up_late_is_rejected(store, server):
    with worker(server, "claimed") as process:
        process.send_signal(signal.SIGSTOP)
        lease = await take_over(store)
        process.send_signal(signal.SIGCONT)
        answer, _ = process.communicate("go on\n")
        assert answer == "rejected j1\n"
        await finish(store, lease)
    assert await listed(store, ALICE) == ["done j1 by another"]


async def test_a_worker_that_sleeps_in_its_transaction_is_thrown_out_by_the_server(store, server):
    """It holds the job and the user's lock, and is not dead: nobody would ever get past it."""
    with worker(server, "asleep") as process:
        process.send_signal(signal.SIGSTOP)
        await finish(store, await take_over(store))
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate("go on\n")
        # It is told why, or finds the connection gone, makes the call again, and the job is another's.
        assert process.returncode != 0 or said == "rejected j1\n"
    assert await listed(store, ALICE) == ["done j1 by another"]


async def test_two_workers_with_the_same_lease_write_one_effect(store):
    (lease,) = await store.lease(now=START, until=START + HOUR)
    await store.finish(lease, put=[effect_of("j1", "one", START)])
    with pytest.raises(StoreConflict):
        await store.finish(lease, put=[effect_of("j1", "two", START)])
    assert await listed(store, ALICE) == ["done j1 by one"]
