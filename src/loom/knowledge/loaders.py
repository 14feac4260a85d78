"""Loads documents from files: a text, a Markdown file by its headings, or all files of a folder."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from anyio import to_thread

from loom.core.checks import MAX_ID_BYTES
from loom.core.limits import MAX_DOCUMENT, MAX_FILES, MAX_FOLDER, MAX_NAME, MAX_VALUE
from loom.core.record import Provenance
from loom.errors import UsageError
from loom.knowledge.markdown import parts_of
from loom.protocols.knowledge_base import Document

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
    found = {file for pattern in patterns for file in folder.glob(pattern) if not _is_hidden(file.relative_to(folder))}
    return sorted(file for file in found if file.is_file())


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


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
