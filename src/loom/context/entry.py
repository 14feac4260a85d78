"""Entries, which a context is made of, and the sections that hold them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from loom.core.checks import MAX_ENTRY, check_length
from loom.core.clock import SHARED
from loom.core.message import (
    ROLES,
    DocumentPart,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    canonical,
    from_mapping,
    plain,
)
from loom.core.window import STATIC, Notice, SectionName, View, default_role
from loom.errors import EntryNotFound, UsageError


class Entry(ABC):
    """One thing a context shows.

    An entry never changes after it was made; what can change (a file) is read anew by `show`.
    """

    __slots__ = ("created_at", "homes", "id", "name", "repeat", "role")

    live = False
    """True where `show` may answer differently the next time."""
    has_tools = False
    """True for a message with a tool call or a tool result."""
    has_thinking = False
    """True for a message with a model's own reasoning."""

    def __init__(
        self,
        *,
        name: str | None = None,
        role: Role | None = None,
        repeat: bool = False,
        id: str | None = None,
        created_at: float | None = None,
    ) -> None:
        """Make an entry.

        Args:
            name: a heading, shown above the body.
            role: who says it; None takes the section's own role.
            repeat: show it even where the same content is in the window already, as a reminder.
            id: an id kept from before; a fresh one is drawn otherwise.
            created_at: seconds since the epoch; now, if not given.
        """
        if role is not None and role not in ROLES:
            raise UsageError(f"role={role!r} is not a role; use one of {', '.join(ROLES)}, or None")
        if id is None:
            id = SHARED.next_id()
        else:
            SHARED.reserve(id)
        self.id = id
        self.name = name
        self.role: Role | None = role
        self.repeat = repeat
        self.homes = 0  # how many sections hold it; more than one is rare and compiled with more care
        self.created_at = time.time() if created_at is None else created_at

    @abstractmethod
    def show(self) -> View:
        """What a window shows of this entry now."""

    @abstractmethod
    def redacted(self, tombstone: str) -> Entry:
        """A new entry that says `tombstone` in this one's place and gives nothing of it away."""

    def notices(self, *, static: bool) -> tuple[Notice, ...]:  # noqa: ARG002
        """What a person should know about the last `show`; `static` where it stands in the system prompt."""
        return ()


