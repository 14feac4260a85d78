import asyncio
import faulthandler
import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine an example takes as long as it takes.
settings.register_profile("loom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loom")

TERMINAL = pytest.StashKey[int]()
LAST_NET = 60
"""Seconds after its time in which a test that hangs may still run the Python that says where."""
MEMORY = Path("/dev/shm")
ROOM = 4 << 30


def use_memory_for_files() -> None:
    """Put temporary files into memory where there is room, unless TMPDIR says where they belong.

    A killed process loses nothing there that a disk would have kept: only a power failure tells the two apart.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    room = os.statvfs(MEMORY)
    if room.f_flag & os.ST_NOEXEC or room.f_bavail * room.f_frsize < ROOM or not os.access(MEMORY, os.W_OK):
        return
    folder = MEMORY / f"loom-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # workers and the programs that tests start inherit it


use_memory_for_files()


@pytest.fixture
def anyio_backend():
    return "asyncio"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Half as many again as cores: tests wait for servers, and each worker imports and starts all it needs anew."""
    return -(-3 * (os.cpu_count() or 1) // 2)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the way to the terminal, as output is captured while a test runs; and hear Ctrl-C.

    A run that a script started in the background ignores it, and so would every program that a test starts to
    interrupt it: what is ignored is inherited.
    """
    gc.disable()  # modules and tests stay to the end: nothing of them is ever found to be garbage
    config.stash[TERMINAL] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage again, but do not look through what was there before the first test."""
    gc.freeze()
    gc.enable()


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """A test that hangs ends its process, and the stacks of all threads and tasks go to the terminal.

    The two methods of pytest-timeout are not enough: an exception from a signal does not end a thread that others
    wait for, and in a worker of xdist nobody sees the stacks that it prints.
    """
    watch(item, settings.timeout)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A failure stops the timer, because a debugger may follow; but what is put away afterwards may hang too."""
    watch(item, float(item.config.getini("timeout")))
    return (yield)


def watch(item: pytest.Item, seconds: float) -> None:
    """End the process unless the test is over in time."""
    terminal = item.config.stash[TERMINAL]

    def hangs(*_: object) -> None:
        with os.fdopen(terminal, "w") as out:
            out.write(f"\n{item.nodeid} hangs: it had {seconds:g} seconds\n")
            tasks = [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.Task) and not thing.done()]
            out.writelines(f"{task!r} stands at\n{''.join(stack_of(task))}" for task in tasks)
            out.flush()
            faulthandler.dump_traceback(out)
        os._exit(1)

    signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + LAST_NET, exit=True, file=terminal)


def stack_of(task: asyncio.Task[Any]) -> Iterator[str]:
    """The calls in which a task waits, the innermost last; its own print_stack() shows the first one only."""
    step: Any = task.get_coro()
    while step is not None:
        if (frame := getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)) is not None:
            yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_qualname}\n'
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
