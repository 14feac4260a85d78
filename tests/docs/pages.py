"""The pages of the documentation, taken apart: prose, code, and the output that code is said to print."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import commands

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OTHERS = tuple(
    ROOT / name
    for name in (
        *("CHANGELOG.md", "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md", "VERSIONING.md"),
        *("benchmarks/README.md", "examples/README.md"),
    )
)
GUIDE = ROOT / "CONTRIBUTING.md"
REWRITE = "LOOM_REWRITE_DOCS"
WIDTH = 80

_BLOCK = re.compile(
    r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$", re.MULTILINE | re.DOTALL
)
_ENTRY_ID = re.compile(r"\b([Ee]ntry) [a-hjkmnp-z2-9]{3,4}\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or a hidden `<!-- setup` comment, which is Python that the reader need not see."""

    language: str
    code: str
    start: int
    """Where its code begins in the page, in characters."""
    line: int
    expects: Block | None = None
    """The output block right behind it."""


def name_of(page: Path) -> str:
    """How a page is called in a test's name."""
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """The blocks of a page, output blocks joined to the code that prints them."""
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        group = "code" if match["setup"] is None else "setup"
        line = text.count("\n", 0, match.start(group)) + 1
        block = Block(match["language"] or "setup", match[group], match.start(group), line)
        runs = bool(found) and found[-1].language in {"python", "bash"} and found[-1].expects is None
        if block.language in {"text", "output"} and runs and not text[end : match.start()].strip():
            last = found[-1]
            found[-1] = Block(last.language, last.code, last.start, last.line, expects=block)
        else:
            found.append(block)
        end = match.end()
    return found


def run(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in order, in one namespace and one folder; yields what each printed."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in {"python", "setup"}:
            yield block, _run_python(page, block, space)
        elif block.language == "bash" and block.code.startswith("loom "):
            yield block, "".join(run_loom(line, folder) for line in block.code.splitlines() if line.strip())


def run_loom(line: str, folder: Path) -> str:
    """What the installed command prints; a failure raises with what it said."""
    command, *arguments = shlex.split(os.path.expandvars(line), comments=True)
    assert command == "loom", line
    done = commands.run_loom([commands.LOOM, *arguments], cwd=folder, env=terminal())
    assert done.returncode == 0, f"{line}: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def terminal() -> dict[str, str]:
    """An environment in which the command line prints the same text everywhere."""
    plain = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1", "TYPER_USE_RICH": "0"}
    return {**os.environ, **plain}


def same(printed: str, expected: str) -> bool:
    """Whether two outputs agree; entry ids are new in every process, and spaces at the end of a line are not seen."""
    return _settled(printed) == _settled(expected)


def shown(printed: str) -> str:
    """Printed text as a page shows it."""
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())


def _settled(text: str) -> str:
    return _ENTRY_ID.sub(r"\1 xyz", shown(text))


def _run_python(page: Path, block: Block, space: dict[str, Any]) -> str:
    source = "\n" * (block.line - 1) + block.code  # so that a traceback names the line of the page
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, str(page), "exec"), space)
    return out.getvalue()