class StaticEntry(Entry):
    """An entry that is its own view: its text and parts never change."""

    __slots__ = ("text",)

    text: str
    """The plain-text form."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """The parts a provider gets."""

    def show(self) -> View:
        """Itself."""
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.text[:60]!r}>"


class StringEntry(StaticEntry):
    """A piece of text."""

    __slots__ = ()

    def __init__(
        self,
        text: str,
        name: str | None = None,
        role: Role | None = None,
        *,
        repeat: bool = False,
        id: str | None = None,
        created_at: float | None = None,
    ) -> None:
        """Make an entry of `text`; see Entry for the rest."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"StringEntry takes text, not {type(text).__name__}")
        if not text or text.isspace():
            raise UsageError("the text of an entry is empty; providers refuse empty parts, so leave the entry out")
        check_length(text, "the text of an entry", MAX_ENTRY, "no model reads more: add what it is to see")
        check_encodable(text)
        super().__init__(name=name, role=role, repeat=repeat, id=id, created_at=created_at)
        self.text = f"# {name}\n{text}" if name else text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The text as one part."""
        return (TextPart(self.text),)

    def redacted(self, tombstone: str) -> StringEntry:
        """The tombstone, with the same role and no name."""
        return StringEntry(tombstone, role=self.role, repeat=True)


class _MediaEntry(StaticEntry):
    """A picture or a document, with a caption the model can refer to.

    It travels in a user message: system takes text only, and a model sends neither.
    """

    __slots__ = ("_media",)

    def __init__(self, media: ImagePart | DocumentPart, role: Role | None) -> None:
        if role == "assistant":
            raise UsageError("role='assistant' does not go with a picture or a document; leave the role out")
        super().__init__(name=media.name, role="user")
        self.text = plain(media)
        self._media = media

    @property
    def data(self) -> str:
        """The content as base64 text."""
        return self._media.data

    @property
    def media_type(self) -> str:
        """What kind of content it is, such as `image/png`."""
        return self._media.media_type

    @property
    def parts(self) -> tuple[Part, ...]:
        """The picture or document, then its caption."""
        return (self._media, TextPart(self.text))

    def redacted(self, tombstone: str) -> StringEntry:
        """The tombstone as text."""
        return StringEntry(tombstone, role=self.role, repeat=True)


class ImageEntry(_MediaEntry):
    """A picture."""

    __slots__ = ()

    def __init__(self, data: str, media_type: str, name: str | None = None, role: Role | None = None) -> None:
        """Make an entry of base64 `data`, such as `image/png`; see Entry for the rest."""
        super().__init__(ImagePart(data, media_type, name), role)


class DocumentEntry(_MediaEntry):
    """A document such as a PDF."""

    __slots__ = ()

    def __init__(
        self, data: str, media_type: str = "application/pdf", name: str | None = None, role: Role | None = None
    ) -> None:
        """Make an entry of base64 `data`; see Entry for the rest."""
        super().__init__(DocumentPart(data, media_type, name), role)


_PAIRED = (ToolCallPart, ToolResultPart)


class MessageEntry(StaticEntry):
    """One message of a conversation, tool calls and results included."""

    __slots__ = ("_parts", "has_thinking", "has_tools", "message")

    def __init__(self, message: Message, *, id: str | None = None) -> None:
        """Make an entry of a message; parts with nothing in them are left out."""
        parts = message.parts
        if any(isinstance(part, TextPart) and not part.text.strip() for part in parts):
            parts = tuple(p for p in parts if not (isinstance(p, TextPart) and not p.text.strip()))
        if not parts:
            raise UsageError(f"a message of the {message.role} has only empty text; providers refuse empty parts")
        texts = [part.text if isinstance(part, TextPart) else plain(part) for part in parts]
        for text in texts:
            check_encodable(text)
        super().__init__(role=message.role, id=id)
        self.message = message
        self.has_tools = any(isinstance(part, _PAIRED) for part in parts)
        self.has_thinking = any(isinstance(part, ThinkingPart) for part in parts)
        self._parts: tuple[Part, ...] = parts
        self.text = f"{message.role}: " + "\n".join(filter(None, texts))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message that say something."""
        return self._parts

    def redacted(self, tombstone: str) -> Entry:
        """The same message with every body replaced; tool calls and results stay paired."""
        parts: list[Part] = []
        for part in self.parts:
            match part:
                case ToolCallPart(id, name, _):
                    parts.append(ToolCallPart(id, name, {}))
                case ToolResultPart(call_id, _, is_error):
                    parts.append(ToolResultPart(call_id, (TextPart(tombstone),), is_error))
                case ThinkingPart():
                    pass
                case _ if TextPart(tombstone) not in parts:
                    parts.append(TextPart(tombstone))
                case _:
                    pass
        return MessageEntry(Message(self.message.role, tuple(parts) or (TextPart(tombstone),)))


def check_encodable(text: str) -> None:
    """Refuse text that cannot be sent: half of a surrogate pair has no UTF-8 form."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text holds half of a surrogate pair at character {error.start}; decode it with errors='replace'"
            ) from error


def identity(view: View, section: SectionName) -> bytes:
    """SHA-256 of what an entry shows, with its name and any role other than the section's own: the key of dedup."""
    role = "" if view.role in (None, default_role(section)) else view.role
    body = f"text\0{view.text}" if isinstance(view, StringEntry) else "\1".join(map(canonical, view.parts))
    return sha256(f"{role}\1{view.name or ''}\1{body}".encode("utf-8", "surrogatepass")).digest()


Addable: TypeAlias = Entry | Message | Mapping[str, Any] | Path | str
"""What a section takes: an entry, a message, also as a provider writes it, text, or the path of a file."""


def as_entry(value: Addable) -> Entry:
    """An entry of whatever a caller may hand over."""
    if isinstance(value, Entry):
        return value
    if isinstance(value, Mapping):
        return MessageEntry(from_mapping(value))
    if isinstance(value, Message):
        return MessageEntry(value)
    if isinstance(value, str):
        return StringEntry(value)
    if isinstance(value, Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        from loom.context.file_entry import FileEntry  # noqa: PLC0415  (a file is an entry, not the reverse)

        return FileEntry(value)
    raise UsageError(f"a section takes entries, messages, mappings, text and paths, not {type(value).__name__}")


# Section: a named, ordered list of entries.

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

    def replace_last(self, by: Entry) -> None:
        """Put another entry in the last one's place; no window that went out showed it, so this is not an edit."""
        old = self.entries.pop()
        del self._index[old.id]
        old.homes -= 1
        self._removed[old.id] = None
        self.add(by)

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
