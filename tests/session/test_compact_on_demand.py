"""compact() on demand: what `retain` names stays, nothing is done where that is all, and no two requests meet."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loom import Context, Message, Session
from loom.core.log import Shown
from loom.core.message import TextPart, ThinkingPart, ToolResultPart
from loom.errors import CannotCompact
from loom.protocols.model import ModelRequest
from loom.session.compaction.summary_message import is_record
from loom.session.history import is_request
from loom.testing import ScriptedModel
from tests.session.histories import random_messages

pytestmark = pytest.mark.anyio

STRATEGIES = ("summarize", "truncate", "sliding_window", "hierarchical", "snapshot")
LONG = "The quick brown fox jumps over the lazy dog. " * 20
RETAINS: tuple[dict[str, Any], ...] = (
    {"type": "messages", "count": 0},
    {"type": "messages", "count": 2},
    {"type": "messages", "count": 6},
    {"type": "tokens", "count": 300},
    {"type": "fraction", "amount": 0.3},
)


def answers(request: ModelRequest) -> str:
    return "A summary: nothing was decided." if "pauses here" in request.messages[-1].text else f"ok {LONG[:200]}"


def session_of(strategy: str, messages: list[Message] | None = None, **compaction: Any) -> Session:
    context = Context("test")
    for message in messages or []:
        context.convo.add(message)
    config = {"compaction": {"strategy": strategy, **compaction}}
    model = ScriptedModel(answers, context_window=1_000_000, name="anthropic:claude-sonnet-4-5")
    return Session(model=model, config=config, context=context)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_conversation_within_retain_is_left_alone(strategy: str) -> None:
    session = session_of(strategy, retain={"type": "messages", "count": 6})
    assert await session.compact() is None, "nothing was said yet"
    for n in range(3):
        await session.send(f"question {n}")
    before, events = session.messages, []
    session.subscribe(events.append)
    assert await session.compact() is None
    assert (session.messages, session.compactions, events) == (before, (), [])
    plan = await session.compact(dry_run=True)
    assert (plan.goes, plan.saves, plan.calls) == ((), 0, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [10, 600])
async def test_the_newest_messages_stay_and_roles_take_turns(strategy: str, size: int) -> None:
    session = session_of(strategy, retain={"type": "messages", "count": 6})
    for n in range(10):
        await session.send(f"question {n} {LONG[:size]}")
    before = session.messages
    done = await session.compact()
    assert done is not None
    assert session.messages[-6:] == before[-6:]
    roles = [message.role for message in session.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
    assert await session.compact() is None, "all that is left is within retain"
    await session.send("and now?")
    assert [m.role for m in session._parts.model.request(session.context.compile()).messages][:2] == roles[:2]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_newest_answer_stays_even_where_nothing_is_retained(strategy: str) -> None:
    session = session_of(strategy, retain={"type": "messages", "count": 0})
    for n in range(4):
        await session.send(f"question {n}")
    newest = session.messages[-2:]
    assert await session.compact() is not None
    assert session.messages[-2:] == newest
    await session.send("and now?")
    requests = [m.text for m in session.messages if is_request(m)]
    assert requests == ["question 3", "and now?"]


async def test_a_newest_answer_that_has_no_room_is_an_error_and_nothing_changes() -> None:
    model = ScriptedModel(lambda _: LONG * 30, context_window=8_000)
    compaction = {"strategy": "truncate", "trigger": {"type": "disabled"}, "retain": {"type": "messages", "count": 2}}
    session = Session(model=model, config={"compaction": compaction})
    await session.send("tell me a story")
    await session.send("another one")
    before = session.messages
    with pytest.raises(CannotCompact):
        await session.compact()
    assert session.messages == before


def legal(seed: st.DataObject | Any) -> list[Message]:
    """A random history without messages that no provider takes."""

    def said(message: Message) -> Message:
        parts = tuple(TextPart("ok") if isinstance(p, TextPart) and not p.text.strip() else p for p in message.parts)
        return replace(message, parts=parts)

    return [said(message) for message in random_messages(seed)]


def without_thinking(message: Message) -> tuple[object, ...]:
    return tuple(part for part in message.parts if not isinstance(part, ThinkingPart))


def is_answer(message: Message) -> bool:
    return message.role == "assistant" and bool(message.text.strip())


def meetings(shown: tuple[Shown, ...] | list[Shown]) -> set[str]:
    """Requests that stand right behind another message of a user's."""
    pairs = pairwise(shown)
    return {b.id for a, b in pairs if is_request(b.message) and a.message.role == "user"}


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), retain=st.sampled_from(RETAINS))
@example(seed=1608, retain={"type": "messages", "count": 6})  # room for a glimpse only once a request was given up
async def test_random_histories(strategy: str, seed: int, retain: dict[str, Any]) -> None:
    session = session_of(strategy, legal(random.Random(seed)), retain=retain)
    before = session.shown
    try:
        done = await session.compact()
    except CannotCompact:
        assert session.shown == before
        return
    after = session.shown
    if done is None:
        assert after == before
        return
    kept = {item.id: item for item in after}
    if is_answer(before[-1].message):
        assert without_thinking(after[-1].message) == without_thinking(before[-1].message)
    if retain["type"] == "messages":
        _check_retained(before, kept, retain["count"], after)
    answered = {b.id for a, b in pairwise(before) if is_answer(a.message)}
    assert not meetings(after) & answered, "a request was glued to another message of the user's"
    await session.undo()
    assert session.shown == before


def _check_retained(before: tuple[Shown, ...], kept: dict[str, Shown], count: int, after: tuple[Shown, ...]) -> None:
    """The newest whole rounds within the count stand as they stood, but for thinking that is bound to what went."""
    # A request that also answers calls stands with those calls, so no whole round begins with it.
    own = [is_request(i.message) and not any(isinstance(p, ToolResultPart) for p in i.message.parts) for i in before]
    starts = [n for n, is_start in enumerate(own) if is_start and len(before) - n <= count]
    texts = [without_thinking(item.message) for item in after]
    for item in before[starts[0] :] if starts else ():
        if without_thinking(item.message):
            assert without_thinking(item.message) in texts, f"{item.id} is within retain"
    assert sum(is_record(item.message) for item in kept.values()) <= 1
    assert not any(isinstance(p, ToolResultPart) for p in after[0].message.parts)
