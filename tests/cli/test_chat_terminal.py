"""`loom chat` in a real terminal, where Ctrl-C is a key."""

import os
import pty
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

LOOM = Path(sys.executable).parent / "loom"
CTRL_C = b"\x03"
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A terminal sends Ctrl-C to those who took it as their own."""


@pytest.fixture
def chat(tmp_path):
    """Begins a chat in a terminal of its own; gives the process and the other end of the terminal."""
    with ExitStack() as stack:

        def start(*args, **given):
            ours, theirs = pty.openpty()
            stack.callback(os.close, ours)
            env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")} | given
            command = [sys.executable, "-c", IN_TERMINAL, LOOM, "chat", *args]
            process = subprocess.Popen(
                command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=env, start_new_session=True
            )
            os.close(theirs)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process, ours

        yield start


def shown_until(terminal, pattern=None):
    """What a terminal shows up to something, or up to the end of its last process."""
    shown = b""
    with suppress(OSError):  # so a terminal says that nobody is left
        while (pattern is None or not re.search(pattern, shown, re.DOTALL)) and (more := os.read(terminal, 4096)):
            shown += more
    return shown.decode()


def test_at_the_prompt_it_ends_the_chat(chat):
    process, terminal = chat()
    assert "> " in shown_until(terminal, b"> ")
    os.write(terminal, CTRL_C)
    assert shown_until(terminal).splitlines()[1:] == []
    assert process.wait() == 130


def test_at_a_later_prompt_too_and_what_was_said_is_kept(chat):
    process, terminal = chat("--session", "trip")
    shown_until(terminal, b"> ")
    os.write(terminal, b"I live in Oslo.\n")
    shown_until(terminal, rb"out\).*> ")
    os.write(terminal, CTRL_C)
    shown_until(terminal)
    assert process.wait() == 130
    again, terminal = chat("/context", "--session", "trip")
    assert "turn 1" in shown_until(terminal)
    assert again.wait() == 0


def test_while_an_answer_is_awaited_it_ends_the_chat(chat):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process, terminal = chat("--model", "compatible:mute", LOOM_BASE_URL=where)
        shown_until(terminal, b"> ")
        os.write(terminal, b"Are you there?\n")
        connection, _ = silent.accept()
        with connection:
            os.write(terminal, CTRL_C)
            assert "Traceback" not in shown_until(terminal)
    assert process.wait() == 130
