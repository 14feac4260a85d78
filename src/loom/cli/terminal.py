"""A terminal for a conversation: lines that are edited, answers broken between words, and what is waited for."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from loom.cli.output import console, echo, edited_line, plain_line
from loom.text.fence import one_line, plain_text

if TYPE_CHECKING:
    from rich.status import Status

# Reading a line: with the editing and the history of readline where Python has it.

PROMPT = "> "
_LONGEST = 1_000
"""Characters of a line in the history."""
_LOOKED_EVERY = 0.25
"""Seconds between two looks at signals, while a line is typed."""


class LineReader:
    """Reads what the user types, or what is piped in."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._edits = self.is_terminal and sys.stdout.isatty()
        self._readline = _readline() if self._edits else None

    @property
    def has_history(self) -> bool:
        """Whether earlier lines can be called back with the arrow keys."""
        return self._readline is not None

    def remember(self, lines: Iterable[str]) -> None:
        """Put earlier lines into the history, the oldest first; several lines of one message become one."""
        if self._readline is not None:
            for line in filter(None, map(one_line, lines)):
                self._readline.add_history(plain_text(line[:_LONGEST]))

    def read(self) -> str:
        """The next line.

        Raises:
            EOFError: there are no more, or Ctrl-D was typed.
            KeyboardInterrupt: Ctrl-C was typed in an empty line.
        """
        while True:
            try:
                return self._read()
            except KeyboardInterrupt:
                typed = self._readline.get_line_buffer() if self._readline is not None else ""
                echo(err=True)  # the terminal shows ^C where it was typed: the next output begins a line
                if not typed:
                    raise

    def _read(self) -> str:
        if self._edits:
            with _noticed_signals():
                return edited_line(PROMPT)
        return plain_line(PROMPT if self.is_terminal else "")


def _do_nothing(*_: object) -> None:
    pass


@contextmanager
def _noticed_signals() -> Generator[None]:
    """Let Ctrl-C act at every moment: one that comes just before readline waits for a key would wait for that key."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _do_nothing)
    signal.setitimer(signal.ITIMER_REAL, _LOOKED_EVERY, _LOOKED_EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _readline() -> ModuleType | None:
    """The line editor of this Python; Windows has another of its own, in the console."""
    with suppress(ImportError):
        import readline

        readline.set_auto_history(True)
        return readline
    return None


# Breaking lines between words, while the text is still being written.

_JOINER = "\u200d"
_NEVER_FIRST = frozenset("、。，．！？：；）］｝」』】〉》〕’”・ーぁぃぅぇぉっゃゅょァィゥェォッャュョ…‥％")  # noqa: RUF001
"""Characters of wide scripts that do not begin a line."""
_NEVER_LAST = frozenset("（［｛「『【〈《〔‘“")  # noqa: RUF001
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FENCE = "```"


class Wrap:
    """Breaks lines between words at the width of the terminal, however the text is cut into pieces.

    A word waits until it is complete. Scripts without spaces may be broken between any two characters. Lines of code
    between fences, and words that are longer than a line, are left to the terminal.
    """

    def __init__(self, width: int | None = None) -> None:
        """Break at this width; by default, at that of the terminal, which may change."""
        self._width = width
        self._column = 0
        self._spaces = self._word = ""
        self._line = ""
        self._in_code = False

    def feed(self, text: str) -> str:
        """What to print now."""
        out: list[str] = []
        for char in text:
            if char == "\n":
                self._end_word(out)
                self._end_line(out)
            elif self._in_code or self._line == _FENCE:
                self._end_word(out)
                out.append(char)
                self._note(char)
            elif char in " \t":
                self._end_word(out)
                self._spaces += char
            else:
                if self._word and _may_break(self._word[-1], char):
                    self._end_word(out)
                self._word += char
                self._note(char)
        return "".join(out)

    def flush(self) -> str:
        """What is left: the word at the end of the text."""
        out: list[str] = []
        self._end_word(out)
        self._column, self._line, self._in_code = 0, "", False
        self._spaces = ""
        return "".join(out)

    def _note(self, char: str) -> None:
        """Keep the beginning of a line, by which a fence is known."""
        if len(self._line) < len(_FENCE) and not char.isspace():
            self._line += char

    def _end_line(self, out: list[str]) -> None:
        if self._line == _FENCE:
            self._in_code = not self._in_code
        out.append("\n")
        self._column, self._line, self._spaces = 0, "", ""

    def _end_word(self, out: list[str]) -> None:
        if not self._word:
            return
        width = self._width or shutil.get_terminal_size().columns
        spaces, size = len(self._spaces.expandtabs(8)), cell_len(self._word)
        if self._column and self._column + spaces + size > width:
            out.append("\n")
            self._column = 0
        else:
            out.append(self._spaces)
            self._column += spaces
        out.append(self._word)
        self._column += size
        if self._column > width:
            self._column %= width
        self._spaces = self._word = ""


def _may_break(before: str, char: str) -> bool:
    """Whether a line may end between two characters that no space parts."""
    if before == _JOINER or not cell_len(char) or ord(char) in _SKIN_TONES:
        return False
    is_wide = cell_len(before) > 1 or cell_len(char) > 1
    return is_wide and char not in _NEVER_FIRST and before not in _NEVER_LAST


# What is waited for.

_SHOWN_AFTER = 2.0
"""Seconds of waiting that need no number."""


class Waiting:
    """Says on the error stream of a terminal what is waited for, and for how long; elsewhere it says nothing."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._status: Status | None = None
        self._text, self._since = "", 0.0

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def show(self, text: str) -> None:
        """Wait for something; what was waited for before is over."""
        if not self.is_shown:
            return
        self._text, self._since = text, monotonic()
        if self._status is None:
            from rich.status import Status

            self._status = Status(self, console=self._console, spinner="dots", spinner_style="dim")
            self._status.start()

    def hide(self) -> None:
        """It is there: the line is free."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __rich__(self) -> Text:
        seconds = monotonic() - self._since
        elapsed = f", {seconds:.0f} s" if seconds >= _SHOWN_AFTER else ""
        return Text(f"{self._text}{elapsed}", style="dim")
