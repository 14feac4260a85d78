"""What a long thread of LangGraph costs: bytes on disk and CPU a turn, with Loom's saver and with LangGraph's own.

    python -m benchmarks.langgraph_threads [--turns 400] [--bytes 2000] [--only messages] [--profile]

A graph of one node answers at once. Each turn is a message of half the bytes and an answer of the other half, one
`invoke` in the same process; both savers write SQLite files, turn by turn in alternation, so that a busy machine slows
both. `dicts` keeps them as `{"role": ..., "content": ...}` in a plain list, `messages` as LangChain's message objects,
`delta` as those in a `DeltaChannel`, with which LangGraph itself stores what was added.

`graph alone` is the same graph with a saver that keeps the objects it is given and serialises nothing: what LangGraph
itself costs as the history grows. `grown` is the median of the last ten turns against that of turns 11 to 20. For
`added`, the median of the graph alone is first taken off both: what is left is what a saver costs. The fixed work, of
the same turns, says how much of it is the machine, which is not equally fast all the time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import operator
import pstats
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
)
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from rich.console import Console
from rich.table import Table

from loom.adapters.langgraph import LoomSaver

THREAD = "thread"


def _all_added(messages: list[Any], writes: Any) -> Any:
    return add_messages(messages, [message for write in writes for message in write])


class Dicts(TypedDict):
    """Turns as plain dicts, all of them in every checkpoint."""

    messages: Annotated[list[dict[str, str]], operator.add]


class Chat(TypedDict):
    """Messages, all of them in every checkpoint."""

    messages: Annotated[list[AnyMessage], add_messages]


class DeltaChat(TypedDict):
    """Messages in a channel of which LangGraph stores what was added."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_all_added)]


STATES = {"dicts": Dicts, "messages": Chat, "delta": DeltaChat}


def graph_on(saver: BaseCheckpointSaver[Any], state: type, size: int) -> Any:
    """A graph whose one node answers at once."""

    def answer(said: Any) -> dict[str, Any]:
        answer = text(len(said["messages"]), size)
        return {"messages": [{"role": "ai", "content": answer} if state is Dicts else AIMessage(answer)]}

    made = cast("Any", StateGraph(state))
    return made.add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile(checkpointer=saver)


