"""Coverage: which facts of the replaced messages a rewrite still contains, and a list of those that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from loom.core.checkpoint import Shown
from loom.core.message import Message
from loom.core.words import query_terms
from loom.protocols.compactor import Rewrite
from loom.session.compaction.facts import facts_in, numbers_in, paths_in, text_of, urls_in

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
