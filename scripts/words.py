"""Find words that a reader stumbles over, in code, documentation, help texts and the names of tests.

`python -m scripts.words` lists each file with its leftovers. `scripts/words.toml` holds the words, what to write
instead, the quotations that may stay (texts for models or stores, words of users), and folders that are not clean yet.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_TEST_REFERENCE: Final = re.compile(r"`tests/[^`\n]+`")
_TEST_NAME: Final = re.compile(r"^\s*(?:async )?(?:def|class) (test_\w+|Test\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rules:
    """What `scripts/words.toml` says."""

    words: Mapping[str, str]
    """A pattern, and what to write instead."""
    names: Mapping[str, str]
    """The same for the names of test files."""
    quoted: Mapping[str, Sequence[str]]
    """By file: texts in which a word may stay."""
    pending: Sequence[str]
    """Beginnings of paths that are not looked at yet."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One place where a word is left."""

    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        """The place and the advice, for people."""
        return f"{self.file}:{self.line}: {self.word!r}; {self.instead}"


def load_rules(root: Path = ROOT) -> Rules:
    """The committed rules."""
    with (root / "scripts/words.toml").open("rb") as file:
        found = tomllib.load(file)
    return Rules(found["words"], found["test_files"], found["quoted"], found["pending"])


def check(root: Path, rules: Rules) -> Iterator[Leftover]:
    """Every leftover under a root, and every quotation that is not needed any more."""
    for file in _files(root):
        name = file.relative_to(root).as_posix()
        if name.startswith(tuple(rules.pending)):
            continue
        if name.startswith("tests/"):
            yield from _matches(name, file.stem, rules.names)
        text, unused = _without(_read(file, name), rules.quoted.get(name, ()))
        yield from (Leftover(name, 0, quote, "no such text there; remove the quotation") for quote in unused)
        yield from _matches(name, text, rules.words)


def _files(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob("*.md"))
    for folder, ending in (("src", "*.py"), ("docs", "*.md"), ("benchmarks", "*.py"), ("benchmarks", "*.md")):
        yield from sorted((root / folder).rglob(ending))
    for folder, ending in (("examples", "*.py"), ("examples", "*.md")):
        yield from sorted((root / folder).glob(ending))
    yield from sorted((root / "tests").rglob("*.py"))


def _read(file: Path, name: str) -> str:
    """The text to look at; of a test only the names, since it may hold any words as data."""
    text = file.read_text(encoding="utf-8")
    if not name.startswith("tests/"):
        return _TEST_REFERENCE.sub("", text)  # the names of tests are looked at in the tests
    kept = {text.count("\n", 0, found.start(1)): found[1] for found in _TEST_NAME.finditer(text)}
    return "\n".join(kept.get(line, "") for line in range(text.count("\n") + 1))


def _without(text: str, quotes: Sequence[str]) -> tuple[str, list[str]]:
    unused = [quote for quote in quotes if quote not in text]
    for quote in quotes:
        text = text.replace(quote, "\n" * quote.count("\n"))
    return text, unused


def _matches(file: str, text: str, words: Mapping[str, str]) -> Iterator[Leftover]:
    spaced = text.replace("_", " ")
    for pattern, instead in words.items():
        for found in re.finditer(pattern, spaced, re.IGNORECASE):
            yield Leftover(file, text.count("\n", 0, found.start()) + 1, found[0], instead)


def main(root: Path = ROOT) -> int:
    """Print the leftovers; returns the exit code."""
    rules = load_rules(root)
    found = list(check(root, rules))
    for leftover in found:
        sys.stdout.write(f"{leftover}\n")
    pending = f"; not looked at: {', '.join(rules.pending)}" if rules.pending else ""
    sys.stdout.write(f"{len(found)} leftovers{pending}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