def text(number: int, size: int) -> str:
    """A text of this size that no other turn has."""
    return (f"turn {number} of a long conversation says " * (size // 20))[:size]


class KeepsObjects(BaseCheckpointSaver[Any]):
    """A saver of one thread that keeps what it is given as it is, and writes nothing: the graph alone."""

    def __init__(self) -> None:
        super().__init__()
        self._last: CheckpointTuple | None = None
        self._known: dict[str, tuple[str | None, dict[str, Any]]] = {}
        self._writes: defaultdict[str, list[PendingWrite]] = defaultdict(list)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The last checkpoint."""
        return self._last if config else None

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: Any
    ) -> RunnableConfig:
        """Keep the last checkpoint, and the values of all that are new."""
        asked = config.get("configurable", {})
        values = {name: value for name, value in checkpoint["channel_values"].items() if name in new_versions}
        held = {} if self._last is None else self._last.checkpoint["channel_values"]
        made: RunnableConfig = {"configurable": {**asked, "checkpoint_id": checkpoint["id"]}}
        old = {name: value for name, value in held.items() if name not in new_versions}
        kept = cast("Checkpoint", {**checkpoint, "channel_values": {**old, **values}})
        self._last = CheckpointTuple(made, kept, metadata, config, [])
        self._known[checkpoint["id"]] = asked.get("checkpoint_id"), values
        return made

    def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep what was written at a checkpoint."""
        at: str = config.get("configurable", {})["checkpoint_id"]
        self._writes[at] += [(task_id + task_path, name, value) for name, value in writes]

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Any) -> Any:
        """For each channel the last snapshot, and what was written since."""
        found: dict[str, Any] = {}
        for name in channels:
            at, _ = self._known[config.get("configurable", {})["checkpoint_id"]]
            writes, seed = list[PendingWrite](), dict[str, Any]()
            while at is not None and not seed:
                before, values = self._known[at]
                writes[:0] = [write for write in self._writes[at] if write[1] == name]
                seed, at = {"seed": values[name]} if name in values else {}, before
            found[name] = {"writes": writes, **seed}
        return found


class Run:
    """One saver, and what its turns took."""

    def __init__(self, name: str, saver: BaseCheckpointSaver[Any], state: type, file: Path, size: int) -> None:
        self.name, self.file, self._size, self.took = name, file, size, list[float]()
        self._graph, self._state = graph_on(saver, state, size), state
        self.profile: cProfile.Profile | None = None

    def turn(self, number: int) -> None:
        """Send one message."""
        config = {"configurable": {"thread_id": THREAD}}
        words = text(number, self._size)
        said = {"role": "user", "content": words} if self._state is Dicts else HumanMessage(words)
        with self.profile or ExitStack():
            began = time.process_time()
            done = self._graph.invoke({"messages": [said]}, config)
            self.took.append(time.process_time() - began)
        assert len(done["messages"]) == 2 * number + 2, "a message was lost"

    @property
    def on_disk(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.file.parent.glob(f"{self.file.name}*"))


WORK = [{"number": number, "words": ["some", "words", str(number)]} for number in range(1500)]


def fixed_work() -> float:
    """CPU seconds of work that is always the same: it allocates and copies, as reading a history does."""
    began = time.process_time()
    for _ in range(2):
        json.loads(json.dumps(WORK))
    return time.process_time() - began


def ends(took: list[float]) -> tuple[float, float]:
    """The medians of turns 11 to 20 and of the last ten, in milliseconds."""
    return median(took[10:20]) * 1000, median(took[-10:]) * 1000


def compare(kind: str, state: type, turns: int, size: int, *, profile: bool) -> None:
    """Run a thread on each saver, and print what it took."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        loom = stack.enter_context(LoomSaver(f"sqlite:{place / 'loom.db'}", user_id="alice"))
        theirs = stack.enter_context(SqliteSaver.from_conn_string(str(place / "langgraph.db")))
        runs = [
            Run("Loom", loom, state, place / "loom.db", size),
            Run("LangGraph", theirs, state, place / "langgraph.db", size),
            Run("graph alone", KeepsObjects(), state, place / "none", size),
        ]
        fixed = list[float]()
        for number in range(turns):
            if profile and number == turns - 50:
                runs[0].profile = cProfile.Profile()
            fixed.append(fixed_work())
            for run in runs:
                run.turn(number)
        titles = ("saver", "on disk", "CPU in all", "turns 11-20", "last ten", "grown", "added")
        table, alone = Table(*titles, title=f"{kind}, {turns} turns"), ends(runs[-1].took)
        for run in runs:
            first, last = ends(run.took)
            added = "" if run is runs[-1] else f"{(last - alone[1]) / (first - alone[0]):.2f}"
            table.add_row(
                run.name, f"{run.on_disk / 1e6:.1f} MB", f"{sum(run.took):.1f} s", f"{first:.1f} ms", f"{last:.1f} ms",
                f"{last / first:.2f}", added,
            )  # fmt: skip
        Console().print(table)
        smaller, cpu = runs[1].on_disk / runs[0].on_disk, sum(runs[0].took) / sum(runs[1].took)
        first, last = ends(fixed)
        print(f"on disk 1/{smaller:.1f} of LangGraph's, CPU {cpu:.2f} times; the fixed work {last / first:.2f} times\n")
        if runs[0].profile is not None:
            pstats.Stats(runs[0].profile).sort_stats("tottime").print_stats(18)


def main() -> None:
    """Print the tables."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--turns", type=int, default=400)
    given.add_argument("--bytes", type=int, default=2000, help="of a turn")
    given.add_argument("--only", choices=STATES, help="one kind of state")
    given.add_argument("--profile", action="store_true", help="say where Loom's time goes in the last 50 turns")
    asked = given.parse_args()
    for kind in [asked.only] if asked.only else STATES:
        compare(kind, STATES[kind], asked.turns, asked.bytes // 2, profile=asked.profile)


if __name__ == "__main__":
    main()
