"""What a long thread of LangGraph costs: bytes on disk and CPU a turn, with Loom's saver and with LangGraph's own.

    python -m benchmarks.langgraph_threads [--turns 400] [--bytes 2000] [--profile]

A graph of one node answers at once. Each turn is a message of half the bytes and an answer of the other half, one
`invoke` in the same process; both savers write SQLite files, turn by turn in alternation, so that a busy machine slows
both. `dicts` keeps them as `{"role": ..., "content": ...}` in a plain list, `messages` as LangChain's message objects,
`delta` as those in a `DeltaChannel`, with which LangGraph itself stores what was added. `flat` is the median of the
last ten turns against that of turns 11 to 20, each divided by a fixed piece of work of the same turns, because the
machine is not equally fast all the time. `floor` is the graph without a saver, given the whole history each time: what
LangGraph itself costs as the history grows.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import operator
import pstats
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
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


def graph_on(saver: BaseCheckpointSaver[Any] | None, state: type, size: int) -> Any:
    """A graph whose one node answers at once."""

    def answer(said: Any) -> dict[str, Any]:
        answer = text(len(said["messages"]), size)
        return {"messages": [{"role": "ai", "content": answer} if state is Dicts else AIMessage(answer)]}

    made = cast("Any", StateGraph(state))
    return made.add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile(checkpointer=saver)


def text(number: int, size: int) -> str:
    """A text of this size that no other turn has."""
    return (f"turn {number} of a long conversation says " * (size // 20))[:size]


class Run:
    """One saver, and what its turns took."""

    def __init__(self, name: str, saver: BaseCheckpointSaver[Any] | None, state: type, file: Path, size: int) -> None:
        self.name, self.file, self._size, self.took = name, file, size, list[float]()
        self._graph, self._has_saver, self._state = graph_on(saver, state, size), saver is not None, state
        self._history: list[Any] = []

    def turn(self, number: int) -> None:
        """Send one message."""
        config = {"configurable": {"thread_id": THREAD}}
        words = text(number, self._size)
        said = {"role": "user", "content": words} if self._state is Dicts else HumanMessage(words)
        began = time.process_time()
        done = self._graph.invoke({"messages": [said] if self._has_saver else [*self._history, said]}, config)
        self.took.append(time.process_time() - began)
        self._history = done["messages"]
        assert len(self._history) == 2 * number + 2, "a message was lost"

    @property
    def on_disk(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in self.file.parent.glob(f"{self.file.name}*"))


def grown(took: list[float]) -> float:
    """The median of the last ten turns against that of turns 11 to 20."""
    return median(took[-10:]) / median(took[10:20])


WORK = [{"number": number, "words": ["some", "words", str(number)]} for number in range(1500)]


def fixed_work() -> float:
    """CPU seconds of work that is always the same: it allocates and copies, as reading a history does."""
    began = time.process_time()
    for _ in range(2):
        json.loads(json.dumps(WORK))
    return time.process_time() - began


def main() -> None:
    """Print the table."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--turns", type=int, default=400)
    given.add_argument("--bytes", type=int, default=2000, help="of a turn")
    given.add_argument("--profile", action="store_true", help="say where Loom's time goes in the last 50 turns")
    asked = given.parse_args()
    size = asked.bytes // 2
    with TemporaryDirectory() as folder, ExitStack() as stack:
        place, runs = Path(folder), list[Run]()
        for kind, state in (("dicts", Dicts), ("messages", Chat), ("delta", DeltaChat)):
            file = place / f"loom-{kind}.db"
            loom = stack.enter_context(LoomSaver(f"sqlite:{file}", user_id="alice"))
            runs.append(Run(f"Loom, {kind}", loom, state, file, size))
            file = place / f"langgraph-{kind}.db"
            theirs = stack.enter_context(SqliteSaver.from_conn_string(str(file)))
            runs.append(Run(f"LangGraph, {kind}", theirs, state, file, size))
        runs.append(Run("floor", None, Chat, place / "none", size))
        profiles = {run.name: cProfile.Profile() for run in runs} if asked.profile else {}
        fixed = list[float]()
        for number in range(asked.turns):
            fixed.append(fixed_work())
            for run in runs:
                with profiles[run.name] if asked.profile and number >= asked.turns - 50 else ExitStack():
                    run.turn(number)
        table = Table("saver", "on disk", "CPU in all", "turns 11-20", "last ten", "flat", title=f"{asked.turns} turns")
        for run in runs:
            ends = (median(run.took[10:20]) * 1000, median(run.took[-10:]) * 1000)
            table.add_row(
                run.name, f"{run.on_disk / 1e6:.1f} MB", f"{sum(run.took):.1f} s", f"{ends[0]:.1f} ms",
                f"{ends[1]:.1f} ms", f"{grown(run.took) / grown(fixed):.2f}",
            )  # fmt: skip
        Console().print(table)
        for loom, theirs in zip(runs[0:6:2], runs[1:6:2], strict=True):
            smaller, cpu = theirs.on_disk / loom.on_disk, sum(loom.took) / sum(theirs.took)
            print(f"{loom.name}: on disk 1/{smaller:.1f} of LangGraph's, CPU {cpu:.2f} times")
        print(f"the fixed work of the last ten turns took {grown(fixed):.2f} times that of turns 11 to 20")
        for name, profile in profiles.items():
            print(name)
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
