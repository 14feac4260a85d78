"""Notes of a store about its guarantees."""

from __future__ import annotations

from loom.protocols.whole_store import HasNotes, HasParts


def notes_of(store: object) -> tuple[str, ...]:
    """The notes of a store, or of the stores that it is made of."""
    if isinstance(store, HasNotes):
        return store.notes
    if isinstance(store, HasParts):
        return tuple(dict.fromkeys(note for part in store.parts.values() for note in notes_of(part)))
    return ()
