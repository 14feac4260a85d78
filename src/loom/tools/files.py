"""Anthropic's memory tool for any model: files under /memories, one tree per user."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from loom.core.checks import MAX_BLOCK
from loom.core.clock import Clock, SystemClock
from loom.core.filter import Range
from loom.core.record import Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.errors import StoreConflict
from loom.memory._shared import FILE, every
from loom.memory.memory import Memory
from loom.protocols.tool import ToolError
from loom.tools.function import FunctionTool, get_run_context

# The files of one user: paths that cannot leave their root, and texts that are blocks of their memory.

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
        await self._store.put(self._scope, self.block(path, text))

    def block(self, path: str, text: str) -> WorkingBlock:
        """A file, new or changed, as it is to be stored."""
        if len(text) > MAX_BLOCK:
            raise ToolError(f"the file would have {len(text):,} characters; at most {MAX_BLOCK:,} may be: split it")
        if path not in self.files:
            self._check_new(path, len(self.files) + 1)
        return self._block(path, text)

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


Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]
Path = Annotated[str | None, Field(description="A file or folder under /memories; not for rename.")]

_DESCRIPTION = (
    "Keep notes for later conversations with this user as files under /memories. "
    "view (path, view_range) lists a folder or shows a file; create (path, file_text); str_replace (path, old_str, "
    "new_str); insert (path, insert_line, insert_text), 0 being the beginning; delete (path); rename (old_path, "
    "new_path). Look at /memories before you begin."
)
_PLACES = 20
"""The most places of a text that an error names."""
_NEEDS = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}


def memory_files(memory: Memory, *, clock: Clock | None = None) -> FunctionTool[..., Any]:
    """The tool `memory`: Anthropic knows it as `memory_20250818`, other models by its schema.

    Each user has their own files. They are not shown in a turn unless the model looks at them, and are deleted when the
    user is forgotten.
    """
    now = clock or SystemClock()

    async def run(
        command: Command,
        *,
        path: Path = None,
        view_range: Annotated[list[int] | None, Field(description="First and last line; -1 is the end.")] = None,
        file_text: Annotated[str | None, Field(description="All of the text of a new file.")] = None,
        old_str: Annotated[str | None, Field(description="The text to replace; it must stand there once.")] = None,
        new_str: Annotated[str | None, Field(description="What to put in its place; nothing if left out.")] = None,
        insert_line: Annotated[int | None, Field(description="The line to insert behind; 0 is the beginning.")] = None,
        insert_text: Annotated[str | None, Field(description="The text to insert.")] = None,
        old_path: Annotated[str | None, Field(description="What to rename.")] = None,
        new_path: Annotated[str | None, Field(description="Its new path.")] = None,
    ) -> str:
        given = {"path": path, "file_text": file_text, "old_str": old_str, "insert_line": insert_line}
        given |= {"insert_text": insert_text, "old_path": old_path, "new_path": new_path}
        missing = [name for name in _NEEDS[command] if given[name] is None]
        if missing:
            raise ToolError(f"{command} needs {', '.join(missing)}")
        tree = await FileTree.of(memory, get_run_context().user_id, now)
        at = path_of(path or "") if command != "rename" else ROOT
        try:
            match command:
                case "view":
                    return _view(tree, at, view_range)
                case "create":
                    return await _create(tree, at, file_text or "")
                case "str_replace":
                    return await _replace(tree, at, old_str or "", new_str or "")
                case "insert":
                    return await _insert(tree, at, insert_line or 0, insert_text or "")
                case "delete":
                    return await _delete(tree, at)
                case "rename":
                    return await _rename(tree, path_of(old_path or ""), path_of(new_path or ""))
        except StoreConflict as error:
            raise ToolError("the file was changed by another call meanwhile; view it and try again") from error

    native = {"anthropic": {"type": "memory_20250818", "name": "memory"}}
    return FunctionTool(run, name="memory", description=_DESCRIPTION, native=native)


def _view(tree: FileTree, path: str, view_range: list[int] | None) -> str:
    if path not in tree.files:
        listed = tree.listed(path)
        if not listed:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        if view_range is not None:
            raise ToolError("view_range is for files; view the folder without it")
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        return "\n".join([head, *(f"{size_of(size)}\t{name}" for name, size in listed)])
    lines = lines_of(tree.text(path))
    first, last = 1, len(lines)
    if view_range is not None:
        first, last = view_range if len(view_range) == 2 else (0, 0)
        last = len(lines) if last == -1 else last
        if not 1 <= first <= last <= len(lines):
            raise ToolError(f"Invalid `view_range`: {view_range}. It should be [first, last] within [1, {len(lines)}].")
    return f"Here's the content of {path} with line numbers:\n" + numbered(lines, first, last)


async def _create(tree: FileTree, path: str, text: str) -> str:
    if path in tree.files or tree.under(path) or path == ROOT:
        raise ToolError(f"File {path} already exists")
    await tree.write(path, text)
    return f"File created successfully at: {path}"


async def _replace(tree: FileTree, path: str, old: str, new: str) -> str:
    text = tree.text(path)
    if not old or old not in text:
        raise ToolError(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if text.count(old) > 1:
        lines = ", ".join(str(text.count("\n", 0, n) + 1) for n in _places(text, old))
        raise ToolError(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}. "
            f"Please ensure it is unique"
        )
    at = text.count("\n", 0, text.index(old)) + 1
    text = text.replace(old, new)
    await tree.write(path, text)
    lines = lines_of(text)
    around = numbered(lines, max(1, at - 2), min(len(lines), at + new.count("\n") + 2))
    return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{around}"


def _places(text: str, wanted: str) -> list[int]:
    """The first places of a text in another."""
    found: list[int] = []
    place = text.find(wanted)
    while place >= 0 and len(found) < _PLACES:
        found.append(place)
        place = text.find(wanted, place + 1)
    return found


async def _insert(tree: FileTree, path: str, line: int, text: str) -> str:
    before = tree.text(path)
    lines = lines_of(before)
    if not 0 <= line <= len(lines):
        raise ToolError(f"Invalid `insert_line` parameter: {line}. It should be within the range [0, {len(lines)}].")
    lines[line:line] = text.removesuffix("\n").split("\n")
    await tree.write(path, "\n".join(lines) + ("\n" if before.endswith("\n") else ""))
    return f"The file {path} has been edited."


async def _delete(tree: FileTree, path: str) -> str:
    if path == ROOT:
        raise ToolError("Cannot delete the /memories directory itself")
    await tree.move(path, None)
    return f"Successfully deleted {path}"


async def _rename(tree: FileTree, old: str, new: str) -> str:
    if ROOT in (old, new):
        raise ToolError("Cannot rename the /memories directory itself")
    if new in tree.files or tree.under(new):
        raise ToolError(f"The destination {new} already exists")
    await tree.move(old, new)
    return f"Successfully renamed {old} to {new}"
