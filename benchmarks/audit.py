"""How long an audit of transcripts takes, and how much memory. Run: python -m benchmarks.audit [LINES] [FILES].

Transcripts of Claude Code are made in a temporary folder: a prompt, two answers with usage over two lines each, tool
calls and results of a usual size, a pause that loses the cache now and then. What is printed is CPU time of reading and
auditing them, the peak of memory, and whether each planted collapse was found. The targets are 100,000 lines in 10 CPU
seconds and 300 MB.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loom import audit

LINES = 100_000
TARGET_SECONDS, TARGET_MB = 10.0, 300.0
PAUSE_EVERY = 97
WORDS = "the cache reads what the last request wrote, unless something before it has moved in the meantime. "


class Session:
    """Writes the lines of one session."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.random = name, random.Random(seed)
        self.now, self.kept, self.lines, self.planted = 1_790_000_000.0 + seed * 1e6, 0, 0, 0
        self.last: str | None = None

    def line(self, kind: str, **more: Any) -> str:
        """One line of the file."""
        self.lines += 1
        id = f"{self.name}-{self.lines}"
        at = datetime.fromtimestamp(self.now, UTC).isoformat()
        common = {
            "parentUuid": self.last,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/work",
            "version": "2.1.90",
        }
        self.last = id
        return json.dumps({**common, "sessionId": self.name, "type": kind, "uuid": id, "timestamp": at, **more}) + "\n"

    def call(self) -> list[str]:
        """A call of the model over two lines, and the result of the tool that it called."""
        self.now += self.random.uniform(5, 60)
        pause = self.lines > PAUSE_EVERY and self.random.random() < 1 / PAUSE_EVERY
        if pause:
            self.now, self.planted = self.now + 4_000, self.planted + 1
        read, written = (0, self.kept + 900) if pause else (self.kept, self.random.randint(200, 3_000))
        self.kept = read + written
        self.kept = min(self.kept, 150_000)  # long sessions go on at the same size
        usage = {
            "input_tokens": 4,
            "output_tokens": 80,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        }
        message = {
            "id": f"msg-{self.name}-{self.lines}",
            "role": "assistant",
            "model": "claude-sonnet-5",
            "usage": usage,
        }
        said = {"type": "text", "text": WORDS * self.random.randint(1, 6)}
        tool = {"type": "tool_use", "id": f"t{self.lines}", "name": "Bash", "input": {"command": WORDS}}
        result = {"type": "tool_result", "tool_use_id": tool["id"], "content": WORDS * self.random.randint(1, 40)}
        return [
            self.line("assistant", message={**message, "content": [said]}),
            self.line("assistant", message={**message, "content": [tool]}),
            self.line("user", message={"role": "user", "content": [result]}),
        ]


def write(folder: Path, lines: int, files: int) -> tuple[int, int]:
    """Write the transcripts; returns the bytes and the number of planted collapses."""
    planted = 0
    for number in range(files):
        session = Session(f"s{number}", number)
        with (folder / f"{number}.jsonl").open("w", encoding="utf-8") as file:
            while session.lines < lines // files:
                file.write(session.line("user", message={"role": "user", "content": "Go on with the next part."}))
                file.writelines([*session.call(), *session.call()])
        planted += session.planted
    return sum(path.stat().st_size for path in folder.iterdir()), planted


def main(lines: int, files: int) -> int:
    """Make, audit and print; the exit status is 1 where a target is missed."""
    with tempfile.TemporaryDirectory() as name:
        size, planted = write(Path(name), lines, files)
        before = time.process_time()
        found = audit(name)
        seconds = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    idle = found.by_cause["idle"].count
    print(f"{lines:,} lines, {size / 1e6:.0f} MB in {files} files: {found.requests:,} requests")
    print(f"{seconds:.1f} CPU seconds ({lines / seconds:,.0f} lines a second), at most {TARGET_SECONDS:.0f}")
    print(f"{peak:.0f} MB at the peak, at most {TARGET_MB:.0f}")
    print(f"{idle} of {planted} planted collapses found, {len(found.collapses) - idle} others")
    good = seconds <= TARGET_SECONDS and peak <= TARGET_MB and len(found.collapses) == idle == planted
    return 0 if good else 1


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*given, *(LINES, 20)[len(given) :]))
