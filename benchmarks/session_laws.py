"""Random histories through whole sessions: run `python -m benchmarks.session_laws [histories]`.

Each history goes to each strategy in a session of its own, with a random provider, window, pins and store, and a fault
in the model (rate limit, overflow, empty summary, a summary longer than its input, ...) or in the store (a crash at a
random step, after which another session restores). Checked every time: no call without its result in any request,
the current request and pins verbatim, the target reached or CannotCompact, every original recoverable, undo
byte-identical, events in order, and that the session goes on afterwards. A broken law ends the run with its seed.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import anyio
from rich.console import Console
from rich.progress import track
from rich.table import Table

from loom.core.log import CompactionEnd, CompactionStart, Event, Shown
from loom.core.message import Message, ToolCallPart, ToolSpec
from loom.errors import CannotCompact, ContextOverflow, LoomError, StoreUnavailable, UsageError
from loom.protocols.model import ModelRequest
from loom.session.history import has_content
from loom.session.session import Session
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import FakeClock, ScriptedModel
from tests.session.histories import FAULTS, check_pairs, last_request, random_messages, results_for

STRATEGIES = ("summarize", "truncate", "sliding_window", "hierarchical", "snapshot", "clear_tools")
MODELS = ("anthropic:claude-opus-5-5", "openai:gpt-6-sol", "gemini:gemini-3-pro", "scripted:model")
_ASKS = "The conversation pauses here"


class Tool:
    """Answers every call of the histories."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name, "A tool.", {"type": "object"})

    async def run(self, input: Any) -> str:
        """Say what it got."""
        return f"result of {input}"


class Crashing(MemoryCheckpointStore):
    """A store whose n-th save fails: before anything is written, or after, when nobody hears of it any more."""

    def __init__(self, at: int, *, written: bool) -> None:
        super().__init__()
        self.left = at
        self.written = written

    async def save(self, *args: Any, **kwargs: Any) -> None:
        """Save, or fail."""
        self.left -= 1
        if self.left:
            return await super().save(*args, **kwargs)
        if self.written:
            await super().save(*args, **kwargs)
        raise StoreUnavailable("crashed")


async def run(count: int) -> Counter[tuple[str, str]]:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in track(range(count), description="histories", console=Console(stderr=True), transient=True):
        for strategy in STRATEGIES:
            try:
                seen[strategy, await one(seed, strategy)] += 1
            except Exception as error:
                error.add_note(f"history {seed}, strategy {strategy}")
                raise
    return seen


async def one(seed: int, strategy: str) -> str:
    """One history through one session; returns how the compaction ended."""
    rng = random.Random(f"{seed} {strategy}")
    messages = [m for m in random_messages(random.Random(seed)) if has_content(m)]
    store = Crashing(rng.randint(1, 5), written=rng.random() < 0.5) if rng.random() < 0.3 else MemoryCheckpointStore()
    fault = rng.choice(list(FAULTS)) if rng.random() < 0.6 else "none"
    model = ScriptedModel(lambda r: answer(r, fault), name=rng.choice(MODELS), context_window=1_000_000)
    session = session_of(model, strategy, store)
    try:
        return await lives(session, messages, rng)
    except StoreUnavailable:
        await restored(session, model, strategy, store)
        return "crashed"


def answer(request: ModelRequest, fault: str) -> Any:
    if _ASKS in request.messages[-1].text:
        return FAULTS[fault](request.messages, 1000)  # type: ignore[arg-type]
    return "Understood."


def session_of(model: ScriptedModel, strategy: str, store: MemoryCheckpointStore) -> Session:
    tools = [Tool(name) for name in ("read_file", "search", "run", "weather")]
    config = {"compaction": {"strategy": strategy}}
    return Session(
        model=model, config=config, tools=tools, checkpoints=store, session_id="s", instructions="Be kind.",
        clock=FakeClock(),
    )  # fmt: skip


