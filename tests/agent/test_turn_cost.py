"""What a turn of an agent does in its store is the same at any age of the user and of the conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from loom import Agent, open_memory
from loom.core import threads
from loom.stores.sqlite import records
from loom.stores.sqlite.file import SqliteFile
from loom.testing import FakeClock, ScriptedModel

pytestmark = pytest.mark.anyio
USER = "ann"
TURNS = ("The boat was late today.", "A grey pier, and rain.", "My train left at noon.", "We ate soup in town.")
"""Of different things: nothing is recalled often enough to move."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the views, the commits, the threads that work is handed to, and the rows that are listed."""
    counted = Counter[str]()

    def counting(name: str, call: Any) -> Any:
        def counts(*given: Any, **named: Any) -> Any:
            counted[name] += 1
            return call(*given, **named)

        return counts

    monkeypatch.setattr(SqliteFile, "view", counting("views", SqliteFile.view))
    monkeypatch.setattr(SqliteFile, "commit", counting("commits", SqliteFile.commit))
    monkeypatch.setattr(threads.to_thread, "run_sync", counting("hops", threads.to_thread.run_sync))
    monkeypatch.setattr(to_thread, "run_sync", counting("hops", to_thread.run_sync))
    monkeypatch.setattr(records, "from_row", counting("rows", records.from_row))
    return counted


async def _user(url: str, turns: int, *, settled: bool = True, at_once: int = 20) -> None:
    async with open_memory(url, facts="rules", clock=FakeClock()) as memory:
        for start in range(0, turns, at_once):
            said = [f"Note {n}: the boat number {n} left the pier." for n in range(start, min(start + at_once, turns))]
            await memory.remember(said, user_id=USER, session_id=f"old{start}")
        if settled:
            while (await memory.metabolize(user_id=USER)).jobs > 10:
                pass


async def _last(url: str, done: Counter[str], turns: Sequence[str] = TURNS) -> Counter[str]:
    """What the last turn of a conversation does."""
    # With a clock that stands still: once a second, a memory looks whether the clock of another process is ahead.
    async with Agent(model=ScriptedModel(lambda _: "I see."), memory=url, facts="rules", clock=FakeClock()) as agent:
        for text in turns:
            done.clear()
            await agent.run(text, user_id=USER, session_id="now")
        return Counter(done)


async def test_a_turn_reads_and_commits_the_same_however_much_is_remembered(tmp_path: Path, done: Counter[str]) -> None:
    found = list[Counter[str]]()
    for size in (30, 10_000):
        url = f"sqlite:{tmp_path / f'{size}.db'}"
        await _user(url, size, at_once=500)
        found.append(await _last(url, done))
    hops = [counted.pop("hops", 0) for counted in found]
    small, large = found
    assert max(large["rows"], small["rows"]) <= 20, "what the turn before wrote, and what it moved"
    assert large["views"] == small["views"]
    assert large["views"] == 4, "the newest checkpoint, what every turn is shown, recall, the layers before the write"
    assert max(hops) <= large["views"] + 2, "and to compare many texts with a statement, and to compile rules once"
    assert large["commits"] == 2, "the conversation, and what memory makes of the turn: text, keys, vectors, layers"


async def test_a_turn_reads_and_commits_the_same_however_long_the_conversation_is(
    tmp_path: Path, done: Counter[str]
) -> None:
    url = f"sqlite:{tmp_path / 'long.db'}"
    await _user(url, 30)
    at: dict[int, Counter[str]] = {}
    async with Agent(model=ScriptedModel(lambda _: "I see."), memory=url, facts="rules", clock=FakeClock()) as agent:
        for turn in range(1, 601):
            done.clear()
            await agent.run(TURNS[turn % 4], user_id=USER, session_id="now")
            at[turn] = Counter(done)
    # Jobs in the background may read beside a turn: the least of five turns is what a turn itself does.
    early, late = (
        {name: min(at[turn][name] for turn in range(last - 4, last + 1)) for name in done} for last in (12, 600)
    )
    assert early["views"] == late["views"] == 4
    assert early["commits"] == late["commits"] == 2
    assert abs(late["rows"] - early["rows"]) <= 10, "the layer that grows has ten records"


async def test_a_new_user_reads_little_more_while_nothing_can_be_recalled(tmp_path: Path, done: Counter[str]) -> None:
    turn = await _last(f"sqlite:{tmp_path / 'new.db'}", done)
    assert turn["commits"] == 2
    assert turn["views"] <= 7, "episodes of sessions, facts and blocks, and whether anything fits the filter"


async def test_a_turn_makes_no_record_of_its_layers_twice(tmp_path: Path, done: Counter[str]) -> None:
    url = f"sqlite:{tmp_path / 'again.db'}"
    await _user(url, 400)
    turn = await _last(url, done, TURNS * 3)
    assert turn["rows"] <= 20, "what the turn before wrote, and what it moved: two layers hold sixty records"


async def test_the_first_turn_after_an_import_leaves_the_backlog_alone(tmp_path: Path, done: Counter[str]) -> None:
    first = dict[int, Counter[str]]()
    for size in (500, 2_000):
        url = f"sqlite:{tmp_path / f'{size}.db'}"
        await _user(url, size, settled=False, at_once=100)
        first[size] = await _last(url, done, TURNS[:1])
        assert first[size]["commits"] == 2
        async with open_memory(url, clock=FakeClock()) as memory:
            while (await memory.metabolize(user_id=USER)).jobs > 10:
                pass
            assert (await memory.stats(user_id=USER))["L1"] == memory.config.l1.capacity, "the jobs made room"
    assert first[2_000]["rows"] == first[500]["rows"] <= 400, "of what waits, only the newest are looked at"


async def test_a_turn_that_brings_records_back_commits_no_more(tmp_path: Path, done: Counter[str]) -> None:
    url = f"sqlite:{tmp_path / 'asked.db'}"
    await _user(url, 60)
    async with open_memory(url) as memory:
        before = await memory.stats(user_id=USER)
    commits = list[int]()
    async with Agent(model=ScriptedModel(lambda _: "I see."), memory=url, facts="rules") as agent:
        for _ in range(6):
            done.clear()
            await agent.run("Where did the boat number 7 go?", user_id=USER, session_id="now")
            commits.append(done["commits"])
        assert agent.memory is not None
        after = await agent.memory.stats(user_id=USER)
    assert after["L2"] + after["L3"] > before["L2"] + before["L3"], "it was recalled often enough"
    assert commits == [2] * 6
