"""Anthropic's memory tool, for any model: files under /memories, one tree for each user, in a memory's store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loom.core.clock import Clock, SystemClock
from loom.errors import StoreConflict
from loom.memory.memory import Memory
from loom.tools.file_tree import ROOT, FileTree, lines_of, numbered, path_of, size_of
from loom.tools.function import FunctionTool, ToolError
from loom.tools.run_context import get_run_context

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
    files = _Files(memory, clock or SystemClock())
    native = {"anthropic": {"type": "memory_20250818", "name": "memory"}}
    return FunctionTool(files.run, name="memory", description=_DESCRIPTION, native=native)


class _Files:
    """The commands of the tool, for the user of the run."""

    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock

    async def run(
        self,
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
        tree = await FileTree.of(self._memory, get_run_context().user_id, self._clock)
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
        first, last = _range(view_range, len(lines))
    return f"Here's the content of {path} with line numbers:\n" + numbered(lines, first, last)


def _range(given: list[int], length: int) -> tuple[int, int]:
    first, last = given if len(given) == 2 else (0, 0)
    last = length if last == -1 else last
    if not 1 <= first <= last <= length:
        raise ToolError(f"Invalid `view_range`: {given}. It should be [first, last] within [1, {length}].")
    return first, last


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
