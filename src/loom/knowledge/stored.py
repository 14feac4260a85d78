"""The format of passages in a vector store, so that every knowledge base on that store finds the same documents.

An entry is written once and never changed: its id names the document, its version, the passage and the number of
passages; its payload is the passage. If two bases change a document at the same moment, both versions are complete, and
every reader chooses the same one.
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
    """The version of a document: the greatest one is current."""

    number: int
    fingerprint: str
    total: int


class EntryId(NamedTuple):
    """The parts of an entry id: the key of the document, its version, and the number of the passage."""

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
        """The parts of an id; None if no knowledge base wrote it."""
        parts = id.split("-")
        if len(parts) != _FIELDS or not all(part.isdecimal() for part in (parts[1], *parts[3:])):
            return None
        return cls(parts[0], Version(int(parts[1]), parts[2], int(parts[3])), int(parts[4]))


@dataclass(frozen=True, slots=True)
class Listed:
    """One document in a store: its current version, and the ids of all of its entries."""

    version: Version | None
    ids: tuple[str, ...]

    def of_version(self, key: str) -> tuple[str, ...]:
        """The ids of the entries of the current version."""
        return () if self.version is None else entry_ids(key, self.version)


class Restored(NamedTuple):
    """A document that was read back: its passages, and the memo stored with it."""

    document_id: str
    passages: tuple[Passage, ...]
    memo: str


def document_key(document_id: str) -> str:
    """The hash of a document id: of fixed length, and safe in an entry id."""
    return blake2b(document_id.encode(), digest_size=16).hexdigest()


def entry_ids(key: str, version: Version) -> tuple[str, ...]:
    """The ids of the entries of a document."""
    return tuple(EntryId(key, version, place).id for place in range(version.total))


def listed(ids: Iterable[str]) -> dict[str, Listed]:
    """The documents of a store by key. An incomplete version is being written or removed, so it is not current."""
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
    """A passage as the payload of its entry."""
    origin, trusted = passage.provenance.origin, passage.provenance.trusted
    written: dict[str, Any] = {
        "document": passage.document_id, "id": passage.id, "text": passage.text, "start": passage.start,
        "end": passage.end, "source": passage.source, "origin": origin, "trusted": trusted,
        "attributes": attributes_to_json(passage.attributes), "memo": memo,
    }  # fmt: skip
    return json.dumps(written, ensure_ascii=False)


def restored(payloads: Mapping[str, str], ids: Iterable[str]) -> Restored | None:
    """A document from the payloads of its entries; None if one of them was removed."""
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
