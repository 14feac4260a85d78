"""What saving every turn costs. Run: python -m benchmarks.checkpoint [--peers] [--json FILE] [--plot] [--turns N ...].

Each system saves the same conversation (2 x 1 KB of random text in every turn) in a process of its own, is closed,
opened again and asked for the last turn and for turns between. `--peers` installs other software into a temporary
environment, runs it there and removes it. The floor is what a plain script with SQLite can do: parts by hash, and for
each turn its parent and the hashes it added. Two more floors say what a durable commit of SQLite costs by itself: one
row for each turn and nothing else, with a write-ahead log and with a rollback journal, in pages of 512 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import venv
from collections.abc import Coroutine
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint_trace import System, measure, report
from loom.core.clock import RecordIds
from loom.core.log import Checkpoint, LoggedMessage
from loom.core.message import Message, Usage
from loom.core.scope import Scope
from loom.stores.files import FileCheckpointStore
from loom.stores.sqlite import SqliteCheckpointStore

HERE = Path(__file__).parent
SCOPE = Scope(user_id="user", session_id="session")
PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite", "openai-agents", "matplotlib")
LANGGRAPH_TURNS = 500
"""It writes its whole state in every step: about 1 GB at 500 turns and 15 GB at 2,000."""


class LoomStore:
    """A checkpoint store of Loom, saved to as a session does."""

    def __init__(self, store: SqliteCheckpointStore | FileCheckpointStore) -> None:
        self.store, self.ids = store, RecordIds()
        self.last: Checkpoint | None = None

    def open(self) -> None:
        self.loop = asyncio.new_event_loop()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def save(self, turn: int, user: str, assistant: str) -> None:
        now, last = datetime.now(UTC), self.last
        said = (Message.user(user), Message.assistant(assistant))
        entries = [LoggedMessage(self.ids.next_id(), now, message) for message in said]
        checkpoint = Checkpoint(
            id=self.ids.next_id(), session_id="session", at=now, position=2 * turn, turn=turn,
            parent=last.id if last else None, usage=Usage(input=600 * turn, output=300 * turn),
        )  # fmt: skip
        self.run(self.store.save(SCOPE, checkpoint, entries=entries, head=last.id if last else None))
        self.last = checkpoint

    def latest(self) -> int:
        last = self.run(self.store.load(SCOPE))
        return len(self.run(self.store.history(SCOPE, last.id)))

    def turn(self, turn: int) -> int | None:
        if not hasattr(self, "by_turn"):
            self.by_turn = {one.turn: one.id for one in self.run(self.store.list(SCOPE))}
        return len(self.run(self.store.history(SCOPE, self.by_turn[turn])))

    def close(self) -> None:
        self.run(self.store.aclose())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()


class Floor:
    """The least that restores every turn: no scopes, no checks, no format, no deleting."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "floor.db"

    def open(self) -> None:
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.executescript("""
            PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
            CREATE TABLE IF NOT EXISTS parts (part INTEGER PRIMARY KEY, hash BLOB UNIQUE, body BLOB);
            CREATE TABLE IF NOT EXISTS turns (turn INTEGER PRIMARY KEY, parent INTEGER, added BLOB);
        """)

    def save(self, turn: int, user: str, assistant: str) -> None:
        hashes: list[bytes] = []
        self.db.execute("BEGIN IMMEDIATE")
        for role, text in (("user", user), ("assistant", assistant)):
            body = json.dumps({"role": role, "text": text}).encode()
            hashes.append(sha256(body).digest())
            self.db.execute("INSERT OR IGNORE INTO parts (hash, body) VALUES (?, ?)", (hashes[-1], body))
        self.db.execute("INSERT INTO turns VALUES (?, ?, ?)", (turn, turn - 1, b"".join(hashes)))
        self.db.execute("COMMIT")

    def latest(self) -> int:
        return self.turn(self.db.execute("SELECT max(turn) FROM turns").fetchone()[0])

    def turn(self, turn: int) -> int:
        found: list[Any] = []
        for (added,) in self.db.execute("SELECT added FROM turns WHERE turn <= ? ORDER BY turn", (turn,)):
            for start in range(0, len(added), 32):
                sql = "SELECT body FROM parts WHERE hash = ?"
                found.append(json.loads(self.db.execute(sql, (added[start : start + 32],)).fetchone()[0]))
        return len(found)

    def close(self) -> None:
        self.db.close()


