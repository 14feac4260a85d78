"""The loop for blocking code: it answers, it passes errors on, and it never keeps a program from ending."""

import subprocess
import sys
import threading

import pytest

from loom.core.threads import Portal


async def name_of_thread():
    return threading.current_thread().name


def test_it_runs_elsewhere_on_one_thread():
    portal = Portal()
    assert portal.call(name_of_thread) == portal.call(name_of_thread) == "loom portal"
    portal.close()
    portal.close()
    assert "loom portal" not in [thread.name for thread in threading.enumerate()]


def test_what_fails_there_fails_here():
    async def fail():
        raise LookupError("not there")

    portal = Portal()
    with pytest.raises(LookupError, match="not there"):
        portal.call(fail)
    assert portal.call(name_of_thread)
    portal.close()


@pytest.mark.parametrize(
    "program",
    [
        "from loom import Agent; print(Agent(memory='sqlite:./bot.db').run_sync('I live in Oslo.').stop)",
        "from loom import open_memory_sync; print(len(open_memory_sync().remember('Hi.', user_id='ann').kept))",
    ],
)
def test_a_program_that_closes_nothing_ends(tmp_path, program):
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("end", "1")
    assert done.stderr == ""
