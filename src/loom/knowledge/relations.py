"""Extracts entities and relations from plain text by rules: the same text always gives the same relations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from typing import NamedTuple

from loom.core.words import STOP_WORDS, terms
from loom.knowledge.chunk import sentences

_MAX_BETWEEN = 6
_MAX_PHRASE = 6
_WORD = re.compile(r"[^\W_][\w'\u2019.-]*(?<![.'\u2019-])|[,;:()\u2014]")
_ARTICLES = frozenset("a an the this that these those our my your its their his her".split())  # noqa: SIM905
_CONJUNCTIONS = frozenset({"and", "or", "nor", "but", "as", "then"})
_BREAKS = frozenset({",", ";", ":", "(", ")", "\u2014"})
_NAME_JOINTS = frozenset({"of", "de", "van", "von", "der", "da", "la"})
_VERBS = frozenset(
    """
    is are was were has have had uses use used using needs need needed requires require required contains contain
    contained includes include included supports support supported provides provide provided owns own owned runs run
    ran calls call called stores store stored sends send sent reads read writes wrote manages manage managed leads lead
    led likes like liked prefers prefer preferred speaks speak spoke studies study studied lives lived works worked
    joined founded built builds created creates replaced replaces depends depended belongs belonged connects reports
    moved married knows met bought sells sold makes made holds held keeps kept means equals
    """.split()  # noqa: SIM905
)
_PARTICLES = frozenset({"in", "at", "on", "to", "with", "for", "by", "from", "of", "into", "as"})


class Relation(NamedTuple):
    """`subject` and `object` are entity keys, see entity_key()."""

    subject: str
    predicate: str
    object: str


class RelationMatch(NamedTuple):
    """The relations of one text, and the keys of the names in it."""

    relations: tuple[Relation, ...]
    names: tuple[str, ...]


def entity_key(name: str) -> str:
    """The key of an entity: its stems without a leading article; empty if only stop words are left."""
    words = list(dropwhile(lambda word: word.lower() in _ARTICLES, name.split()))
    if all(word.lower() in STOP_WORDS for word in words):
        return ""
    return " ".join(terms(" ".join(words)))


def relations_in(text: str) -> RelationMatch:
    """The relations of each sentence: between names, and those of the form "X uses Y"."""
    relations: dict[Relation, None] = {}
    names: dict[str, None] = {}
    for start, end in sentences(text):
        words = _WORD.findall(text[start:end])
        spans = list(_names(words))
        names.update((key, None) for first, last in spans if (key := entity_key(" ".join(words[first:last]))))
        for relation in (*_between_names(words, spans), *_by_verb(words)):
            relations[relation] = None
    return RelationMatch(tuple(relations), tuple(names))


def relation(subject: str, predicate: str, object: str) -> Relation | None:
    """A relation between two different entities, or None if they are not two."""
    one, other = entity_key(subject), entity_key(object)
    if not one or not other or one == other:
        return None
    return Relation(one, predicate.lower(), other)


def _names(words: list[str]) -> Iterator[tuple[int, int]]:
    """The start and end of each capitalised name, in words."""
    at = 0
    while at < len(words):
        if not _is_name(words[at]):
            at += 1
            continue
        end = at + 1
        while end < len(words):
            if _is_name(words[end]):
                end += 1
            elif words[end] in _NAME_JOINTS and end + 1 < len(words) and _is_name(words[end + 1]):
                end += 2
            else:
                break
        yield at, end
        at = end


def _is_name(word: str) -> bool:
    # A sentence begins with a capital letter too: "The" and "We" are stop words, other first words count as names.
    return word[0].isupper() and word.lower() not in STOP_WORDS


def _between_names(words: list[str], spans: list[tuple[int, int]]) -> Iterator[Relation]:
    for (first, after), (second, end) in pairwise(spans):
        between = words[after:second]
        if not 1 <= len(between) <= _MAX_BETWEEN or not _BREAKS.isdisjoint(between):
            continue
        if between[0].lower() in _CONJUNCTIONS:
            continue
        subject, other = " ".join(words[first:after]), " ".join(words[second:end])
        if (found := relation(subject, " ".join(between), other)) is not None:
            yield found


def _by_verb(words: list[str]) -> Iterator[Relation]:
    """The first verb of a sentence, with the phrase before it and the phrase behind it."""
    place = next((at for at, word in enumerate(words) if at and word.lower() in _VERBS), None)
    if place is None or place > _MAX_PHRASE or not _BREAKS.isdisjoint(words[:place]):
        return
    start = place + 1
    if start < len(words) and words[start].lower() in _PARTICLES:
        start += 1
    end = start
    while end < len(words) and end - start < _MAX_PHRASE and not _ends_phrase(words[end]):
        end += 1
    found = relation(" ".join(words[:place]), " ".join(words[place:start]), " ".join(words[start:end]))
    if found is not None:
        yield found


def _ends_phrase(word: str) -> bool:
    lower = word.lower()
    return word in _BREAKS or lower in _PARTICLES or lower in _CONJUNCTIONS or lower in _VERBS
