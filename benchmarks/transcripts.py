"""What reading transcripts costs. Run: python -m benchmarks.transcripts [LINES].

Sessions of Claude Code and of Codex are made by hand, with tool results, rewound branches and repeated counts, and read
with the reader that `loom memory import` and `loom cache audit` share. The floor is `json.loads` of the same lines.
Each figure comes from a process of its own: CPU seconds, and the memory that it had at most.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

from loom.traces.reader import read_transcripts

LINES = 100_000
_A_SESSION = 2_000
"""Lines of a session, so that there are several files."""


def claude_code(folder: Path, lines: int) -> None:
    """Write sessions of Claude Code: a question, a call of a tool, its result, an answer in two lines."""
    for start in range(0, lines, _A_SESSION):
        session = f"session-{start}"
        with (folder / f"{session}.jsonl").open("w") as file:
            parent: str | None = None
            for n in range(start, min(lines, start + _A_SESSION)):
                at = f"2026-11-02T09:{n // 60 % 60:02}:{n % 60:02}.{n % 1000:03}Z"
                line: dict[str, Any] = {"uuid": f"uuid-{n:032}", "parentUuid": parent, "sessionId": session}
                line |= {"timestamp": at, "isSidechain": False, "version": "2.1.90", "cwd": "/home/someone/work"}
                file.write(json.dumps(line | _claude_message(n)) + "\n")
                parent = f"uuid-{n - 5:032}" if n % 100 == 99 else line["uuid"]  # now and then it goes back


def _claude_message(n: int) -> dict[str, Any]:
    step = n % 5
    if step == 0:
        return {"type": "user", "message": {"role": "user", "content": f"Please look at part {n} of the work."}}
    if step == 2:
        result = [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": "a line of output\n" * 60}]
        return {"type": "user", "message": {"role": "user", "content": result}, "toolUseResult": {"stdout": "x" * 900}}
    usage = {"input_tokens": 3, "output_tokens": 90, "cache_read_input_tokens": n, "cache_creation_input_tokens": 20}
    block: dict[str, Any] = {"type": "text", "text": f"Part {n} is fine. " * 12}
    if step == 1:
        block = {"type": "tool_use", "id": f"toolu_{n}", "name": "Bash", "input": {"command": "ls -la"}}
    message = {"id": f"msg_{n - step % 3}", "role": "assistant", "model": "claude-sonnet-4-5", "content": [block]}
    return {"type": "assistant", "requestId": f"req_{n}", "message": message | {"usage": usage}}


def codex(folder: Path, lines: int) -> None:
    """Write rollouts of Codex: each text twice, calls of tools, and the counts."""
    for start in range(0, lines, _A_SESSION):
        with (folder / f"rollout-{start:09}.jsonl").open("w") as file:
            for n in range(start, min(lines, start + _A_SESSION)):
                at = f"2026-11-03T09:{n // 60 % 60:02}:{n % 60:02}.{n % 1000:03}Z"
                kind, payload = _codex_payload(n, start)
                file.write(json.dumps({"timestamp": at, "type": kind, "payload": payload}) + "\n")


def _codex_payload(n: int, start: int) -> tuple[str, dict[str, Any]]:
    if n == start:
        return "session_meta", {"id": f"rollout-{start}", "cli_version": "0.153.0", "source": "cli"}
    step, turn = n % 6, n // 6
    if step in {0, 1}:
        text = f"Please look at part {turn} of the work."
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        return ("event_msg", {"type": "user_message", "message": text}) if step else ("response_item", item)
    if step in {2, 3}:
        call = {"call_id": f"call_{turn}", "type": "function_call_output" if step == 3 else "function_call"}
        return "response_item", {**call, "name": "shell", "output": "a line of output\n" * 100}
    if step == 4:
        text = f"Part {turn} is fine. " * 12
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return "response_item", item
    last = {"input_tokens": 4000, "cached_input_tokens": 3000, "output_tokens": 100, "total_tokens": 4100}
    total = {name: count * turn for name, count in last.items()}
    return "event_msg", {"type": "token_count", "info": {"total_token_usage": total, "last_token_usage": last}}


PROGRAMS = {"Claude Code": claude_code, "Codex": codex}


def measure(folder: Path, way: str) -> None:
    """Read all files of a folder in one way, and print what it took, as JSON."""
    before = process_time()
    found = 0
    if way == "floor":
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                for line in file:
                    json.loads(line)
                    found += 1
    else:
        for one in read_transcripts([folder]):
            found += len(one.texts) + len(one.calls) + len(one.skipped)
    seconds = process_time() - before
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "most": most, "found": found}))


def in_process(folder: Path, way: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.transcripts", "--measure", str(folder), way]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(lines: int) -> None:
    """Print the table."""
    table = Table("program", "lines", "MB", "floor: json.loads, CPU s", "reader, CPU s", "ratio", "reader, MB at most")
    for name, write in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as given:
            folder = Path(given)
            write(folder, lines)
            size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            floor, reader = in_process(folder, "floor"), in_process(folder, "reader")
            ratio = reader["seconds"] / floor["seconds"]
            figures = f"{floor['seconds']:.2f}", f"{reader['seconds']:.2f}", f"{ratio:.2f}", f"{reader['most']:.0f}"
            table.add_row(name, f"{lines:,}", f"{size:.0f}", *figures)
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else LINES)
