"""The files of one user: paths that cannot leave their root, and texts that are blocks of their memory."""

from __future__ import annotations

import unicodedata
from typing import Final

from loom.core.clock import Clock
from loom.core.filter import Range
from loom.core.limits import MAX_BLOCK
from loom.core.record import Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.memory.listing import FILE, every
from loom.memory.memory import Memory
from loom.tools.function import ToolError

ROOT: Final = "/memories"
MAX_FILES: Final = 500
"""Files of one user."""
_MAX_PATH: Final = 240
"""Characters of a path: with any letters it fits the id of a record."""
_DEPTH: Final = 2
"""Levels that a folder is listed to."""
_UNIT: Final = 1024
_AFTER: Final = chr(ord(FILE[-1]) + 1)


def path_of(path: str) -> str:
    """A path as it is stored; refuses any that does not plainly lie under the root.

    Nothing is decoded, folded or resolved: a path that another program could read as a different one is refused.
    """
    if len(path) > _MAX_PATH + 1:
        raise ToolError(f"Path is too long: {len(path):,} characters; at most {_MAX_PATH} are allowed")
    plain = path.removesuffix("/")
    if plain != ROOT and not plain.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    names = plain.split("/")[2:]
    if any(name in ("", ".", "..") or name != name.strip() for name in names):
        raise ToolError(f"Path {path} would escape {ROOT} directory, or names nothing; use plain names between slashes")
    if not unicodedata.is_normalized("NFKC", plain) or not plain.isprintable() or set(plain) & set('\\%:*?"<>|~'):
        raise ToolError(f"Path {path} holds characters that are not allowed; use letters, digits, '-', '_' and '.'")
    if len(plain) > _MAX_PATH or len(plain.encode()) > 2 * _MAX_PATH:
        raise ToolError(f"Path is too long: {len(plain)} characters; at most {_MAX_PATH} are allowed")
    return plain


def lines_of(text: str) -> list[str]:
    """The lines of a text; the end of the last one begins no other."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def numbered(lines: list[str], first: int, last: int) -> str:
    """Lines from `first` to `last`, each with its number."""
    return "\n".join(f"{n:>6}\t{line}" for n, line in enumerate(lines[first - 1 : last], first))


def size_of(characters: int) -> str:
    """A size as people read it."""
    return f"{characters}B" if characters < _UNIT else f"{characters / _UNIT:.1f}K"


class FileTree:
    """The files of a user as they are now. Writing after a concurrent change raises StoreConflict."""

    def __init__(self, memory: Memory, scope: Scope, clock: Clock, files: dict[str, WorkingBlock]) -> None:
        self._store = memory.store
        self._scope = scope
        self._clock = clock
        self.files = files

    @classmethod
    async def of(cls, memory: Memory, user_id: str, clock: Clock) -> FileTree:
        """Read the files of a user."""
        scope = Scope(memory.namespace, user_id)
        low = f"block:{FILE}"
        found = every(memory.store, scope, Range("id", low=low, high=low[:-1] + _AFTER))
        files = {r.name.removeprefix(FILE): r async for r in found if isinstance(r, WorkingBlock)}
        return cls(memory, scope, clock, files)

    def text(self, path: str) -> str:
        """The text of a file."""
        if path in self.files:
            return self.files[path].text
        if self.under(path) or path == ROOT:
            raise ToolError(f"The path {path} is not a file.")
        raise ToolError(f"The path {path} does not exist. Please provide a valid path.")

    def under(self, path: str) -> list[str]:
        """The files in a folder, however deep."""
        return [name for name in self.files if name.startswith(f"{path}/")]

    def listed(self, path: str) -> list[tuple[str, int]]:
        """A folder and what is in it, two levels deep, with sizes; hidden names are left out. Empty: no such folder."""
        inside = self.under(path)
        if not inside and path != ROOT:
            return []
        sizes = {path: sum(len(self.files[name].text) for name in inside)}
        for name in sorted(inside):
            parts = name.removeprefix(f"{path}/").split("/")
            if any(part.startswith(".") for part in parts):
                continue
            for depth in range(1, min(len(parts), _DEPTH) + 1):
                shown = "/".join([path, *parts[:depth]]) + ("/" if depth < len(parts) else "")
                sizes[shown] = sizes.get(shown, 0) + len(self.files[name].text)
        return list(sizes.items())

    async def write(self, path: str, text: str) -> None:
        """Write a file, new or changed."""
        if len(text) > MAX_BLOCK:
            raise ToolError(f"the file would have {len(text):,} characters; at most {MAX_BLOCK:,} may be: split it")
        if path not in self.files:
            self._check_new(path, len(self.files) + 1)
        await self._store.put(self._scope, self._block(path, text))

    async def move(self, old: str, new: str | None) -> None:
        """Move a file or a folder, all of it or nothing; to None it is deleted."""
        names = [old] if old in self.files else self.under(old)
        if not names:
            raise ToolError(f"The path {old} does not exist")
        if new is not None and f"{new}/".startswith(f"{old}/"):
            raise ToolError(f"{new} lies in {old}; a folder cannot move into itself")
        gone = [self.files.pop(name) for name in names]
        moved: list[WorkingBlock] = []
        for name, block in zip(names, gone, strict=True) if new is not None else ():
            target = path_of(f"{new}{name.removeprefix(old)}")
            self._check_new(target, 0)
            moved.append(self._block(target, block.text))
        await self._store.write(self._scope, put=moved, delete=[block.id for block in gone])

    def _check_new(self, path: str, amount: int) -> None:
        if amount > MAX_FILES:
            raise ToolError(f"there are {MAX_FILES} files already; delete some, or put several notes into one")
        for other in self.files:
            if other.casefold() == path.casefold():
                raise ToolError(f"File {other} differs from {path} only in capital letters; use another name")
            if path.startswith(f"{other}/"):
                raise ToolError(f"The path {other} is a file, so nothing can lie in it")

    def _block(self, path: str, text: str) -> WorkingBlock:
        old = self.files.get(path)
        return WorkingBlock(
            name=f"{FILE}{path}",
            text=text,
            updated_at=self._clock.now(),
            provenance=Provenance("assistant"),
            version=old.version + 1 if old else 1,
        )
