"""Passages as a vector store keeps them, so that every knowledge base over that store finds the same documents.

An entry is written once and never changed: its id says which document, which version of it and which of how many
passages it is, and its payload is the passage. Of a document that two bases changed at the same moment, both versions
are there whole; every reader takes the same one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from loom.core.codec import attributes_from_json, attributes_to_json
from loom.core.hit import Passage
from loom.core.record import Provenance
from loom.errors import LoomError, StoreError

_FIELDS = 5


class Version(NamedTuple):
    """Which version of a document: the greatest is the one that counts."""

    number: int
    fingerprint: str
    total: int


class EntryId(NamedTuple):
    """What the id of an entry says: the document by its key, its version, and which passage this is."""

    key: str
    version: Version
    place: int

    @property
    def id(self) -> str:
        """The id of the entry."""
        number, fingerprint, total = self.version
        return f"{self.key}-{number}-{fingerprint}-{total}-{self.place}"

    @classmethod
    def of(cls, id: str) -> EntryId | None:
        """What an id says; None if no knowledge base wrote it."""
        parts = id.split("-")
        if len(parts) != _FIELDS or not all(part.isdecimal() for part in (parts[1], *parts[3:])):
            return None
        return cls(parts[0], Version(int(parts[1]), parts[2], int(parts[3])), int(parts[4]))


@dataclass(frozen=True, slots=True)
class Listed:
    """One document as it lies in a store: its version that counts, and the ids of all of its entries."""

    version: Version | None
    ids: tuple[str, ...]

    def of_version(self, key: str) -> tuple[str, ...]:
        """The ids of the entries of the version that counts."""
        return () if self.version is None else entry_ids(key, self.version)


class Restored(NamedTuple):
    """A document that was read back: its passages, and what else was noted about it."""

    document_id: str
    passages: tuple[Passage, ...]
    memo: str


def document_key(document_id: str) -> str:
    """A document's id as text of fixed length, in which no character of it is left."""
    return blake2b(document_id.encode(), digest_size=16).hexdigest()


def entry_ids(key: str, version: Version) -> tuple[str, ...]:
    """The ids of the entries of a document."""
    return tuple(EntryId(key, version, place).id for place in range(version.total))


def listed(ids: Iterable[str]) -> dict[str, Listed]:
    """The documents of a store by their keys. A version that is not there whole is still being written, or removed."""
    held: dict[str, dict[Version, set[int]]] = {}
    for place in map(EntryId.of, ids):
        if place is not None:
            held.setdefault(place.key, {}).setdefault(place.version, set()).add(place.place)
    found: dict[str, Listed] = {}
    for key, versions in held.items():
        whole = [version for version, places in versions.items() if len(places) == version.total]
        every = tuple(
            EntryId(key, version, place).id for version, places in versions.items() for place in sorted(places)
        )
        found[key] = Listed(max(whole, default=None), every)
    return found


def payload(passage: Passage, memo: str) -> str:
    """A passage as the text beside its vector."""
    origin, trusted = passage.provenance.origin, passage.provenance.trusted
    written: dict[str, Any] = {
        "document": passage.document_id, "id": passage.id, "text": passage.text, "start": passage.start,
        "end": passage.end, "source": passage.source, "origin": origin, "trusted": trusted,
        "attributes": attributes_to_json(passage.attributes), "memo": memo,
    }  # fmt: skip
    return json.dumps(written, ensure_ascii=False)


def restored(payloads: Mapping[str, str], ids: Iterable[str]) -> Restored | None:
    """A document from the payloads of its entries; None if one of them is not there any more."""
    passages: list[Passage] = []
    memo = ""
    for id in ids:
        if (text := payloads.get(id)) is None:
            return None
        passage, memo = _passage(id, text)
        passages.append(passage)
    return Restored(passages[0].document_id, tuple(passages), memo)


def _passage(id: str, text: str) -> tuple[Passage, str]:
    try:
        given = json.loads(text)
        passage = Passage(
            id=given["id"], document_id=given["document"], text=given["text"], start=given["start"], end=given["end"],
            provenance=Provenance(given["origin"], trusted=given["trusted"] is True), source=given["source"],
            attributes=attributes_from_json(given["attributes"]),
        )  # fmt: skip
        return passage, str(given["memo"])
    except (LoomError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"entry {id} of the knowledge base cannot be read ({error}); delete it from the vector store, and add the "
            "document again"
        ) from error
