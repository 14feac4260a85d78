"""What the commands share: output, as text for people and JSON for programs, and defaults of their options.

Everything that is printed goes through this module. Stored text, names, errors and model answers may contain characters
that control a terminal; none of them reaches it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from loom.errors import UsageError
from loom.text.fence import one_line, plain_text

HIDDEN = {"prompt", "body", "key"}
"""Fields that are too large for a report."""
SHOWN_CHARS = 300
"""Characters of a text in a list."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The option that every command has."""
DEFAULT = "sqlite:./loom-memory.db"
"""The store of every command that is given none: `loom chat` and `loom memory` see the same."""
WHO = "me"
"""The user of every command that is given none."""


class SafeConsole(Console):
    """A console that applies Loom's own styles, and none that a text contains."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments to print, each with plain text."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(plain_text(piece.text), piece.style)


def console(*, stderr: bool = False) -> Console:
    """A console for people. Brackets in a text are brackets, not markup."""
    return SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text without its control characters."""
    typer.echo(plain_text(text), err=err)


def ask(question: str) -> None:
    """Ask for confirmation; a "no" ends the command."""
    typer.confirm(plain_text(question), abort=True)


def edited_line(prompt: str) -> str:
    """Read a line in a terminal, with the line editor of readline where that was imported."""
    return input(prompt)


def plain_line(prompt: str) -> str:
    """Read a line of the input; a prompt goes to the error stream.

    Raises:
        EOFError: there are no more.
    """
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


class Lines(Protocol):
    """Breaks the lines of a text that comes in pieces."""

    def feed(self, text: str) -> str:
        """What to print now."""
        ...

    def flush(self) -> str:
        """What is left at the end of the text."""
        ...


class Stream:
    """Prints a streamed text, each piece at once.

    Characters that may belong to the next piece wait for it: half a line end, and characters that join two others.
    With `lines`, a word waits until it is complete.
    """

    _WAITING = "\r\u200c\u200d\ufe0e\ufe0f"

    def __init__(self, lines: Lines | None = None) -> None:
        self._before, self._held = "", ""
        self._lines = lines
        self.in_line = False
        """Whether the last line is not complete."""

    def write(self, piece: str) -> None:
        """Print the next piece."""
        text = self._held + piece
        ready = text.rstrip(self._WAITING)
        self._held = text[len(ready) :]
        clean = plain_text(self._before + ready)[len(self._before) :]
        self._print(clean if self._lines is None else self._lines.feed(clean))
        if clean:
            self.in_line = not clean.endswith("\n")
        last = ready[-1:] or self._before
        self._before = last if plain_text(last) == last else ""

    def end(self) -> None:
        """Print what waits, and end the line that is not complete."""
        self._held = self._before = ""
        left = "" if self._lines is None else self._lines.flush()
        self._print(left + "\n" if self.in_line else left)
        self.in_line = False

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def print_listed(id: str, text: str, about: str) -> None:
    """Print a record of a list: its id and text, not cut at the terminal's width, and a line about it."""
    out = console()
    out.print(Text(f"{one_line(id)}  {shortened(text)}"), soft_wrap=True)
    out.print(Padding(Text(about, style="dim"), (0, 0, 0, 4), expand=False))


def shortened(text: str) -> str:
    """A text on one line, cut with an ellipsis where it is long."""
    line = one_line(text)
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS].rstrip()}\N{HORIZONTAL ELLIPSIS}"


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[int, int], None]]:
    """Show a progress bar on the error stream; yields the function that takes what is done and the total."""
    with progress_bars(title) as (report,):
        yield report


@contextmanager
def progress_bars(*titles: str) -> Generator[list[Callable[[int, int], None]]]:
    """Show a progress bar for each step, from its first report on; yields the function of each."""
    from rich.progress import Progress, TaskID

    out = console(stderr=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        tasks = [bar.add_task(title, total=None, visible=not number) for number, title in enumerate(titles)]

        def report_on(task: TaskID) -> Callable[[int, int], None]:
            return lambda done, total: bar.update(task, completed=done, total=total, visible=True)

        yield [report_on(task) for task in tasks]


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a value as JSON; without an indent, on one line."""
    echo_json(json.dumps(plain(value), indent=indent, ensure_ascii=False))


def echo_json(document: str) -> None:
    """Print JSON; control characters are written as escapes, which mean the same."""
    typer.echo(document.translate(_ESCAPES))


def write_file(path: Path, text: str) -> None:
    """Write a file, or say why it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another file") from error


class _Escapes(dict[int, str]):
    """How JSON spells each character, computed when it first occurs."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        is_plain = char == "\n" or plain_text(char) == char
        self[code] = char if is_plain else f"\\u{code:04x}" if code <= _TWO_BYTES else json.dumps(char)[1:-1]
        return self[code]


_TWO_BYTES = 0xFFFF
_ESCAPES = _Escapes()


def plain(value: object) -> Any:
    """A value as JSON: dataclasses become objects, with their field names as keys."""
    from loom.core.codec import record_to_dict
    from loom.core.record import Episode, Fact, WorkingBlock

    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Episode | Fact | WorkingBlock):
        return record_to_dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f.name for f in fields(value) if f.name not in HIDDEN and not f.name.startswith("_"))
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[str, object]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(v) for v in cast("Sequence[object]", value)]
    return value
