"""A corpus in a vector store, shared by all knowledge bases over it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import uuid4

from anyio import Lock

from loom.core.codec import attributes_from_json, attributes_to_json
from loom.core.record import Passage, Provenance
from loom.core.scope import Scope
from loom.errors import LoomError, StoreError
from loom.knowledge.document import Corpus, Draft
from loom.protocols.embedder import Vector
from loom.protocols.vector_store import KeepsPayloads, VectorItem, VectorStore

# The format of passages in a vector store, so that every knowledge base on that store finds the same documents.
#
# An entry is written once and never changed: its id names the document, its version, the passage and the number of
# passages; its payload is the passage. If two bases change a document at the same moment, both versions are complete,
# and every reader chooses the same one.

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


_PAGE = 500
_MOST_WRITERS = 100
"""Change marks of other writers before they are cleaned up: a writer that crashes leaves its mark behind."""


@dataclass(frozen=True, slots=True)
class _StoredDocument:
    """A document that this process holds, with its version in the store."""

    document_id: str
    version: Version

    @property
    def ids(self) -> tuple[str, ...]:
        return entry_ids(document_key(self.document_id), self.version)


class SharedCorpus:
    """The documents of one knowledge base in a vector store that other processes may write to as well.

    Each writer has one mark beside the documents, whose id changes with every write: one call tells whether others
    wrote. On a store without payloads, the corpus is that of this process alone.
    """

    __slots__ = ("_changes", "_dimension", "_entry_of", "_held", "_known", "_lock", "_mark", "_others", "_passage_of",
                 "_store", "changed", "corpus", "memos", "scope")  # fmt: skip

    def __init__(self, store: VectorStore, name: str, dimension: int, corpus: Corpus) -> None:
        self._store = store
        self.scope = Scope(namespace="knowledge", user_id=name)
        self._changes = Scope(namespace="knowledge.changes", user_id=name)
        self._dimension = dimension
        self._held: dict[str, _StoredDocument] = {}  # by the key of the document
        self._known: dict[str, frozenset[str]] = {}  # the ids of all entries of a document, by its key
        self._passage_of: dict[str, str] = {}
        self._entry_of: dict[str, str] = {}
        self._others: frozenset[str] | None = None
        self._mark = ""
        self._lock = Lock()
        self.corpus = corpus
        self.memos: dict[str, str] = {}
        """The memo stored with a document, by document id."""
        self.changed: dict[str, None] = {}
        """Ids of documents that other bases added, changed or removed; the caller clears it."""

    def passage_of(self, entry_id: str) -> str | None:
        """The id of the passage in an entry."""
        return self._passage_of.get(entry_id)

    def entry_of(self, passage_id: str) -> str | None:
        """The id of the entry that holds a passage."""
        return self._entry_of.get(passage_id)

    def is_news(self, entry_id: str) -> bool:
        """Whether an entry was written by another base since the store was last read."""
        place = EntryId.of(entry_id)
        return place is not None and entry_id not in self._known.get(place.key, ())

    # -- reading ------------------------------------------------------------------------------------------

    async def refresh(self, *, anyway: bool = False) -> None:
        """Read what other bases wrote, if they did; with `anyway`, compare every entry."""
        async with self._lock:
            await self._refresh(anyway=anyway)

    async def _refresh(self, *, anyway: bool) -> None:
        if not isinstance(self._store, KeepsPayloads):
            return
        # The marks are read before the entries: a write in between changes a mark again, so the next call sees it.
        others = frozenset(await self._store.ids(self._changes)) - {self._mark}
        if others == self._others and not anyway:
            return
        found = listed(await self._store.ids(self.scope))
        is_all = await self._load(self._store, found)
        gone = [key for key in self._held if (one := found.get(key)) is None or one.version is None]
        if gone:
            await self.corpus.work(0, lambda: self.changed.update(dict.fromkeys(self._release(gone))))
        self._known = {key: frozenset(one.ids) for key, one in found.items()}
        self._others = others if is_all else None

    async def _load(self, store: KeepsPayloads, found: Mapping[str, Listed]) -> bool:
        """Load the versions that are not held yet; False if one of them was removed meanwhile."""
        held = {key: one.version for key, one in self._held.items()}
        news = [key for key, one in found.items() if one.version is not None and held.get(key) != one.version]
        is_all = True
        for keys in _pages(news, found):
            ids = [id for key in keys for id in found[key].of_version(key)]
            payloads: dict[str, str] = {}
            for start in range(0, len(ids), _PAGE):
                payloads |= await store.payloads(self.scope, *ids[start : start + _PAGE])
            read = {key: restored(payloads, found[key].of_version(key)) for key in keys}
            is_all &= all(one is not None for one in read.values())
            complete = [(key, one) for key, one in read.items() if one is not None]
            chars = sum(len(passage.text) for _, one in complete for passage in one.passages)
            await self.corpus.work(chars, lambda complete=complete: self._restore(complete, found))
        return is_all

    def _restore(self, read: Iterable[tuple[str, Restored]], found: Mapping[str, Listed]) -> None:
        for key, one in read:
            version = found[key].version
            assert version is not None
            self.corpus.restore(one.document_id, version.fingerprint, one.passages)
            self._hold(key, _StoredDocument(one.document_id, version), one.memo)
            self.changed[one.document_id] = None

    def _release(self, keys: Sequence[str]) -> list[str]:
        """Drop documents from memory; returns their ids."""
        ids = [self._held[key].document_id for key in keys]
        for key, document_id in zip(keys, ids, strict=True):
            self.corpus.remove(document_id)
            self._let_go(key)
        return ids

    # -- writing ------------------------------------------------------------------------------------------

    async def put(self, drafts: Sequence[Draft], vectors: Sequence[Vector], memos: Mapping[str, str]) -> None:
        """Write documents, all or none, replacing the versions that are known here."""
        async with self._lock:
            news = {document_key(draft.document.id): (draft, self._next(draft)) for draft in drafts}
            memo = {key: memos.get(draft.document.id, "") for key, (draft, _) in news.items()}
            places = [
                (id, payload(passage, memo[key]))
                for key, (draft, held) in news.items()
                for id, passage in zip(held.ids, draft.passages, strict=True)
            ]
            items = [VectorItem(id, vector, payload=text) for (id, text), vector in zip(places, vectors, strict=True)]
            old = [id for key in news for id in self._known.get(key, ())]
            # The store writes all of them or none. If a later step fails, the next refresh repairs it: the new version
            # is complete in the store, and current.
            await self._store.upsert(self.scope, items)
            chars = sum(len(draft.document.text) for draft in drafts)
            await self.corpus.work(chars, lambda: self._add(news, memo))
            await self._announce()
            if gone := [id for id in old if id not in self._passage_of]:
                await self._store.delete(self.scope, *gone)
                self._known |= {key: frozenset(held.ids) for key, (_, held) in news.items()}

    def _next(self, draft: Draft) -> _StoredDocument:
        """The next version of a document: greater than all that are known here."""
        known = (EntryId.of(id) for id in self._known.get(document_key(draft.document.id), ()))
        latest = max((place.version.number for place in known if place is not None), default=0)
        return _StoredDocument(draft.document.id, Version(latest + 1, draft.fingerprint, len(draft.passages)))

    def _add(self, news: Mapping[str, tuple[Draft, _StoredDocument]], memos: Mapping[str, str]) -> None:
        for key, (draft, held) in news.items():
            self.corpus.put(draft)
            self._hold(key, held, memos[key])
            self._known[key] = self._known.get(key, frozenset()) | {*held.ids}

    async def remove(self, document_ids: Iterable[str]) -> int:
        """Remove documents with all their versions; returns how many existed."""
        async with self._lock:
            await self._refresh(anyway=True)
            keys = dict.fromkeys(map(document_key, document_ids))
            known = [key for key in keys if key in self._held]
            if gone := [id for key in keys for id in self._known.get(key, ())]:
                # The store first: if it fails, the documents are still held here, and can be removed again.
                await self._store.delete(self.scope, *gone)
                size = self.corpus.size(self._held[key].document_id for key in known)
                await self.corpus.work(size, lambda: self._release(known))
                await self._announce()
            for key in keys:
                self._known.pop(key, None)
            return len(known)

    def _hold(self, key: str, held: _StoredDocument, memo: str) -> None:
        self._let_go(key)
        self._held[key] = held
        for entry_id, passage_id in zip(held.ids, self.corpus.ids_of(held.document_id), strict=True):
            self._passage_of[entry_id], self._entry_of[passage_id] = passage_id, entry_id
        if memo:
            self.memos[held.document_id] = memo

    def _let_go(self, key: str) -> None:
        if (held := self._held.pop(key, None)) is not None:
            self.memos.pop(held.document_id, None)
            for id in held.ids:
                self._entry_of.pop(self._passage_of.pop(id, ""), None)

    async def _announce(self) -> None:
        """Change the mark of this writer, so that other bases read again."""
        if not isinstance(self._store, KeepsPayloads):
            return
        old, self._mark = self._mark, uuid4().hex
        await self._store.upsert(self._changes, [VectorItem(self._mark, [1.0, *[0.0] * (self._dimension - 1)])])
        stale = [old] if old else []
        if self._others is not None and len(self._others) >= _MOST_WRITERS:
            # Writers that are still running leave a new mark with their next write.
            stale += self._others
            self._others = frozenset()
        if stale:
            await self._store.delete(self._changes, *stale)


def _pages(keys: Sequence[str], found: Mapping[str, Listed]) -> Iterable[list[str]]:
    """Keys of documents that are read together: about a page of entries."""
    page, size = list[str](), 0
    for key in keys:
        page.append(key)
        size += len(found[key].of_version(key))
        if size >= _PAGE:
            yield page
            page, size = [], 0
    if page:
        yield page
