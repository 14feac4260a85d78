"""Other software under the same conversation; runs where it is installed. See benchmarks/checkpoint.py."""

# ruff: noqa: ARG002 - System says what the methods of each system do
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUnknownLambdaType=false

# pyright: reportArgumentType=false
# The peers take plain dictionaries and pairs where their types ask for their own classes.
from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_trace import System, measure, report


class LangGraph:
    """A graph of one node with `add_messages` and the SQLite saver, durability sync: a checkpoint in every step."""

    config: dict[str, Any] = {"configurable": {"thread_id": "session"}}  # noqa: RUF012 - never changed

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkpoints.db"
        self.ids: dict[int, str] = {}

    def open(self) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import START, MessagesState, StateGraph

        self.db = sqlite3.connect(str(self.path), check_same_thread=False)
        self.saver = SqliteSaver(self.db)
        graph = StateGraph(MessagesState)
        graph.add_node("answer", lambda _: {"messages": [("assistant", self.answer)]})
        graph.add_edge(START, "answer")
        self.app = graph.compile(checkpointer=self.saver)

    def save(self, turn: int, user: str, assistant: str) -> None:
        self.answer = assistant
        self.app.invoke({"messages": [("user", user)]}, self.config, durability="sync")

    def latest(self) -> int:
        state = self.app.get_state(self.config)
        self._find_turns()
        return len(state.values["messages"])

    def turn(self, turn: int) -> int | None:
        config = {"configurable": {"thread_id": "session", "checkpoint_ns": "", "checkpoint_id": self.ids[turn]}}
        return len(self.app.get_state(config).values["messages"])

    def _find_turns(self) -> None:
        """The last of the three checkpoints of each turn (input, node, end); their ids rise."""
        rows = self.db.execute("SELECT checkpoint_id FROM checkpoints ORDER BY checkpoint_id").fetchall()
        self.ids = {n // 3: id for n, (id,) in enumerate(rows, start=1) if n % 3 == 0}

    def close(self) -> None:
        self.db.close()


class AgentsSdk:
    """SQLiteSession: items of one session, without checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "session.db"

    def open(self) -> None:
        from agents import SQLiteSession

        self.loop = asyncio.new_event_loop()
        self.session = SQLiteSession("session", self.path)

    def save(self, turn: int, user: str, assistant: str) -> None:
        items = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        self.loop.run_until_complete(self.session.add_items(items))

    def latest(self) -> int:
        return len(self.loop.run_until_complete(self.session.get_items()))

    def turn(self, turn: int) -> int | None:
        return None  # it keeps the end of the conversation only

    def close(self) -> None:
        self.session.close()
        self.loop.close()


PEERS: dict[str, type[System]] = {"langgraph": LangGraph, "agents-sdk": AgentsSdk}

if __name__ == "__main__":
    report(measure(PEERS[sys.argv[1]], int(sys.argv[2])))
