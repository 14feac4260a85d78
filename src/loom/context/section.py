"""Section: a named, ordered list of entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from loom.context.entry import Addable, Entry, as_entry
from loom.core.window import STATIC, SectionName
from loom.errors import EntryNotFound, UsageError

_REMOVED_IDS = 10_000
"""How many removed ids are remembered, to tell an id that is gone from one that never was."""


class _SectionOwner(Protocol):
    """The context that a section reports its changes to."""

    watchful: bool
    shares: bool

    def section_changed(self, bit: int) -> None: ...


class Section:
    """A named, ordered list of entries.

    It counts its edits apart from its additions, so that a compile can tell growth from change.
    """

    __slots__ = ("_bit", "_index", "_owner", "_removed", "edits", "entries", "live", "name", "thinks", "uses_tools")

    def __init__(self, name: SectionName, owner: _SectionOwner, bit: int) -> None:
        self.name: SectionName = name
        self.edits = 0
        """How often something other than an addition happened."""
        self.uses_tools = False
        """Whether a tool call or result was ever added."""
        self.thinks = False
        """Whether a model's reasoning was ever added."""
        self._owner = owner
        self._bit = bit
        self.entries: list[Entry] = []
        """The entries, in order; to be changed through the methods only."""
        self._index: dict[str, Entry] = {}
        self.live: list[Entry] = []
        """The entries whose content may change by itself."""
        self._removed: dict[str, Entry | None] = {}

    def add(self, entry: Addable) -> Entry:
        """Add an entry at the end and return it; adding the same entry again changes nothing."""
        made = as_entry(entry)
        if made.has_tools and self.name in STATIC:
            raise UsageError(f"tool calls and results belong into the conversation, not into {self.name}")
        if made.id in self._index:
            if self._index[made.id] is made:
                return made
            raise UsageError(f"another entry of {self.name} already has the id {made.id!r}")
        self.entries.append(made)
        self._adopt(made)
        self._owner.section_changed(self._bit)
        return made

    def splice(self, at: int, entries: Sequence[Entry]) -> None:
        """Insert entries at a position; they were shown there already, so this is not an edit."""
        for entry in entries:
            self._adopt(entry)
        self.entries[at:at] = entries
        self._owner.section_changed(self._bit)

    def get(self, id: str) -> Entry | None:
        """The entry with this id, or None."""
        return self._index.get(id)

    def remove(self, entry: Entry | str) -> Entry:
        """Take an entry out and return it."""
        return self.replace(entry, None)

    def replace(self, entry: Entry | str, by: Entry | None) -> Entry:
        """Put another entry (or nothing) in an entry's place; returns the one taken out."""
        if by is not None and by.id in self._index:
            raise UsageError(f"entry {by.id!r} is in {self.name} already")
        id = entry if isinstance(entry, str) else entry.id
        old = self._index.get(id)
        if old is None or (isinstance(entry, Entry) and entry is not old):
            raise EntryNotFound(f"{self.name} has no entry {id!r}{' any more' if id in self._removed else ''}")
        at = self.entries.index(old)
        self.entries[at : at + 1] = [by] if by else []
        del self._index[id]
        old.homes -= 1
        self.live = [e for e in self.live if e is not old]
        self._removed[id] = by
        if by:
            self._adopt(by)
        self._edited()
        return old

    def clear(self) -> None:
        """Take every entry out."""
        self.drop(tuple(self.entries))

    def drop(self, entries: Sequence[Entry]) -> None:
        """Take these entries out; the ones that are gone already do not matter."""
        gone = {e.id for e in entries}
        if gone:
            for entry in self.entries:
                entry.homes -= entry.id in gone
            self._removed.update(dict.fromkeys(gone & self._index.keys()))
            for id in list(self._removed)[:-_REMOVED_IDS]:
                del self._removed[id]
            self.entries = [e for e in self.entries if e.id not in gone]
            self.live = [e for e in self.live if e.id not in gone]
            self._index = {e.id: e for e in self.entries}
            self._edited()

    def current(self, entry_id: str) -> Entry | None:
        """An entry as it is shown now: itself, its tombstone, or nothing."""
        while entry_id not in self._index:
            replacement = self._removed.get(entry_id)
            if replacement is None:
                return None
            entry_id = replacement.id
        return self._index[entry_id]

    def was_removed(self, id: str) -> bool:
        """Whether an entry with this id was here once and is gone."""
        return id in self._removed

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self.entries))

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, Entry) and self._index.get(entry.id) is entry

    def __repr__(self) -> str:
        return f"<Section {self.name}: {len(self)} entries>"

    def _adopt(self, entry: Entry) -> None:
        self._index[entry.id] = entry
        self._removed.pop(entry.id, None)
        entry.homes += 1
        if entry.homes > 1:
            self._owner.shares = True
        if entry.live:
            self.live.append(entry)
            self._owner.watchful = True
        if entry.has_tools:
            self.uses_tools = True
        if entry.has_thinking:
            self.thinks = True

    def _edited(self) -> None:
        self.edits += 1
        self._owner.section_changed(self._bit)
