"""Timelines: exact, whatever a search would rank."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.core.filter import Eq
from loom.engine import open_memory
from loom.errors import UsageError
from loom.memory._write.ingest import Utterance
from loom.testing import FakeClock
from loom.text.words import query_terms, terms

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["inmemory", "sqlite"])
async def memory(request, tmp_path):
    where = "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/m.db"
    async with open_memory(where, embedder="hash", clock=FakeClock()) as opened:
        yield opened


def turn(text, day):
    return Utterance(text=text, at=START + day * DAY)


async def test_first_last_count_and_between(memory):
    talk = [turn("the boats are red", 5), turn("I bought a boat", 2), turn("a car", 3), turn("the boat sank", 9)]
    await memory.remember(talk, user_id="alice", session_id="s1")
    await memory.remember("a boat of somebody else", user_id="bob")
    found = await memory.timeline(user_id="alice", about="my boat")
    assert [event.record.text for event in found] == ["I bought a boat", "the boats are red", "the boat sank"]
    assert (found.first.at, found.last.at) == (START + 2 * DAY, START + 9 * DAY)
    assert found.count == len(found) == 3
    inside = found.between(START + 2 * DAY, START + 9 * DAY)
    assert [event.record.text for event in inside] == ["I bought a boat", "the boats are red"]
    assert inside.between(start=START + 3 * DAY).count == 1
    assert found.between(end=START).first is None
    assert (await memory.timeline(user_id="alice", about="red boat")).count == 1, "all words have to be there"
    assert (await memory.timeline(user_id="alice")).count == 4
    assert (await memory.timeline(user_id="alice", session_id="s2")).count == 0
    assert (await memory.timeline(user_id="alice", where=Eq("session_id", "s1"), about="boat")).count == 3


async def test_it_counts_every_turn_once_whatever_became_of_it(memory):
    done = await memory.remember([f"we decided on boat {n}" for n in range(30)], user_id="alice", session_id="s")
    for _ in range(3):
        await memory.metabolize(user_id="alice")
    assert (await memory.stats(user_id="alice"))["archived"] > 0
    found = await memory.timeline(user_id="alice", about="boat")
    assert {event.record.id for event in found} == {e.id for e in done.kept}
    assert found.count == 30


async def test_facts_go_by_when_they_became_true(memory):
    await memory.assert_fact("user", "lives_in", "Oslo", user_id="alice", valid_from=START)
    await memory.assert_fact("user", "lives_in", "Rome", user_id="alice", valid_from=START + 9 * DAY)
    await memory.assert_fact("user", "works_at", "Acme", user_id="alice", valid_until=START)
    await memory.remember("I like Rome", user_id="alice")
    found = await memory.timeline(user_id="alice", kind="fact")
    assert [(event.at, event.record.object) for event in found] == [(START, "Oslo"), (START + 9 * DAY, "Rome")]
    assert (await memory.timeline(user_id="alice", kind=None, about="Rome")).count == 2
    assert (await memory.timeline(user_id="alice", about="Rome")).count == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    said=st.lists(
        st.lists(st.sampled_from(["boat", "boats", "sailing", "the", "red", "\u5bff\u53f8", "Anna's"]), min_size=1),
        min_size=1,
        max_size=12,
    ),
    about=st.lists(st.sampled_from(["boat", "sail", "the", "red", "\u5bff\u53f8", "anna"]), min_size=1, max_size=3),
)
async def test_it_agrees_with_looking_at_every_text(memory, said, about):
    await memory.forget(user_id="alice")
    texts = [" ".join(words) for words in said]
    await memory.remember(texts, user_id="alice", session_id="s")
    wanted = set(query_terms(" ".join(about)))
    expected = [text for text in texts if wanted <= set(terms(text))]
    found = await memory.timeline(user_id="alice", about=" ".join(about))
    assert sorted(event.record.text for event in found) == sorted(expected)


async def test_calls_that_mean_nothing_are_refused(memory):
    with pytest.raises(UsageError, match="no words"):
        await memory.timeline(user_id="alice", about="...")
    with pytest.raises(UsageError, match="kind"):
        await memory.timeline(user_id="alice", kind="block")
    with pytest.raises(UsageError, match="zone"):
        (await memory.timeline(user_id="alice")).between(datetime(2026, 1, 1))  # noqa: DTZ001
