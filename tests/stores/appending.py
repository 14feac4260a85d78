"""Processes that append to one session of a store at the same time, and what has to be there afterwards."""

import subprocess
import sys
from collections import defaultdict

from loom.engine import open_checkpoints
from tests.stores.append_child import PIECE, SHARED, entry

ENTRIES = 1_000
NAMES = ("a", "b")


def run_both(url, mode):
    """What two processes that append say of errors."""
    command = [sys.executable, "-m", "tests.stores.append_child", url]
    children = [
        subprocess.Popen([*command, name, str(ENTRIES), mode], stderr=subprocess.PIPE, text=True) for name in NAMES
    ]
    return [child.communicate()[1] for child in children]


async def check_processes(url, *, once):
    """Two processes append entries each: none is lost, none is doubled, and each has its own order."""
    assert run_both(url, "once" if once else "each") == ["", ""]
    store = open_checkpoints(url)
    try:
        (found,) = await store.sessions(SHARED)
        assert (found.entries, found.checkpoints) == (2 * ENTRIES, 2 * ENTRIES // PIECE)
        newest = await store.load(SHARED)
        of_writer = defaultdict(list)
        for one in await store.history(SHARED, newest.id):
            of_writer[one.id.partition("-")[0]].append(one)
        assert of_writer == {name: [entry(f"{name}-{n}") for n in range(ENTRIES)] for name in NAMES}
    finally:
        await store.forget(SHARED)
        await store.aclose()
