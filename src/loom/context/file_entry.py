"""FileEntry: a file shown as it is now, with an optional role in its frontmatter."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast

from loom.context.entry import Entry, StringEntry
from loom.core.checks import MAX_TEXT
from loom.core.message import ROLES, Part, Role, TextPart
from loom.core.window import Notice
from loom.errors import UsageError

MAX_BYTES = MAX_TEXT
"""The largest file shown unless the caller says otherwise: about a quarter of a million tokens."""

_RACY_SECONDS = 2.0
"""A file written this shortly before it was read may change again within the clock tick of its file system."""

_FRONTMATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)

_MAX_FRONTMATTER = 8_192
_SHOWN = 40
"""Characters of a bad value that a notice repeats."""

_RANK: dict[Role, int] = {"assistant": 0, "user": 1, "system": 2}


@dataclass(frozen=True, slots=True)
class FileView:
    """A file's content at the time it was read."""

    id: str
    name: str | None
    role: Role | None
    text: str
    notices: tuple[Notice, ...] = ()
    asks_system: bool = False
    """It asks for the system role, and the caller set no limit; the section's own role decides."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The text as one part."""
        return (TextPart(self.text),)


class FileEntry(Entry):
    """A text file, read again whenever it changed.

    The role is the `role` argument if given, else the `role` of a YAML frontmatter, else the section's own.
    A file cannot give itself a role above `max_role`, whatever its frontmatter says.

    A file that is missing, unreadable, binary, not UTF-8 or too large shows a one-line notice in its place
    and leaves a Notice in the window: a running agent keeps running, and the problem is visible.
    """

    __slots__ = ("_seen", "_view", "max_bytes", "max_role", "path", "pin")

    live = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        role: Role | None = None,
        *,
        max_role: Role | None = None,
        max_bytes: int = MAX_BYTES,
        pin: bool = False,
        repeat: bool = False,
        id: str | None = None,
    ) -> None:
        """Make an entry of a file; it need not exist yet.

        Args:
            path: where the file is; a relative path is taken from the current directory, now.
            name: the heading; the file's own name if not given.
            role: who says it, whatever the file says.
            max_role: the highest role its frontmatter may ask for (assistant < user < system); that of the
                section it is added to, if not given.
            max_bytes: a larger file is not shown.
            pin: once sent, keep the sent text in place and append later edits as updates.
            repeat: show it even where the same content is in the window already.
            id: an id kept from before.
        """
        if max_role is not None and max_role not in ROLES:
            raise UsageError(f"max_role={max_role!r} is not a role; use one of {', '.join(ROLES)}")
        if not isinstance(max_bytes, int) or max_bytes <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"max_bytes={max_bytes!r} shows nothing; give a positive number of bytes")
        self.path = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would follow links)
        super().__init__(name=name or self.path.name, role=role, repeat=repeat, id=id)
        self.max_role: Role | None = max_role
        self.max_bytes = max_bytes
        self.pin = pin
        self._seen: tuple[int, ...] | None = None
        self._view: FileView | None = None

    def show(self) -> FileView:
        """What the file says now; the same object as before if it did not change."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return self._replace(None, self._absent("missing", "it is not there"))
        except OSError as error:
            return self._replace(None, self._absent("unreadable", str(error.strerror or error)))
        seen = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_dev)
        if self._view is not None and seen == self._seen:
            return self._view
        if not S_ISREG(stat.st_mode):
            return self._replace(None, self._absent("unreadable", "it is not a regular file"))
        view = self._read()
        settled = time.time() - stat.st_mtime > _RACY_SECONDS
        return self._replace(seen if settled else None, view)

    def redacted(self, tombstone: str) -> StringEntry:
        """The tombstone, with the role the file had and without its name."""
        return StringEntry(tombstone, role=self._view.role if self._view else self.role, repeat=True)

    def notices(self, *, static: bool) -> tuple[Notice, ...]:
        """What went wrong in the last read, and a role it asked for that it cannot have where it stands."""
        if self._view is None:
            return ()
        if self._view.asks_system and not static:
            message = f"{self.name}: its frontmatter asks for the role 'system'; among the messages it is shown as user"
            return (*self._view.notices, Notice("role", message, self.id))
        return self._view.notices

    def __repr__(self) -> str:
        return f"<FileEntry {self.id}: {self.path.name}>"

    def _replace(self, seen: tuple[int, ...] | None, view: FileView) -> FileView:
        self._seen = seen
        if self._view is None or self._view != view:
            self._view = view
        return self._view

    def _read(self) -> FileView:
        try:
            with open(self.path, "rb", opener=_open_without_waiting) as file:
                stat = os.fstat(file.fileno())
                raw = file.read(self.max_bytes + 1) if S_ISREG(stat.st_mode) else b""
        except OSError as error:
            return self._absent("unreadable", str(error.strerror or error))
        if len(raw) > self.max_bytes:
            return self._absent(
                "too large", f"{stat.st_size:,} bytes are over the limit of {self.max_bytes:,}; raise max_bytes"
            )
        if b"\0" in raw:
            return self._absent("binary", "it holds NUL bytes, so it is not text")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return self._absent("not UTF-8", f"byte 0x{raw[error.start]:02x} at offset {error.start}")
        return self._parsed(text.replace("\r\n", "\n"))

    def _parsed(self, text: str) -> FileView:
        metadata, body, problem = split_frontmatter(text)
        notices = [Notice("frontmatter", f"{self.name}: {problem}", self.id)] if problem else []
        role, objection = self._role_from(metadata)
        if objection:
            notices.append(Notice("role", f"{self.name}: {objection}", self.id))
        if not body.strip():
            return self._absent("empty", "it holds no text")
        asks = role == "system" and self.role is None and self.max_role is None
        return FileView(
            self.id, self.name, None if asks else role, f"# {self.name}\n{body}", tuple(notices), asks_system=asks
        )

    def _role_from(self, metadata: dict[str, Any]) -> tuple[Role | None, str | None]:
        """The role to use, and what is wrong with the one the file asked for."""
        if self.role is not None:
            return self.role, None
        highest = self.max_role or "system"
        fallback: Role | None = None if highest == "system" else highest
        wanted = metadata.get("role")
        if wanted is None:
            return fallback, None
        role: Role | None = next((known for known in ROLES if known == wanted), None)
        if role is None:
            named = repr(wanted[:_SHOWN]) if isinstance(wanted, str) else "that is not text"
            return fallback, f"its frontmatter asks for a role {named}; the roles are {', '.join(ROLES)}"
        if _RANK[role] > _RANK[highest]:
            return fallback, f"its frontmatter asks for the role {role!r}; at most {highest!r} is allowed here"
        return role, None

    def _absent(self, what: str, why: str) -> FileView:
        notice = Notice("file", f"{self.path.name} is {what}: {why}", self.id)
        role = self.role or (None if self.max_role == "system" else self.max_role)
        return FileView(self.id, self.name, role, f"[File {what}: {self.name}]", (notice,))


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; one that was swapped for a pipe after it was looked at must not block."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def split_frontmatter(text: str) -> tuple[dict[str, Any], str, str | None]:
    """Metadata, body, and what is wrong with the metadata.

    Only a YAML mapping between two lines of three dashes at the very top is frontmatter; anything else that
    starts with a dashed line is text, and stays whole.
    """
    found = _FRONTMATTER.match(text)
    if not found:
        return {}, text, None
    if len(found[1]) > _MAX_FRONTMATTER:
        return {}, text, f"its frontmatter is longer than {_MAX_FRONTMATTER:,} characters; it is shown as text"
    from ruamel.yaml import YAML, YAMLError  # noqa: PLC0415  (only a file that looks like it needs it pays for it)

    loader: Any = YAML(typ="base", pure=True)  # makes texts, lists and mappings and nothing else: no tags, no merging
    loader.allow_duplicate_keys = True  # the last one counts
    try:
        metadata: Any = loader.load(found[1])
    except (YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        return {}, text, f"its frontmatter is not valid YAML ({reason}); it is shown as text"
    if not isinstance(metadata, dict):
        return {}, text, None
    return cast("dict[str, Any]", metadata), text[found.end() :].lstrip("\n"), None
