"""What a new process costs before it does its work: imports, the command line, the first turn, the first recall, hooks.

    python -m benchmarks.startup [--runs 9] [--json]

Each row is the CPU time, user and system, of a whole child process, and the number of modules that it had loaded at its
end. `python -c pass` is the floor, and the programs take turns, so that whatever else the machine does meets all alike.
One round before the first is not counted: it compiles the sources and brings the files into memory.

A hook is measured as a program starts it, on a memory with 200 turns, without the warm process. `warm process` is what
that one costs by itself, once for a conversation: it loads the engine and answers its first prompt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

FLOOR = "python -c pass"
TURN = """
from loom import Agent
from loom.testing import ScriptedModel
agent = Agent("Be brief.", model=ScriptedModel(["Hello."]), memory="sqlite:{folder}/{new}.db")
assert agent.run_sync("I live in Lisbon.", user_id="ann").text == "Hello."
agent.close()
"""
RECALL = """
from loom import open_memory_sync
with open_memory_sync("sqlite:{folder}/kept.db") as memory:
    assert "Lisbon" in str(memory.recall("Where do I live?", user_id="ann"))
"""
KEPT = """
from loom import open_memory_sync
with open_memory_sync("sqlite:{folder}/kept.db") as memory:
    memory.remember("I live in Lisbon.", user_id="ann")
"""
COMMAND = """
import sys
from loom.cli import main
sys.argv = {words!r}
try:
    main()
except SystemExit as end:
    assert not end.code
"""
HOOK = """
import io, os, sys
os.environ["HOME"] = "{folder}"
from loom.cli import main
sys.stdin = io.StringIO({given!r}.replace("FOLDER", "{folder}"))
sys.argv = ["loom", "hook", "run", {event!r}, "--url", "sqlite:{folder}/hooks.db", "--user", "ann"]
try:
    main()
except SystemExit as end:
    assert not end.code
assert not os.path.exists("{folder}/.loom/hooks.log"), open("{folder}/.loom/hooks.log").read()
"""
HOOKS = {
    "SessionStart": {"source": "startup"},
    "SessionStart, compact": {"source": "compact", "session_id": "s"},
    "UserPromptSubmit": {"prompt": "Where did Maria drink tea on day 77?", "session_id": "t"},
    "PreCompact": {"session_id": "s", "transcript_path": "FOLDER/t.jsonl"},
    "SessionEnd": {"session_id": "s", "transcript_path": "FOLDER/t.jsonl"},
    "Stop": {"session_id": "s", "transcript_path": "FOLDER/t.jsonl"},
}
WARM = """
from loom.server import hooks
options = hooks.HookOptions("sqlite:{folder}/hooks.db", "ann")
assert "day 77" in hooks._run(hooks._recalled, options, "Where did Maria drink tea on day 77?", "t")
"""
FILLED = """
from loom import open_memory_sync
turns = [{"role": "user", "content": f"On day {n} Maria and I drank tea near the station of Graz."} for n in range(200)]
with open_memory_sync("sqlite:{folder}/hooks.db") as memory:
    memory.remember(turns, user_id="ann", session_id="s")
    memory.remember(["I live in Lisbon.", "Always answer in German."], user_id="ann", learn=True)
open("{folder}/t.jsonl", "w").write('{"type": "user", "message": {"role": "user", "content": "Hello."}}')
"""
GOALS = {
    "from loom import Context": 0.15,
    "from loom import Agent": 0.30,
    "loom --help": 0.20,
    "first run_sync": 0.80,
    **{f"hook {event}": 0.15 for event in HOOKS},
}
"""CPU seconds of the whole process, on a machine with nothing else to do."""


def programs() -> dict[str, str]:
    commands = {line: COMMAND.format(words=line.split()) for line in ("loom --help", "loom memory --help")}
    imports = ("import loom", "from loom import Context", "from loom import Agent", "import numpy")
    return {
        FLOOR: "pass",
        **{line: line for line in imports},
        **commands,
        "first run_sync": TURN,
        "first recall": RECALL,
        **{
            f"hook {event}": HOOK.replace("{given!r}", repr(json.dumps(given))).replace(
                "{event!r}", repr(event.partition(",")[0])
            )
            for event, given in HOOKS.items()
        },
        "warm process": WARM,
    }


class Processes:
    """Runs programs in processes of their own; each leaves a number of modules, and databases where one is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._started = 0
        self.cpu(KEPT)
        self.cpu(FILLED)

    def cpu(self, program: str) -> float:
        """The CPU seconds of one process."""
        return self._run(program)

    def modules(self, program: str) -> int:
        """How many modules one process has loaded at its end."""
        counted = self._folder / "modules"
        self._run(f"{program}\nimport sys\nopen({str(counted)!r}, 'w').write(str(len(sys.modules)))")
        return int(counted.read_text())

    def _run(self, program: str) -> float:
        self._started += 1
        program = program.replace("{folder}", str(self._folder)).replace("{new}", str(self._started))
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, env=self._environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"this program failed:\n{program}")
        return used.ru_utime + used.ru_stime


def measure(runs: int) -> list[dict[str, Any]]:
    """One row for each program: CPU seconds, the least and the median, how many times the floor, and modules."""
    found: dict[str, list[float]] = {name: [] for name in programs()}
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder))
        modules = {name: processes.modules(program) for name, program in programs().items()}
        for _ in track(range(runs), "measuring", console=Console(stderr=True), transient=True):
            for name, program in programs().items():
                found[name].append(processes.cpu(program))
    floor = median(found[FLOOR])
    return [
        {
            "what": name,
            "cpu": median(times),
            "least": min(times),
            "times_the_floor": median(times) / floor,
            "modules": modules[name],
            "goal": GOALS.get(name),
        }
        for name, times in found.items()
    ]


def main(runs: int = 9, as_json: bool = typer.Option(False, "--json")) -> None:
    """Measure, and print a table or JSON."""
    rows = measure(runs)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=f"A new process: CPU, median and least of {runs}", title_justify="left")
    for name in ("process", "CPU s", "least", "x python", "modules", "goal"):
        table.add_column(name, justify="left" if name == "process" else "right")
    for row in rows:
        figures = (f"{row['cpu']:.3f}", f"{row['least']:.3f}", f"{row['times_the_floor']:.1f}", str(row["modules"]))
        table.add_row(row["what"], *figures, f"{row['goal']:.2f}" if row["goal"] else "")
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
