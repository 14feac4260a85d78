"""What people get wrong when they make and use a session, and what it says."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from loom import Session, SqliteCheckpointStore, open_memory_sync
from loom.context.context import Context
from loom.errors import StoreConflict, StoreUnavailable, UsageError
from loom.stores.inmemory.checkpoints import MemoryCheckpointStore
from loom.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "value", "opener"),
    [
        ("model", "anthropic:claude-sonnet-5", "open_model"),
        ("provider", 5, "open_model"),
        ("checkpoint", "sqlite:./s.db", "open_checkpoints"),
        ("checkpoint", Path("s.db"), "open_checkpoints"),
        ("memory", "inmemory", "open_memory"),
        ("memory", {"backend": "inmemory"}, "open_memory"),
    ],
)
def test_a_name_is_refused_at_once_with_who_opens_it(name: str, value: Any, opener: str) -> None:
    context = Context("mine")
    given: dict[str, Any] = {"model": ScriptedModel(), "instructions": "Be kind.", "context": context, name: value}
    if name == "provider":
        del given["model"]
    with pytest.raises(UsageError, match=rf"={opener}\(\.\.\.\), with `from loom import {opener}`"):
        Session(**given)
    assert not list(context.foundation), "nothing was made of it"


def test_a_blocking_memory_is_none_for_a_session() -> None:
    with open_memory_sync("inmemory") as memory, pytest.raises(UsageError, match="is not a Memory"):
        Session(model=ScriptedModel(), memory=memory)  # type: ignore[arg-type]


async def test_a_script_that_runs_twice_is_stopped_before_the_model_is_asked(tmp_path: Path) -> None:
    async def script(model: ScriptedModel) -> None:
        store = SqliteCheckpointStore(tmp_path / "s.db")
        try:
            await Session(model=model, checkpoints=store, session_id="quiz").send("The capital of France?")
        finally:
            await store.aclose()

    first, second = ScriptedModel(["Paris."]), ScriptedModel(["Paris."])
    await script(first)
    with pytest.raises(StoreConflict, match="'quiz' already exists; restore"):
        await script(second)
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_a_first_turn_whose_save_was_lost_on_its_way_back_goes_on() -> None:
    class Lossy(MemoryCheckpointStore):
        lost = False

        async def save(self, *args: Any, **options: Any) -> None:
            await super().save(*args, **options)
            if not self.lost:
                self.lost = True
                raise StoreUnavailable("the answer was lost")

    session = Session(model=ScriptedModel(["One.", "Two."]), checkpoints=Lossy(), session_id="s")
    with pytest.raises(StoreUnavailable):
        await session.send("First?")
    await session.send("Second?")
    assert [message.text for message in session.messages] == ["First?", "One.", "Second?", "Two."]


def _dropped(session: Session) -> None:
    session.send("hi")
    gc.collect()


async def test_a_message_that_nobody_awaits_is_warned_of() -> None:
    session = Session(model=ScriptedModel(["ok"] * 3))
    with pytest.warns(RuntimeWarning, match=r"session\.send\(\) was never awaited, so nothing was sent"):
        _dropped(session)
    assert session.log == ()


async def test_a_message_that_was_awaited_read_or_closed_is_not_warned_of() -> None:
    session = Session(model=ScriptedModel(["ok"] * 3))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        await session.send("awaited")
        async for _ in session.send("read"):
            pass
        await session.send("closed").aclose()
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


async def test_a_dry_run_says_who_comes_next_where_the_model_writes_no_summary() -> None:
    session = Session(model=ScriptedModel(["A plain answer. " * 40] * 8))  # and none for a summary
    for n in range(8):
        await session.send(f"question {n} " * 30)
    plan = await session.compact(dry_run=True)
    assert (plan.strategy, plan.fallback) == ("summarize", "truncate")
    assert str(plan).endswith("; truncate instead, if the summary fails or is too long")
    done = await session.compact()
    assert done.strategy == "truncate"


@pytest.mark.parametrize("strategy", ["truncate", "sliding_window", "snapshot", ("snapshot", "sliding_window")])
@pytest.mark.parametrize("turns", [5, 8])
async def test_without_a_summary_a_dry_run_names_who_does_it(strategy: Any, turns: int) -> None:
    session = Session(model=ScriptedModel(lambda _: "ok " * 30), config={"compaction": {"strategy": strategy}})
    for n in range(turns):
        await session.send(f"question {n} " * 30)
    plan = await session.compact(dry_run=True)
    assert plan.fallback is None
    done = await session.compact()
    assert (plan.strategy, plan.tokens_after) == (done.strategy, done.tokens_after)


@pytest.mark.parametrize("twice", [{"provider": ScriptedModel([])}, {"checkpoint": MemoryCheckpointStore()}])
def test_one_thing_under_two_names_is_refused(twice: dict[str, Any]) -> None:
    given: dict[str, Any] = {"model": ScriptedModel([]), "checkpoints": MemoryCheckpointStore()}
    with pytest.raises(UsageError, match="give one name"):
        Session(**given, **twice)
