"""What a store says of its guarantees, told once: with the first thing that is remembered."""

from __future__ import annotations

from loom.protocols.whole_store import HasNotes, HasParts


def notes_of(store: object) -> tuple[str, ...]:
    """What a store, or the stores that it is made of, want a person to know."""
    if isinstance(store, HasNotes):
        return store.notes
    if isinstance(store, HasParts):
        return tuple(dict.fromkeys(note for part in store.parts.values() for note in notes_of(part)))
    return ()


class StoreNotes:
    """The notes of a store, for somebody who should hear each of them once."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._told = set[str]()

    def new(self) -> tuple[str, ...]:
        """Those that were not told yet; a store knows them once it was used."""
        found = tuple(note for note in notes_of(self._store) if note not in self._told)
        self._told.update(found)
        return found