async def lives(session: Session, messages: list[Message], rng: random.Random) -> str:
    heard: list[Event] = []
    session.subscribe(heard.append)
    for message in messages:
        session._history.append(message)
    await session.checkpoint()
    before, shown = rendered(session), session.shown
    request = last_request(shown)
    closed = not results_for(shown)
    pins = rng.sample([item.id for item in shown], min(len(shown), rng.choice((0, 0, 1, 2))))
    for id in pins:
        with suppress(UsageError):  # bound thinking cannot be pinned
            session.pin(id)
    pins = list(session._history.pins)
    try:
        compaction = await session.compact()
    except CannotCompact:
        assert rendered(session) == before, "a failed compaction changed what is shown"
        check_events(heard)
        outcome = "cannot"
    else:
        if compaction is None:
            assert rendered(session) == before, "a history within what is retained was changed"
            return "within"
        outcome = compaction.strategy
        assert compaction.tokens_after < compaction.tokens_before
        check_shown(session, {request.id if request else "", *pins} - {""}, shown)
        check_events(heard)
        check_request(session)
        await session.undo(compaction.id)
        assert rendered(session) == before, "undo is not byte-identical"
        assert session.shown == shown
        if rng.random() < 0.5:  # and once more, to go on with a compacted history
            await compact_again(session)
    if closed:
        await session.send("Go on, please.")
        check_request(session)
    return outcome


async def compact_again(session: Session) -> None:
    try:
        await session.compact()
    except CannotCompact:
        return


def check_shown(session: Session, keep: set[str], shown: tuple[Shown, ...]) -> None:
    now = {item.id: item for item in session.shown}
    for item in shown:
        assert item.id not in keep or now.get(item.id) == item, f"{item.id} is not shown as it was"
    behind = [m.id for item in session.shown for m in session.expand(item.id)]
    gone = {id for r in session.compactions[-1].replacements if r.message is None for id in r.covers}
    dropped = [m.id for id in gone for m in session.expand(id)]
    assert sorted(behind + dropped) == sorted(m.id for m in session.log), "an original cannot be recovered"
    session.coverage()


def check_request(session: Session) -> None:
    """Nothing the provider gets holds a call without its result, or a result without its call."""
    request = session._parts.model.request(session.context.compile(clear_volatile=False))
    if not request.messages:  # a call alone waits for its result; nothing would be sent
        return
    waiting = any(isinstance(part, ToolCallPart) for part in request.messages[-1].parts)
    assert not waiting, "a request ends with an open call"
    check_pairs([Shown(str(n), message) for n, message in enumerate(request.messages)])


def check_events(heard: list[Event]) -> None:
    kinds = [type(e) for e in heard if isinstance(e, CompactionStart | CompactionEnd)]
    assert kinds == [CompactionStart, CompactionEnd]
    assert [e.seq for e in heard] == list(range(len(heard)))
    end = heard[[type(e) for e in heard].index(CompactionEnd)]
    assert isinstance(end, CompactionEnd)
    assert (end.undo is None) == (end.error is not None)


async def restored(session: Session, model: ScriptedModel, strategy: str, store: MemoryCheckpointStore) -> None:
    """After a crash another session goes on from what is durable: a state the first one had, whole."""
    other = session_of(model, strategy, store)
    log = [entry.id for entry in session.log]
    try:
        await other.restore()
    except LoomError:
        assert not await store.list(session.scope), "a checkpoint does not load"
        return
    assert [m.id for m in other.log] == log[: len(other.log)]
    check_request(other) if not results_for(other.shown) else None
    try:
        await other.send("Go on, please.")
    except ContextOverflow:
        return
    check_request(other)


def rendered(session: Session) -> str:
    request = session._parts.model.request(session.context.compile(clear_volatile=False))
    assert request.rendered is not None
    return json.dumps(request.rendered.body, sort_keys=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    began = time.process_time()
    seen = anyio.run(run, count)
    outcomes = sorted({outcome for _, outcome in seen})
    table = Table("strategy", *outcomes, title=f"{count:,} histories, {sum(seen.values()):,} sessions, no law broken")
    for strategy in STRATEGIES:
        table.add_row(strategy, *(f"{seen[strategy, outcome]:,}" for outcome in outcomes))
    Console().print(table, f"{time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
    main()
