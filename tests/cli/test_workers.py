"""Workers that share one server: every job is done once, whoever does it, and they end when they are told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator

import pytest
from typer.testing import CliRunner

from loom import open_memory_sync
from loom.admin.workers import Worker, run_workers
from loom.cli.app import app
from loom.errors import UsageError
from loom.testing.servers import RedisServer, redis

USERS = [f"user {number}" for number in range(12)]


@pytest.fixture(scope="module")
def server() -> Generator[RedisServer]:
    with redis() as started:
        yield started


def fill(url: str) -> None:
    """Give every user turns whose facts wait for a worker."""
    with open_memory_sync(url) as memory:
        for user in USERS:
            for place in ("Lisbon", "Porto", "Braga"):
                memory.remember(f"I live in {place}.", user_id=user, learn=False)


def test_three_processes_do_every_job_once(server: RedisServer) -> None:
    url = server.url(database=1)
    fill(url)
    command = [sys.executable, "-m", "loom", "memory", "work", "--processes", "3", "--json"]
    done = subprocess.run(command, env={**os.environ, "LOOM_MEMORY": url}, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["failed"] == []
    assert told["jobs"] >= len(USERS)
    with open_memory_sync(url) as memory:
        for user in USERS:
            held = memory.stats(user_id=user)
            assert (held["jobs"], held["failed"]) == (0, 0)
            assert [fact.object for fact in memory.facts(user_id=user)] == ["Braga"]


def test_workers_that_go_on_end_when_they_are_told_to(server: RedisServer) -> None:
    url = server.url(database=2)
    fill(url)
    command = [sys.executable, "-m", "loom", "memory", "work", "--processes", "2", "--every", "0.05", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, "LOOM_MEMORY": url}, stdout=subprocess.PIPE, text=True
    ) as process:
        with open_memory_sync(url) as memory:
            while any(memory.stats(user_id=user)["jobs"] for user in USERS):
                assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(said)["jobs"] >= len(USERS)


def test_workers_that_cannot_reach_the_store_say_so_once() -> None:
    env = {**os.environ, "LOOM_MEMORY": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-m", "loom", "memory", "work", "--processes", "2"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("does not answer") == 1


@pytest.mark.parametrize(
    ("worker", "processes", "says"),
    [
        (Worker("sqlite:x.db"), 2, "one writer"),
        (Worker("redis://127.0.0.1/0"), 0, "--processes is 0"),
        (Worker("redis://127.0.0.1/0", every=0), 1, "--every is 0"),
    ],
)
def test_what_cannot_work_is_refused(worker: Worker, processes: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run_workers(worker, processes=processes, report=lambda _: None)


def test_one_worker_ends_when_nothing_is_due(tmp_path) -> None:
    url = f"sqlite:{tmp_path / 'memory.db'}"
    fill(url)
    done = CliRunner().invoke(app, ["memory", "work", "--url", url, "--json"])
    assert json.loads(done.stdout)["jobs"] >= len(USERS)
    again = CliRunner().invoke(app, ["memory", "work", "--url", url, "--json"])
    assert json.loads(again.stdout)["jobs"] == 0
