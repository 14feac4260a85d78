"""The conversation that every system saves, and how a run is measured. Standard library only: peers import it too."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

ALPHABET = string.ascii_letters + string.digits + " ."
TEXT_BYTES = 1024


class System(Protocol):
    """What is measured. Calls are synchronous; a system with its own event loop runs it inside."""

    def open(self) -> None:
        """Open what the folder holds."""
        ...

    def save(self, turn: int, user: str, assistant: str) -> None:
        """Save one turn, durably."""
        ...

    def latest(self) -> int:
        """How many messages the last turn restores."""
        ...

    def turn(self, turn: int) -> int | None:
        """How many messages a turn restores; None where the system cannot."""
        ...

    def close(self) -> None:
        """Release the folder."""
        ...


def texts(turns: int) -> list[tuple[str, str]]:
    """Two texts of 1 KB for each turn: random, so that nothing is saved by compression or by storing once."""
    chance = random.Random(turns)
    return [tuple("".join(chance.choices(ALPHABET, k=TEXT_BYTES)) for _ in range(2)) for _ in range(turns)]  # pyright: ignore[reportReturnType]


def bytes_written() -> int:
    """What this process handed to write calls so far (wchar of /proc/self/io)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def timed(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """Milliseconds on the clock and of the processor, and what came out."""
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = action()
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000, outcome


def measure(make: Callable[[Path], System], turns: int) -> dict[str, Any]:
    """Save all turns, close, open again and load."""
    folder = Path(tempfile.mkdtemp(prefix="loom-checkpoint-"))
    try:
        said = texts(turns)
        system = make(folder)
        system.open()
        before, wall, cpu = bytes_written(), list[float](), list[float]()
        sizes: list[int] = []
        for turn, (user, assistant) in enumerate(said, start=1):
            took, worked, _ = timed(lambda said=(turn, user, assistant): system.save(*said))
            wall.append(took)
            cpu.append(worked)
            if turn % max(1, turns // 20) == 0:
                sizes.append(size_of(folder))
        system.close()
        written = bytes_written() - before
        found = {"turns": turns, "payload": 2 * TEXT_BYTES * turns, "disk": size_of(folder), "written": written}
        return found | {"sizes": sizes} | _deciles("wall", wall) | _deciles("cpu", cpu) | _loads(make(folder), turns)
    finally:
        shutil.rmtree(folder)


def _deciles(name: str, times: list[float]) -> dict[str, float]:
    tenth = max(1, len(times) // 10)
    return {f"{name}_first": statistics.median(times[:tenth]), f"{name}_last": statistics.median(times[-tenth:])}


def _loads(system: System, turns: int) -> dict[str, Any]:
    """Load the last turn and others from a newly opened system, and see that they are whole."""
    system.open()
    _, latest, count = timed(system.latest)
    assert count == 2 * turns, f"{count} messages restored, {2 * turns} saved"
    asked = [max(1, turns * n // 10) for n in range(1, 10)]
    any_turn: list[float] = []
    for turn in asked:
        _, worked, count = timed(lambda turn=turn: system.turn(turn))
        if count is None:
            break
        assert count == 2 * turn, f"{count} messages restored of turn {turn}"
        any_turn.append(worked)
    system.close()
    return {"load_latest": latest, "load_any": statistics.median(any_turn) if any_turn else None}


def report(found: dict[str, Any]) -> None:
    print(json.dumps(found))
