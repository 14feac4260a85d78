"""The entity graph of a corpus: the relations that its documents state, and distances between entities."""

from __future__ import annotations

from collections.abc import Iterable

from loom.core.words import STOP_WORDS, stem, tokens
from loom.knowledge.relations import Relation, RelationMatch

_MAX_NAME = 6


class Network:
    """Entities and relations, counted by the documents that state them."""

    __slots__ = ("_aliases", "_documents", "_neighbours", "_nodes")

    def __init__(self) -> None:
        self._documents: dict[str, RelationMatch] = {}
        self._nodes: dict[str, int] = {}
        self._neighbours: dict[str, dict[str, int]] = {}
        self._aliases: dict[str, dict[str, int]] = {}

    def put(self, document_id: str, found: RelationMatch) -> None:
        """Set the relations of a document, replacing its former ones."""
        self.remove(document_id)
        self._documents[document_id] = found
        self._count(found, 1)

    def remove(self, document_id: str) -> None:
        """Remove the relations of a document, except those that others state too."""
        if (found := self._documents.pop(document_id, None)) is not None:
            self._count(found, -1)

    def relations(self) -> tuple[Relation, ...]:
        """All relations, each once, in order."""
        return tuple(sorted({relation for found in self._documents.values() for relation in found.relations}))

    def named_in(self, query: str) -> tuple[str, ...]:
        """The entities that a query names, by the longest matching name or by one word of a longer name."""
        words = tokens(query)
        stems = [stem(word) for word in words]
        named: dict[str, None] = {}
        at = 0
        while at < len(stems):
            length = self._longest_name(stems, at)
            if length:
                named[" ".join(stems[at : at + length])] = None
            if length <= 1 and words[at] not in STOP_WORDS:
                named.update(dict.fromkeys(sorted(self._aliases.get(stems[at], ()))))
            at += length or 1
        return tuple(named)

    def reach(self, start: str, max_hops: int) -> dict[str, int]:
        """The entities at most `max_hops` relations from `start`, with their distance."""
        distance = {start: 0}
        edge = [start]
        for hop in range(1, max_hops + 1):
            found = {other for entity in edge for other in self._neighbours.get(entity, ()) if other not in distance}
            distance.update(dict.fromkeys(found, hop))
            edge = list(found)
            if not edge:
                break
        return distance

    def _longest_name(self, stems: list[str], at: int) -> int:
        for length in range(min(_MAX_NAME, len(stems) - at), 0, -1):
            if " ".join(stems[at : at + length]) in self._nodes:
                return length
        return 0

    def _count(self, found: RelationMatch, by: int) -> None:
        for name in found.names:
            _add(self._nodes, name, by)
            parts = name.split()
            for part in parts if len(parts) > 1 else ():
                _add_nested(self._aliases, part, name, by)
        for subject, _, object in found.relations:
            for one, other in ((subject, object), (object, subject)):
                _add(self._nodes, one, by)
                _add_nested(self._neighbours, one, other, by)


def passages_near(distances: Iterable[dict[str, float]]) -> dict[str, float]:
    """The nearness of each passage: the mean over the named entities."""
    total: dict[str, float] = {}
    count = 0
    for near in distances:
        count += 1
        for passage_id, nearness in near.items():
            total[passage_id] = total.get(passage_id, 0.0) + nearness
    return {passage_id: nearness / count for passage_id, nearness in total.items()}


def _add(counts: dict[str, int], key: str, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
    if counts[key] == 0:
        del counts[key]


def _add_nested(counts: dict[str, dict[str, int]], key: str, inner: str, by: int) -> None:
    nested = counts.setdefault(key, {})
    _add(nested, inner, by)
    if not nested:
        del counts[key]
