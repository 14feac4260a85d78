"""Coverage: which facts of the original history a rewrite still holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from loom.core.log import Shown
from loom.core.message import JSON, Message, TextPart, ToolCallPart, ToolResultPart, plain
from loom.protocols.compactor import Rewrite
from loom.session.compaction.summary_message import read_record
from loom.text.words import query_terms

# Finds paths, numbers, names and decisions in a text, without a model.

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


_MOST: Final = 1_000
"""Facts of one kind that are looked for: each one is a search through the whole replacement."""
_SAME: Final = 0.6
"""The share of its words from which on a decision counts as contained: a summary says it in other words."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The facts of one kind: those the replacement contains, and those it does not."""

    contained: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """How much is contained, from 0 to 1; 1 where there was nothing to contain."""
        total = len(self.contained) + len(self.missing)
        return len(self.contained) / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which facts of the replaced messages a rewrite still contains. The others come back with the originals.

    Of each kind the first thousand facts are compared.
    """

    paths: Covered = Covered()
    numbers: Covered = Covered()
    names: Covered = Covered()
    decisions: Covered = Covered()

    @property
    def missing(self) -> int:
        """How many facts are no longer contained."""
        return sum(len(kind.missing) for kind in (self.paths, self.numbers, self.names, self.decisions))


def coverage(shown: Sequence[Shown], rewrite: Rewrite) -> Coverage:
    """The coverage of a rewrite of `shown`."""
    covered = rewrite.covered
    facts = facts_in("\n".join(text_of(item.message) for item in shown if item.id in covered))
    told = "\n".join(text_of(r.message) for r in rewrite.replacements if r.message is not None)
    terms = frozenset(query_terms(told)) if facts.decisions else frozenset[str]()
    numbers = {_plain_number(number) for number in numbers_in(told)}
    return Coverage(
        paths=_split(facts.paths, lambda path: path in told),
        numbers=_split(facts.numbers, lambda number: _plain_number(number) in numbers),
        names=_split(facts.names, lambda name: name in told),
        decisions=_split(facts.decisions, lambda sentence: _is_told(sentence, terms)),
    )


def facts_lines(messages: Sequence[Message], told: str) -> dict[str, tuple[str, ...]]:
    """The paths, addresses and numbers of some messages that a summary leaves out, newest first, as lines to add to it.

    A number comes with the words around it.
    """
    text = "\n".join(text_of(message) for message in messages)
    known = {_plain_number(number) for number in numbers_in(told)}
    places = [place for place in (*urls_in(text)[-_MOST:], *paths_in(text)[-_MOST:]) if place not in told]
    phrases = [phrase for number, phrase in numbers_in(text).items() if _plain_number(number) not in known]
    return {"paths": tuple(reversed(places)), "numbers": tuple(dict.fromkeys(reversed(phrases)))}


def _split(facts: Sequence[str], is_told: Callable[[str], bool]) -> Covered:
    facts = facts[:_MOST]
    told = {fact for fact in facts if is_told(fact)}
    return Covered(tuple(f for f in facts if f in told), tuple(f for f in facts if f not in told))


def _is_told(sentence: str, terms: frozenset[str]) -> bool:
    wanted = query_terms(sentence)
    return sum(term in terms for term in wanted) >= _SAME * len(wanted)


def _plain_number(number: str) -> str:
    return number.replace(",", "").lower()
