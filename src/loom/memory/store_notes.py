"""Notes of a store about its guarantees, reported once, with the first write."""

from __future__ import annotations

from loom.protocols.whole_store import HasNotes, HasParts


def notes_of(store: object) -> tuple[str, ...]:
    """The notes of a store, or of the stores that it is made of."""
    if isinstance(store, HasNotes):
        return store.notes
    if isinstance(store, HasParts):
        return tuple(dict.fromkeys(note for part in store.parts.values() for note in notes_of(part)))
    return ()


class StoreNotes:
    """Reports each note of a store once."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._reported = set[str]()

    def new(self) -> tuple[str, ...]:
        """The notes that were not reported yet; a store may know them only after its first use."""
        found = tuple(note for note in notes_of(self._store) if note not in self._reported)
        self._reported.update(found)
        return found
