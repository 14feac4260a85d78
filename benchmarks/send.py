"""What a turn of a session costs by its age. Run: python -m benchmarks.send [GROUP ...].

All is CPU time of all threads, with a model that answers at once. The floor of a turn is `json.dumps` of the body
that it sent, measured in the same run: the model serialises nothing, so what is measured is Loom's own part. A turn of
some age is the median of several turns behind a history of that length.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from loom import Context, Message, Session, plan, render
from loom.core.clock import RecordIds, SystemClock
from loom.core.log import Checkpoint, LoggedMessage
from loom.core.message import JSON, TextPart, ToolCallPart, ToolSpec, Usage
from loom.core.scope import Scope
from loom.protocols.model import Chunk, ModelRequest, ModelResponse
from loom.stores.sqlite import SqliteCheckpointStore

MODEL = ("anthropic", "claude-sonnet-4-5")
AGES = (10, 100, 600, 1_000, 2_000)
STEPS = (50, 200, 500)
TOTALS = (100, 200, 400)
PLANNED = (100, 1_000, 4_000)
PLAN_CHARS = 530_000
"""About 200,000 tokens of English."""
RENDERED = 10_000
SAVED = 2_000
REPEATS = 9

Row = tuple[str, str, str, str]


class InstantModel:
    """Answers at once, with a tool call as long as some are left; keeps the last body."""

    name = ":".join(MODEL)
    context_window = 100_000_000
    reads_text = False

    def __init__(self) -> None:
        self.calls = 0
        self.body: Any = None

    def answer(self, request: ModelRequest) -> ModelResponse:
        assert request.rendered is not None
        self.body = request.rendered.body
        usage = Usage(input=100 * len(self.body["messages"]), output=50)
        if self.calls:
            self.calls -= 1
            call = ToolCallPart(f"call-{self.calls}", "look", {"at": self.calls})
            return ModelResponse(parts=(call,), stop="tool", usage=usage, model=MODEL[1])
        return ModelResponse(parts=(TextPart(text(self.body, 1)),), stop="end", usage=usage, model=MODEL[1])

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return self.answer(request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield self.answer(request)

    async def aclose(self) -> None:
        pass


class Look:
    """A tool that answers at once."""

    spec = ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "integer"}}})

    async def run(self, input: JSON) -> str:
        return f"At {input['at']} there is " + "something to see. " * 10


def text(what: object, n: int, size: int = 400) -> str:
    line = f"Line {n} of {id(what) % 9973}: the report says that all is well with number {n * 7919 % 10_007}. "
    return (line * (size // len(line) + 1))[:size]


@contextmanager
def timed(found: list[float]) -> Generator[None]:
    gc.collect()
    gc.disable()
    start = process_time()
    try:
        yield
    finally:
        found.append(process_time() - start)
        gc.enable()


def best(run: Callable[[], object], repeats: int = REPEATS) -> float:
    found: list[float] = []
    for _ in range(repeats):
        with timed(found):
            run()
    return min(found)


def session_of(model: InstantModel, turns: int) -> Session:
    """A session whose history begins with so many turns."""
    context = Context("bench")
    context.foundation.add("You are a careful assistant. " * 20)
    for n in range(turns):
        context.convo.add(Message.user(text(context, n)))
        context.convo.add(Message.assistant(text(context, -n)))
    return Session(model=model, context=context, tools=[Look()], config={"max_steps": 10_000})


async def turn_of_age(turns: int) -> Row:
    model, found = InstantModel(), list[float]()
    session = session_of(model, turns)
    for n in range(4):  # the first turn makes what later ones go on from
        await session.send(text(session, n))
    for n in range(REPEATS):
        with timed(found):
            await session.send(text(session, n))
    floor = best(lambda: json.dumps(model.body))
    spent = statistics.median(found)
    return (f"send, turn {turns:,}", ms(spent), ms(floor), f"{spent / floor:.1f}x")


async def turn_with_tools(steps: int) -> Row:
    model, found = InstantModel(), list[float]()
    session = session_of(model, 1)
    await session.send("Begin.")
    model.calls = steps
    with timed(found):
        await session.send("Look at all of it.")
    floor = best(lambda: json.dumps(model.body)) * steps / 2  # every step sends what there is so far
    return (f"one turn of {steps} tool steps", ms(found[0]), ms(floor), f"{found[0] / steps * 1e3:.2f} ms a step")


async def many_turns(turns: int) -> Row:
    model, found = InstantModel(), list[float]()
    session = session_of(model, 0)
    with timed(found):
        for n in range(turns):
            await session.send(text(session, n))
    floor = best(lambda: json.dumps(model.body)) * turns / 2
    return (f"{turns} turns from the first on", ms(found[0]), ms(floor), f"{found[0] / turns * 1e3:.2f} ms a turn")


async def planned(messages: int) -> Row:
    """A plan after four windows went out that were planned, too."""
    context, size = Context("bench"), PLAN_CHARS // messages
    for n in range(messages // 2):
        context.convo.add(Message.user(text(context, n, size)))
        context.convo.add(Message.assistant(text(context, -n, size)))
    found: list[float] = []
    window = context.compile()
    made = plan(window, *MODEL)
    for n in range(3 + REPEATS):
        context.convo.add(Message.user(text(context, n, size)))
        window = context.compile()
        with timed(found):
            made = plan(window, *MODEL)
        context.convo.add(Message.assistant(text(context, n, size)))
    spent, floor = statistics.median(found[3:]), best(lambda: json.dumps(render(window, *MODEL)), 3)
    return (f"plan, {messages:,} messages of {made.tokens:,} tokens", ms(spent), ms(floor), f"{spent / floor:.1f}x")


async def rendered(more: bool) -> Row:
    """The body of a long conversation: from nothing, or of the window after one that was rendered."""
    found: list[float] = []
    body: Any = None
    for _ in range(3):
        context = Context("bench")
        for n in range(RENDERED // 2):
            context.convo.add(Message.user(text(context, n, 200)))
            context.convo.add(Message.assistant(text(context, -n, 200)))
        window = context.compile()
        if more:
            render(window, *MODEL)
            context.convo.add(Message.user("One more."))
            window = context.compile()
        with timed(found):
            body = render(window, *MODEL)
    floor = best(lambda: json.dumps(body), 3)
    what = "after one more" if more else "from nothing"
    return (f"render of {RENDERED:,} messages, {what}", ms(min(found)), ms(floor), f"{min(found) / floor:.1f}x")


async def saved_and_loaded() -> list[Row]:
    """A conversation of 2 x 1 KB in every turn, in SQLite."""
    scope, ids, clock = Scope("default", "default", "bench"), RecordIds(), SystemClock()
    saves, loads, restores = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteCheckpointStore(Path(folder) / "bench.db", durability="fast") as store:
            last: Checkpoint | None = None
            for turn in range(1, SAVED + 1):
                said = (Message.user(text(store, turn, 1000)), Message.assistant(text(store, -turn, 1000)))
                entries = [LoggedMessage(ids.next_id(), clock.now(), message) for message in said]
                made = Checkpoint(
                    id=ids.next_id(), session_id="bench", at=clock.now(), position=2 * turn, turn=turn,
                    parent=last.id if last else None, usage=Usage(input=600 * turn, output=300 * turn),
                )  # fmt: skip
                start = process_time()
                await store.save(scope, made, entries=entries, head=last.id if last else None)
                saves.append(process_time() - start)
                last = made
            assert last is not None
            log = await store.history(scope, last.id)
            for _ in range(REPEATS):
                with timed(loads):
                    log = await store.history(scope, last.id)
                session = Session(model=InstantModel(), checkpoints=store, session_id="bench")
                with timed(restores):
                    await session.restore()
                assert len(session.messages) == len(log) == 2 * SAVED
    dumped = json.dumps([entry.message.text for entry in log if isinstance(entry, LoggedMessage)])
    floor, floors = best(lambda: json.loads(dumped)), best(lambda: json.dumps(text(log, 1, 2000)))
    save, load, restore = statistics.median(saves), min(loads), min(restores)
    return [
        (f"save of a turn, {SAVED:,} turns", ms(save), ms(floors), ""),
        (f"load of {SAVED:,} turns", ms(load), ms(floor), f"{load / floor:.1f}x"),
        (f"restore of {SAVED:,} turns into a session", ms(restore), ms(floor), f"{restore / floor:.1f}x"),
    ]


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


async def several(calls: list[Callable[[], Awaitable[Row]]]) -> list[Row]:
    return [await call() for call in calls]


GROUPS: dict[str, Callable[[], Coroutine[Any, Any, list[Row]]]] = {
    "turns": lambda: several([lambda age=age: turn_of_age(age) for age in AGES]),
    "tools": lambda: several([lambda steps=steps: turn_with_tools(steps) for steps in STEPS]),
    "totals": lambda: several([lambda turns=turns: many_turns(turns) for turns in TOTALS]),
    "plan": lambda: several([lambda count=count: planned(count) for count in PLANNED]),
    "render": lambda: several([lambda: rendered(more=False), lambda: rendered(more=True)]),
    "checkpoints": saved_and_loaded,
}


def main(arguments: list[str]) -> int:
    names = arguments or list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        Console(stderr=True).print(f"there is no row {unknown[0]!r}; the rows are {', '.join(GROUPS)}")
        return 2
    table = Table(title="What a turn costs (CPU)", title_justify="left")
    for name in ("what", "ms", "floor: json, ms", "ratio"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for name in track(names, console=Console(stderr=True), description="measuring", transient=True):
        for row in asyncio.run(GROUPS[name]()):
            table.add_row(*row)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