class Rows:
    """One row for each turn, and nothing that could find an equal part again."""

    def __init__(self, folder: Path, journal: str) -> None:
        self.path, self.journal = folder / "rows.db", journal

    def open(self) -> None:
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.executescript(f"""
            PRAGMA page_size=512; PRAGMA journal_mode={self.journal}; PRAGMA synchronous=FULL;
            CREATE TABLE IF NOT EXISTS turns (turn INTEGER PRIMARY KEY, said BLOB);
        """)

    def save(self, turn: int, user: str, assistant: str) -> None:
        said = [{"role": "user", "text": user}, {"role": "assistant", "text": assistant}]
        self.db.execute("INSERT INTO turns VALUES (?, ?)", (turn, json.dumps(said).encode()))

    def latest(self) -> int:
        return self.turn(self.db.execute("SELECT max(turn) FROM turns").fetchone()[0])

    def turn(self, turn: int) -> int:
        found = self.db.execute("SELECT said FROM turns WHERE turn <= ? ORDER BY turn", (turn,))
        return sum(len(json.loads(said)) for (said,) in found)

    def close(self) -> None:
        self.db.close()


def make(name: str, folder: Path) -> System:
    if name == "floor":
        return Floor(folder)
    if name.startswith("rows"):
        return Rows(folder, "WAL" if name == "rows-wal" else "TRUNCATE")
    if name == "loom-files":
        return LoomStore(FileCheckpointStore(folder / "sessions"))
    return LoomStore(SqliteCheckpointStore(folder / "sessions.db"))


def run(python: str, module: str, name: str, turns: int) -> dict[str, Any]:
    command = [python, "-m", module, *(["--one"] if module.endswith("checkpoint") else []), name, str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return {"name": name, **json.loads(done.stdout.splitlines()[-1])}


def installed(folder: Path) -> str:
    """A Python with the peers, in an environment of its own."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table(title="saving every turn of 2 x 1 KB")
    for column in (
        "system", "turns", "on disk", "x payload", "written", "x on disk", "save ms first/last", "CPU ms first/last",
        "load latest CPU ms", "any turn CPU ms",
    ):  # fmt: skip
        shown.add_column(column, justify="left" if column == "system" else "right")
    for one in results:
        any_turn = "no" if one["load_any"] is None else f"{one['load_any']:.0f}"
        shown.add_row(
            one["name"], f"{one['turns']:,}", f"{one['disk'] / 1e6:,.2f} MB", f"{one['disk'] / one['payload']:,.2f}",
            f"{one['written'] / 1e6:,.2f} MB", f"{one['written'] / one['disk']:,.2f}",
            f"{one['wall_first']:.2f} / {one['wall_last']:.2f}", f"{one['cpu_first']:.2f} / {one['cpu_last']:.2f}",
            f"{one['load_latest']:.0f}", any_turn,
        )  # fmt: skip
    return shown


def results_of(turns: list[int], peers: str | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for count in turns:
        own = ("loom-sqlite", "loom-files", "floor", "rows-wal", "rows-journal")
        found += [run(sys.executable, "benchmarks.checkpoint", name, count) for name in own]
        if peers:
            found.append(run(peers, "benchmarks.checkpoint_peers", "agents-sdk", count))
        if peers and count <= LANGGRAPH_TURNS:
            found.append(run(peers, "benchmarks.checkpoint_peers", "langgraph", count))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="install and run other software too")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--plot", action="store_true", help="draw benchmarks/checkpoint.png (with --peers)")
    parser.add_argument("--turns", type=int, nargs="+", default=[500, 2000])
    given = parser.parse_args()
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if given.peers and free < 4 * 10**9:
        raise SystemExit(f"{free / 1e9:.1f} GB are free; the peers need 4")
    with tempfile.TemporaryDirectory() as folder:
        peers = installed(Path(folder)) if given.peers else None
        results = results_of(given.turns, peers)
        figures = Path(folder) / "results.json"
        figures.write_text(json.dumps(results, indent=1))
        if given.json:
            shutil.copy(figures, given.json)
        if given.plot and peers:
            image = str(HERE / "checkpoint.png")
            command = [peers, "-m", "benchmarks.checkpoint_plot", str(figures), image]
            subprocess.run(command, check=True, cwd=HERE.parent)
    Console(width=150).print(table(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        report(measure(lambda folder: make(sys.argv[2], folder), int(sys.argv[3])))
    else:
        main()
