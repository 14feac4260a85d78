"""The run of the tests itself: one that hangs is ended, and where it hangs is shown."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGING = """
import os
import signal

import anyio
import pytest

@pytest.fixture
def stubborn():
    yield
    anyio.run(anyio.sleep_forever)

@pytest.mark.anyio
async def test_waits():
    await anyio.sleep_forever()

def test_fails_and_waits(stubborn):
    raise ValueError

@pytest.mark.anyio
async def test_waits_until_its_time_is_over():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        await anyio.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGALRM)
"""


@pytest.fixture
def run(tmp_path):
    """Runs one of the tests above with the settings of this project; returns what the terminal shows besides dots."""

    def run(name, seconds, workers):
        path = tmp_path / "test_hanging.py"
        path.write_text(HANGING)
        given = ["-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *given, "-o", f"timeout={seconds}", f"-n{workers}"]
        done = subprocess.run([*command, f"{path}::{name}"], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 1
        return done.stderr

    return run


@pytest.mark.parametrize(("name", "workers"), [("test_waits", 1), ("test_fails_and_waits", 0)])
def test_a_test_that_hangs_fails(name, workers, run):
    assert "hangs: it had 1 seconds" in run(name, 1, workers)


def test_the_stack_of_every_task_is_shown(run):
    shown = run("test_waits_until_its_time_is_over", 900, 1)
    assert "in test_waits_until_its_time_is_over" in shown
    assert "in sleep_forever" in shown
