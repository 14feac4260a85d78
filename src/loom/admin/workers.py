"""Workers: processes that run the waiting jobs of all users of one store, on this machine and on others.

Workers share nothing but the store: a job is leased to one of them, and if that one dies, the lease runs out and
another does the job. So they may be started, stopped and killed at any time, on any number of machines.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from loom.engine import SyncMemory, open_memory_sync
from loom.engine.open import open_model
from loom.engine.urls import check_is_there
from loom.errors import LoomError, StoreError, UsageError
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory.results import Metabolized

MOST = 256
"""Processes of one call."""

Report: TypeAlias = Callable[[Metabolized], None]
"""Is called with what was done since the last call."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker works on. `every` is the pause in seconds between two rounds; None: it ends when nothing is due."""

    url: str
    model: str | None = None
    every: float | None = None

    def open(self) -> SyncMemory:
        """The memory that it works on."""
        check_is_there(self.url)
        reads = None if self.model is None else LlmExtractor(open_model(self.model))
        return open_memory_sync(self.url, extractor=reads)

    def run(self, report: Report, stopped: threading.Event) -> None:
        """Run rounds until nothing is due, or, with `every`, until it is stopped."""
        with self.open() as memory:
            while not stopped.is_set():
                done = memory.metabolize()
                report(done)
                if done.jobs:
                    continue
                if self.every is None:
                    return
                stopped.wait(self.every)


def run_workers(worker: Worker, *, processes: int = 1, report: Report) -> None:
    """Run this many workers, one of them here if it is the only one; returns when all have ended.

    SIGTERM and Ctrl-C end them after the round that each is at.
    """
    if not 1 <= processes <= MOST:
        raise UsageError(f"--processes is {processes}; give 1 to {MOST}")
    if worker.every is not None and not worker.every > 0:
        raise UsageError(f"--every is {worker.every:g}; give seconds above 0")
    if processes > 1 and worker.url.partition(":")[0] in {"sqlite", "inmemory"}:
        raise UsageError(
            "a SQLite file has one writer at a time, so that more processes do not help; leave --processes out, or use "
            "Postgres or Redis"
        )
    if processes == 1:
        with _ending() as stopped:
            worker.run(report, stopped)
        return
    _run_processes(worker, processes, report)


@contextmanager
def _ending() -> Generator[threading.Event]:
    """A flag that SIGTERM and Ctrl-C set while the block lasts; only the main thread can be told so."""
    flag = threading.Event()
    kinds = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()

    def end(*_: object) -> None:
        flag.set()

    before = {kind: signal.signal(kind, end) for kind in kinds}
    try:
        yield flag
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _run_processes(worker: Worker, processes: int, report: Report) -> None:
    context = get_context("spawn")
    lines: dict[Any, BaseProcess] = {}
    failed: list[str] = []
    with _ending() as stopped:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(worker, theirs))
            process.start()
            theirs.close()
            lines[ours] = process
        is_told = False
        while lines:
            if stopped.is_set() and not is_told:
                is_told = True
                for process in lines.values():
                    process.terminate()
            ready: list[Any] = wait([*lines], timeout=1.0)
            for line in ready:
                try:
                    said = line.recv()
                except EOFError:
                    process = lines.pop(line)
                    process.join()
                    if process.exitcode and not is_told:
                        failed.append(f"a worker ended with {process.exitcode}")
                    continue
                if isinstance(said, Metabolized):
                    report(said)
                else:
                    failed.append(said)
    if failed:
        raise StoreError("; ".join(dict.fromkeys(failed)))


def _work(worker: Worker, line: Connection[Any, Any]) -> None:
    """What a process does: work, and say what it did."""
    try:
        with _ending() as stopped:
            worker.run(line.send, stopped)
    except LoomError as error:
        line.send(str(error))
