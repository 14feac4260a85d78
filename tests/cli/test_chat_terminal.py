"""`loom chat` in a real terminal, where Ctrl-C is a key."""

import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import textwrap
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

LOOM = Path(sys.executable).parent / "loom"
CTRL_C = b"\x03"
CTRL_D = b"\x04"
LEFT = b"\x1b[D"
UP = b"\x1b[A"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
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

        def start(*args, columns=100, **given):
            ours, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            stack.callback(os.close, ours)
            env = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
            env |= {"TERM": "xterm-256color", **given}
            env.pop("COLUMNS", None)
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


def test_while_an_answer_is_awaited_it_ends_the_answer_and_not_the_chat(chat):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process, terminal = chat("--model", "compatible:mute", LOOM_BASE_URL=where)
        shown_until(terminal, b"> ")
        os.write(terminal, b"Are you there?\n")
        connection, _ = silent.accept()
        with connection:
            assert "reading about" in shown_until(terminal, rb"reading about \d+ tokens")
            os.write(terminal, CTRL_C)
            shown = shown_until(terminal, rb"stopped.*> ")
            assert "Traceback" not in shown
        os.write(terminal, b"/context\n")
        assert "turn 0" in shown_until(terminal, rb"turn 0.*> ")
        os.write(terminal, CTRL_D)
        assert "Traceback" not in shown_until(terminal)
    assert process.wait() == 0


def test_one_message_that_is_stopped_ends_with_the_code_of_ctrl_c(chat):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process, terminal = chat("Are you there?", "--model", "compatible:mute", LOOM_BASE_URL=where)
        connection, _ = silent.accept()
        with connection:
            os.write(terminal, CTRL_C)
            assert "Traceback" not in shown_until(terminal)
    assert process.wait() == 130


def test_with_something_typed_it_empties_the_line(chat):
    process, terminal = chat()
    shown_until(terminal, b"> ")
    os.write(terminal, b"never said")
    shown_until(terminal, b"never said")
    os.write(terminal, CTRL_C)
    shown_until(terminal, b"> ")
    os.write(terminal, b"/context\n")
    assert "turn 0" in shown_until(terminal, rb"turn 0.*> ")
    os.write(terminal, CTRL_D)
    shown_until(terminal)
    assert process.wait() == 0


def test_lines_are_edited_and_called_back_in_a_later_chat(chat):
    process, terminal = chat()
    shown_until(terminal, b"> ")
    os.write(terminal, b"I live in Olo." + LEFT * 3 + b"s\n")
    shown_until(terminal, rb"out\).*> ")
    os.write(terminal, CTRL_D)
    shown_until(terminal)
    assert process.wait() == 0
    process, terminal = chat()
    shown_until(terminal, b"> ")
    os.write(terminal, UP)
    assert "I live in Oslo." in shown_until(terminal, rb"I live in Oslo\.")
    os.write(terminal, b"\n")
    assert "user lives in: Oslo" in shown_until(terminal, rb"out\).*> ")
    os.write(terminal, CTRL_D)
    shown_until(terminal)
    assert process.wait() == 0


def test_no_earlier_line_is_left_after_a_person_was_forgotten(chat, tmp_path):
    process, terminal = chat("My secret is a boat.")
    shown_until(terminal)
    assert process.wait() == 0
    assert (
        subprocess.run([LOOM, "forget", "me", "--yes"], check=False, capture_output=True, cwd=tmp_path).returncode == 0
    )
    process, terminal = chat()
    shown_until(terminal, b"> ")
    os.write(terminal, UP + b"/context\n")
    assert "secret" not in shown_until(terminal, rb"turn 0.*> ")
    os.write(terminal, CTRL_D)
    shown_until(terminal)


@pytest.mark.parametrize("columns", [30, 61])
def test_answers_are_broken_between_words_at_the_width_of_the_terminal(chat, columns):
    process, terminal = chat("I live in Oslo.", columns=columns, NO_COLOR="1")
    shown = CONTROL.sub("", shown_until(terminal))
    assert process.wait() == 0
    answer = shown[shown.index("Noted") :].partition("(1")[0].splitlines()
    words = "Noted (no language model is connected; set LOOM_MODEL, or give model='anthropic:...')."
    assert [*filter(None, answer)] == textwrap.wrap(words, columns)


def test_without_colours_nothing_is_coloured(chat):
    process, terminal = chat("I live in Oslo.", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown_until(terminal))
    assert process.wait() == 0
