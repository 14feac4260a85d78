"""What `loom memory import` does: a file is read into a memory, and all that became of it is counted."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loom.errors import UsageError


@dataclass(slots=True)
class Imported:
    """What became of the entries of a file."""

    new: int = 0
    there: int = 0
    """Records that were there already."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """How many entries are no turns, by the reason."""
    notes: dict[str, None] = field(default_factory=dict[str, None])
    """What a reader should know, each once."""

    def __str__(self) -> str:
        """The counts, for people."""
        there = f", {self.there:,} there already" if self.there else ""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.most_common())
        return f"{self.new:,} new{there}" + (f", {self.left_out.total():,} left out ({reasons})" if reasons else "")


def import_file(memory: Any, path: Path, *, user: str, progress: Callable[[int, int], None]) -> Imported:
    """Read an export of Loom or conversations of other programs into a user's memory."""
    if not _is_export(path):
        return _import_transcripts(memory, path, user, progress)
    read = memory.import_(_lines(path), user_id=user, progress=progress)
    there = len(read.skipped)
    new = len({record.id for record in read.kept}) - there
    return Imported(new, there, notes=dict.fromkeys(read.notes))


def _import_transcripts(memory: Any, path: Path, user: str, progress: Callable[[int, int], None]) -> Imported:
    from loom.memory.transcripts import read_transcripts
    from loom.memory.values import REPEATED

    done = Imported()
    conversations = read_transcripts(path)
    for number, found in enumerate(conversations, 1):
        key = f"import:{found.session_id}"
        with _interrupt_put_off():
            read = memory.remember(found.turns, user_id=user, session_id=found.session_id, key=key)
        reasons = Counter(skip.reason for skip in (*found.skipped, *read.skipped))
        there = reasons.pop(REPEATED, 0)
        done.there += there
        done.new += len(read.kept) - there
        for reason, count in reasons.items():
            done.left_out[reason.partition(":")[0]] += count
        done.notes.update(dict.fromkeys(read.notes))
        progress(number, len(conversations))
    done.notes.update(dict.fromkeys(memory.metabolize(user_id=user).notes))
    return done


@contextmanager
def _interrupt_put_off() -> Generator[None]:
    """Put Ctrl-C off until the block is through, so that no conversation is left without vectors; the second holds."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; give an export in UTF-8") from error


def _is_export(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().startswith('{"loom": "memory"')
    except (OSError, UnicodeDecodeError):
        return False
