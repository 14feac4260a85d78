"""Loom on a system without fcntl, fork and pread, where an open file can be neither replaced nor removed.

No Windows is needed: a process takes away what Windows lacks, gives what it has, and tries the embedded places.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRETEND = """
import asyncio, asyncio.unix_events, socket, subprocess, sys, types, os
import anyio._backends._asyncio, apsw, concurrent.futures.thread, multiprocessing, numpy, pydantic, rich, tempfile
import typer, pathlib, shutil, fcntl, errno

def locking(handle, mode, size):
    place = os.lseek(handle, 0, os.SEEK_CUR)
    kind = fcntl.LOCK_UN if mode == 0 else (fcntl.LOCK_EX | fcntl.LOCK_NB)
    writable = os.open(f"/proc/self/fd/{handle}", os.O_RDWR)  # lockf wants a file that can be written
    try:
        fcntl.lockf(writable, kind, size, place)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error
    locked.append(mode)

locked = []

msvcrt = types.ModuleType("msvcrt")
msvcrt.locking, msvcrt.LK_UNLCK, msvcrt.LK_NBLCK = locking, 0, 2

def is_open(path):
    real = os.path.realpath(path)
    return any(os.path.realpath(f"/proc/self/fd/{n}") == real for n in os.listdir("/proc/self/fd"))

def guarded(act, place):
    def wrapper(*args, **options):
        if is_open(args[place]):
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return act(*args, **options)
    return wrapper

os.replace, os.unlink = guarded(os.replace, 1), guarded(os.unlink, 0)
for name in ("fork", "pread", "pwrite", "getuid", "geteuid", "register_at_fork", "O_CLOEXEC", "O_NONBLOCK"):
    delattr(os, name)
sys.modules.update(dict.fromkeys(["fcntl", "pwd", "grp", "resource", "termios"]), msvcrt=msvcrt)
sys.platform = "win32"
"""
SESSIONS = """
import scripts.try_install as install

for place in ("inmemory", "sqlite:./memory.db"):
    install.try_memory(place)
for place in ("inmemory", "sqlite:./sessions.db", "files:./sessions"):
    install.try_sessions(place)
assert locked.count(2) == locked.count(0) > 0
import loom.testing.servers
print("works")
"""
REMOVED = """
import anyio
from loom import Scope, Session, open_checkpoints
from loom.testing import ScriptedModel

async def main():
    store = open_checkpoints("files:./sessions")
    for name in ("a", "b"):
        session = Session(model=ScriptedModel([name * 100_000] * 3), session_id=name, user_id="u", checkpoints=store)
        for text in ("one", "two", "three"):
            await session.send(text)
    other = open_checkpoints("files:./sessions")
    session = Session(model=ScriptedModel([]), session_id="b", user_id="u", checkpoints=other)
    await session.restore()
    assert len(session.messages) == 6
    before = sum(path.stat().st_size for path in pathlib.Path("sessions").glob("*.log"))
    await store.forget(Scope(user_id="u", session_id="a"))
    after = sum(path.stat().st_size for path in pathlib.Path("sessions").glob("*.log"))
    assert after < before / 1.5, (before, after)
    await session.restore()
    await store.aclose()
    await other.aclose()

anyio.run(main)
print("works")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is open is read from /proc")
@pytest.mark.parametrize("code", [SESSIONS, REMOVED], ids=["places", "rewritten files"])
def test_the_embedded_places_work_as_on_windows(tmp_path, code):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", PRETEND + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout == "works\n", done.stderr
