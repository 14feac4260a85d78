"""Loaders: documents from text files, Markdown by headings, and folders."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

from anyio import to_thread

from loom.core.checks import MAX_DOCUMENT, MAX_FILES, MAX_FOLDER, MAX_ID_BYTES, MAX_NAME, MAX_VALUE
from loom.core.record import Provenance
from loom.errors import UsageError
from loom.protocols.knowledge_base import Document

# Splits Markdown at its headings: each section with the headings above it.

_DEEPEST = 6
_FENCES = ("```", "~~~")
_FRONT = "---"
_INDENTED = 4


class MarkdownSection(NamedTuple):
    """A section: its headings, outermost first, its own included, and its text with its own heading."""

    headings: tuple[str, ...]
    text: str


def parts_of(text: str) -> list[MarkdownSection]:
    """The non-empty sections of a Markdown text, in order; text before the first heading has no headings.

    Lines in fenced code are not headings. A heading that contains only sections appears in their headings.
    """
    found: list[MarkdownSection] = []
    headings: list[str] = []
    lines: list[str] = []
    levels: list[int] = []
    for line, level, title in _marked(text):
        if level:
            _close(found, headings, lines, is_leaf=not levels or level <= levels[-1])
            while levels and levels[-1] >= level:
                levels.pop()
                headings.pop()
            levels.append(level)
            headings.append(title)
            lines = []
        lines.append(line)
    _close(found, headings, lines, is_leaf=True)
    return found


def _close(found: list[MarkdownSection], headings: list[str], lines: list[str], *, is_leaf: bool) -> None:
    body = lines[1:] if headings and not is_leaf else lines
    if any(line.strip() for line in body):
        found.append(MarkdownSection(tuple(headings), "\n".join(lines).strip()))


def _marked(text: str) -> Iterator[tuple[str, int, str]]:
    """Each line; for a heading also its level, from 1, and its title."""
    lines = text.splitlines()
    at, fence = _front_matter(lines), ""
    yield from ((line, 0, "") for line in lines[:at])
    while at < len(lines):
        line, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
        at += 1
        mark = _fence(line)
        if fence:
            is_end = mark.startswith(fence) and line.strip() == mark
            fence = "" if is_end else fence
            yield line, 0, ""
        elif mark:
            fence = mark
            yield line, 0, ""
        elif heading := _heading(line):
            yield line, *heading
        elif (level := _underline(below)) and _is_text(line):
            at += 1
            yield f"{line}\n{below}", level, line.strip()
        else:
            yield line, 0, ""


def _front_matter(lines: list[str]) -> int:
    """The number of lines of the front matter."""
    if not lines or lines[0].rstrip() != _FRONT:
        return 0
    return next((at + 1 for at, line in enumerate(lines) if at and line.rstrip() == _FRONT), 0)


def _fence(line: str) -> str:
    """The marks of a line that opens or closes a fenced block, or nothing."""
    stripped = line.strip()
    if not stripped.startswith(_FENCES) or _indent(line) >= _INDENTED:
        return ""
    return stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]


def _heading(line: str) -> tuple[int, str] | None:
    stripped = line.strip()
    level = len(stripped) - len(stripped.lstrip("#"))
    rest = stripped[level:]
    if not 1 <= level <= _DEEPEST or (rest and not rest[0].isspace()) or _indent(line) >= _INDENTED:
        return None
    title = rest.strip()
    shorter = title.rstrip("#")
    closed = shorter.rstrip() if shorter != title and (not shorter or shorter[-1].isspace()) else title
    return level, closed or stripped


def _underline(line: str) -> int:
    """The level of a line of = (1) or - (2) that makes the line above a heading; else 0."""
    signs = line.strip()
    if _indent(line) >= _INDENTED or not signs or signs[0] not in "=-" or signs.strip(signs[0]):
        return 0
    return 1 if signs[0] == "=" else 2


def _is_text(line: str) -> bool:
    """Whether a line may be an underlined heading: plain text, not a list, quote, table or rule."""
    stripped = line.strip()
    return bool(stripped) and stripped[0] not in "-*+>|=#" and _indent(line) < _INDENTED


def _indent(line: str) -> int:
    expanded = line.expandtabs(_INDENTED)
    return len(expanded) - len(expanded.lstrip(" "))


LoadProgress: TypeAlias = Callable[[int, int], None]
"""Called with how many files are read, and the total."""

TEXTS: tuple[str, ...] = ("**/*.md", "**/*.markdown", "**/*.txt", "**/*.rst")
"""The default patterns of load_folder()."""

_MARKDOWN = frozenset({".md", ".markdown"})
_BYTES_A_CHARACTER = 4
_BETWEEN = " > "


@dataclass(frozen=True, slots=True)
class Loaded:
    """The documents of files, and notes on files that were left out."""

    documents: tuple[Document, ...]
    notes: tuple[str, ...] = ()


async def load_file(path: str | PathLike[str], *, trusted: bool = False) -> Loaded:
    """The documents of one file: one per section of Markdown, with its headings as the attribute `heading`.

    `trusted` is for your own texts: only those may be followed as instructions. A file that cannot be read gives a note
    instead of a document.

    Raises:
        UsageError: the file does not exist.
    """
    file = Path(path)
    if not await to_thread.run_sync(file.is_file):
        raise UsageError(f"{file} is not a file; give the path of a text file, or use load_folder()")
    return await to_thread.run_sync(_read, file, file.name, trusted)


async def load_folder(
    path: str | PathLike[str],
    *,
    pattern: str | Sequence[str] = TEXTS,
    trusted: bool = False,
    progress: LoadProgress | bool = False,
) -> Loaded:
    """The documents of all files in a folder that match a pattern, ordered by path.

    Ids are paths inside the folder, so loading it again updates edited files and adds nothing twice. Hidden files and
    folders are left out. A file that cannot be read, is not UTF-8, is too long or leads out of the folder is named in
    `notes`. `progress` is called with how many files are done, and the total; True shows a bar in a terminal.

    Raises:
        UsageError: the folder does not exist, or a pattern leads out of it.
    """
    folder = Path(path)
    files = await to_thread.run_sync(_files, folder, _patterns(pattern))
    documents: list[Document] = []
    notes: list[str] = []
    left = MAX_FOLDER
    if len(files) > MAX_FILES:
        notes.append(f"{folder} has {len(files):,} files; the first {MAX_FILES:,} were read: load the rest separately")
        files = files[:MAX_FILES]
    with _shown_to(progress) as tell:
        for number, file in enumerate(files, 1):
            read = await to_thread.run_sync(_read_inside, folder, file, trusted)
            left -= sum(len(document.text) for document in read.documents)
            if left < 0:
                most = f"at most {MAX_FOLDER:,} characters are read"
                notes.append(f"{_shown(file)} and the {len(files) - number:,} files behind it were left out: {most}")
                break
            documents += read.documents
            notes += read.notes
            tell(number, len(files))
    return Loaded(tuple(documents), tuple(notes))


@contextmanager
def _shown_to(progress: LoadProgress | bool) -> Generator[LoadProgress]:
    """The progress callback: the caller's, a bar's, or none."""
    if progress is not True:
        yield progress or (lambda _done, _all: None)
        return
    from rich.console import Console  # noqa: PLC0415  (slow to import, and needed for a bar only)
    from rich.progress import Progress as Bar  # noqa: PLC0415

    console = Console(stderr=True)
    with Bar(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading files", total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)


def _patterns(pattern: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (pattern,) if isinstance(pattern, str) else tuple(pattern)
    for one in patterns:
        parts = Path(one).parts
        if not parts or ".." in parts or Path(one).is_absolute():
            raise UsageError(f"the pattern {one!r} leads out of the folder; give one like '**/*.md'")
    return patterns


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the path of one, or use load_file()")
    found = {file for pattern in patterns for file in folder.glob(pattern)}
    hidden = {file for file in found if any(part.startswith(".") for part in file.relative_to(folder).parts)}
    return sorted(file for file in found - hidden if file.is_file())


def _read_inside(folder: Path, file: Path, trusted: bool) -> Loaded:
    if not file.resolve().is_relative_to(folder.resolve()):
        return Loaded((), (f"{_shown(file)} was left out: it leads out of the folder",))
    return _read(file, file.relative_to(folder).as_posix(), trusted)


def _read(file: Path, name: str, trusted: bool) -> Loaded:
    try:
        documents = _documents(file, name, _text(file), Provenance("file", trusted=trusted))
        return Loaded(tuple(documents))
    except UnicodeDecodeError as error:
        return Loaded((), (f"{_shown(file)} was left out: it is not UTF-8 (byte {error.start:,}); convert it",))
    except OSError as error:
        return Loaded((), (f"{_shown(file)} was left out: it cannot be read ({error.strerror or error})",))
    except UsageError as error:
        return Loaded((), (f"{_shown(file)} was left out: {error}",))


def _text(file: Path) -> str:
    if file.stat().st_size > MAX_DOCUMENT * _BYTES_A_CHARACTER:
        raise UsageError(f"it has over {MAX_DOCUMENT:,} characters; split it")
    text = file.read_bytes().decode("utf-8-sig")
    if len(text) > MAX_DOCUMENT:
        raise UsageError(f"it has {len(text):,} characters, at most {MAX_DOCUMENT:,} are taken; split it")
    if not text.strip():
        raise UsageError("it is empty")
    return text


def _documents(file: Path, name: str, text: str, provenance: Provenance) -> Iterator[Document]:
    source = str(file)[-MAX_VALUE:]
    if file.suffix.lower() not in _MARKDOWN:
        yield Document(id=_id(name), text=text, source=source, provenance=provenance, attributes={"path": name})
        return
    seen: dict[str, int] = {}
    for part in parts_of(text):
        heading = _BETWEEN.join(title[:MAX_NAME] for title in part.headings)[:MAX_VALUE]
        seen[heading] = seen.get(heading, 0) + 1
        again = f" ({seen[heading]})" if seen[heading] > 1 else ""
        id = _id(f"{name}{_BETWEEN}{heading}{again}" if heading else f"{name}{again}")
        attributes = {"path": name, **({"heading": heading} if heading else {})}
        yield Document(id=id, text=part.text, source=source, provenance=provenance, attributes=attributes)


def _shown(file: Path) -> str:
    """A path as text, even if its bytes are not UTF-8."""
    return str(file).encode("utf-8", "backslashreplace").decode()


def _id(name: str) -> str:
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) <= MAX_ID_BYTES:
        return name
    return f"{encoded[: MAX_ID_BYTES - 65].decode('utf-8', 'ignore')}-{blake2b(encoded, digest_size=32).hexdigest()}"
