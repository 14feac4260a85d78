"""Finds paths, numbers, names and decisions in a text, without a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from loom.core.checkpoint import Shown
from loom.core.message import JSON, Message, TextPart, ToolCallPart, ToolResultPart, plain
from loom.session.compaction.record import read_record

_URL: Final = re.compile(r"https?://[^\s<>\"'`)\]}]{1,300}")
_EXTENSIONS: Final = (
    "py|pyi|js|jsx|ts|tsx|rs|go|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|sh|sql|md|rst|txt|json|jsonl|yaml|yml|toml|ini|"
    "cfg|conf|env|lock|xml|html|css|csv|tsv|pdf|png|jpg|svg|log|ipynb|proto|db|zip|gz|tar|whl"
)
_SEGMENT: Final = r"[\w.@+\-]{1,120}"
_PATH: Final = re.compile(
    rf"(?<![\w./\\@:~+\-])"  # starts are few, so that a long run of anything is read once
    rf"(?:(?:~|\.{{1,2}}|[A-Za-z]:)?[/\\]{_SEGMENT}(?:[/\\]{_SEGMENT}){{0,30}}"  # rooted, or relative with a dot
    rf"|{_SEGMENT}(?:[/\\]{_SEGMENT}){{2,30}}"  # three names and more
    rf"|{_SEGMENT}[/\\][\w@+\-.]{{1,120}}\.(?:{_EXTENSIONS})"
    rf"|[\w@+\-]{{1,80}}(?:\.[\w\-]{{1,40}}){{0,3}}\.(?:{_EXTENSIONS}))"
    rf"(?!\w)"
)
_NUMBER: Final = re.compile(r"(?<![\w.])[$€£]?v?\d(?:[\d.,:/\-]{0,30}\d)?(?:%|[A-Za-z]{1,3})?(?!\w)")
_NAME: Final = re.compile(
    r"\b(?:[A-Z][a-z]{1,30}(?: [A-Z][a-z]{1,30}){1,4}"
    r"|[A-Za-z][A-Za-z0-9]{0,40}(?:_[A-Za-z0-9]{1,40}){1,8}"
    r"|[a-z]{1,30}(?:[A-Z][a-z0-9]{1,30}){1,6}|(?:[A-Z][a-z0-9]{1,30}){2,6})\b"
)
_DECISION: Final = re.compile(
    r"\b(?:decided|decision|agreed|chose|chosen|we(?:'ll| will) use|let's use|going with|instead of|must(?: not)?|"
    r"never|always|prefer|do not|don't)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"[^.!?\n]{3,400}(?:\.(?=\w)[^.!?\n]{0,200}){0,5}[.!?]?")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a text mentions, each once, in the order of first mention."""

    paths: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names of several words, identifiers, and addresses on the web."""
    decisions: tuple[str, ...] = ()
    """Sentences that settle something."""


def text_of(message: Message) -> str:
    """All text of a message that says something about its subject: no thinking, no call ids, no pictures."""
    if record := read_record(message):
        return "\n".join(line for lines in record.parts.values() for line in lines)
    return "\n".join(found for part in message.parts for found in _texts(part))


def chars_of(shown: Iterable[Shown]) -> int:
    """How many characters of text some messages have, roughly: what is looked through to find facts."""
    return sum(len(text) for item in shown for part in item.message.parts for text in _texts(part))


def facts_in(text: str) -> Facts:
    """What a text mentions."""
    rest = _PATH.sub(" ", _URL.sub(" ", text))
    names = (*urls_in(text), *_NAME.findall(rest))
    return Facts(paths_in(text), tuple(numbers_in(text)), _unique(names), decisions_in(text))


def urls_in(text: str) -> tuple[str, ...]:
    """The addresses on the web that a text mentions."""
    return _unique(found.rstrip(".,;:!?") for found in _URL.findall(text))


def paths_in(text: str) -> tuple[str, ...]:
    """The file paths of a text."""
    found = (path.rstrip(".,;:!?") for path in _PATH.findall(_URL.sub(" ", text)))
    return _unique(path for path in found if any(char.isalpha() for char in path))


def numbers_in(text: str) -> dict[str, str]:
    """The numbers of a text that have at least two digits, dates and amounts included; not those inside paths.

    Each comes with the words around its first mention, on one line: alone it would say nothing.
    """
    blank = _PATH.sub(_blank, _URL.sub(_blank, text))  # as long as the text, so that places agree
    found: dict[str, str] = {}
    for match in _NUMBER.finditer(blank):
        if match[0] not in found and sum(char.isdigit() for char in match[0]) > 1:
            found[match[0]] = _around(text, match.start(), match.end())
    return found


def decisions_in(text: str) -> tuple[str, ...]:
    """The sentences of a text that settle something, each at most 400 characters long."""
    if not _DECISION.search(text):
        return ()
    return _unique(
        sentence
        for line in text.splitlines()
        if _DECISION.search(line)
        for found in _SENTENCE.findall(line)
        if _DECISION.search(found) and (sentence := found.strip()[:400])
    )


def _around(text: str, start: int, end: int, *, width: int = 24) -> str:
    head, tail = text[max(0, start - width) : start], text[end : end + width]
    head = head.partition(" ")[2] if start > width else head
    tail = tail.rpartition(" ")[0] if end + width < len(text) else tail
    return " ".join(f"{head}{text[start:end]}{tail}".split())


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _texts(part: object) -> Iterable[str]:
    match part:
        case TextPart(text):
            yield text
        case ToolCallPart(_, name, input):
            yield f"{name} {' '.join(leaves(input))}"
        case ToolResultPart(_, content):
            yield from (plain(item) for item in content)
        case _:
            pass


def leaves(value: JSON) -> Iterable[str]:
    """The texts and numbers inside a JSON value."""
    if isinstance(value, dict):
        for inner in cast("dict[str, JSON]", value).values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in cast("list[JSON]", value):
            yield from leaves(inner)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in found if item))
