"""The laws of the proxy: never dearer than direct traffic, nothing rewritten that was sent, nothing touched unasked.

Each on random traces; `benchmarks/proxy.py` runs a thousand of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.proxy import (
    CHOICES,
    Passed,
    agent_trace,
    any_call,
    as_sent,
    chain_of,
    chat_trace,
    cost,
    excess,
    is_passed_whole,
    lawful,
    pass_on,
    simulated,
    unmarked_agent,
)
from benchmarks.proxy_traces import Sent, random_trace
from loom import Scope, open_checkpoints
from loom.catalog import find_model
from loom.context.cache.simulate import MarkerCache
from loom.server.proxy import Features
from loom.server.proxy.edits import WIRES, RequestText
from loom.server.proxy.features import read_result
from loom.server.proxy.ledger import CostLedger, Places
from tests.server.proxying import proxied, raw_provider

pytestmark = pytest.mark.anyio

TRACES = int(os.environ.get("LOOM_PROXY_TRACES", "12"))
ALL: Any = {"markers": True, "shorten_tools": True, "compact": 12_000}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# The law of cost.


@pytest.mark.parametrize("name", CHOICES)
async def test_no_conversation_is_ever_dearer_than_direct_traffic(name: str) -> None:
    done = await lawful(name, range(2_000, 2_000 + TRACES))
    assert (done.over, done.read_less) == (0, 0)
    if name == "--memory":
        assert done.added > 0
        assert done.share <= 1.0
    else:
        assert done.share < 1.0


async def test_an_entry_of_an_earlier_request_is_not_given_up_by_one_that_does_not_read_it() -> None:
    passed = await pass_on(
        random_trace(19), Features(compact=15_000)
    )  # a request without markers between two with some
    assert any("compacted" in one.prepared.record for one in passed)
    assert excess(passed) <= 1e-6


async def test_the_law_can_be_broken_so_the_check_of_it_can_fail() -> None:
    """A marker on the first request of a conversation that ends there costs more; the check says so."""
    (only,) = await pass_on(chat_trace(1, 1), Features(markers=True))
    body = json.loads(only.sent.body)
    body["system"] = [{"type": "text", "text": body["system"], "cache_control": {"type": "ephemeral"}}]
    only.prepared.body = json.dumps(body).encode()
    assert excess([only]) > 500


async def test_without_anything_saved_no_marker_is_bought_and_the_record_says_why() -> None:
    passed = await pass_on(chat_trace(3, 6), Features(markers=True))
    assert [one.prepared.body for one in passed] == [one.sent.body for one in passed]
    reasons = [one.prepared.record["left_out"]["markers"] for one in passed]  # type: ignore[index,call-overload]
    assert reasons[0] == "it is the first request, and nothing shows that another one comes"
    assert "tokens more now, and 0 were saved before" in str(reasons[1])


async def test_an_advance_buys_markers_and_bounds_the_loss() -> None:
    long, short = chat_trace(3, 12), chat_trace(3, 2)
    passed = await pass_on(long, Features(markers=True, advance=5_000))
    assert cost(passed, ours=True) < 0.35 * cost(passed, ours=False)
    lost = await pass_on(short, Features(markers=True, advance=5_000))
    assert 0 < excess(lost) <= 5_000
    too_little = await pass_on(long, Features(markers=True, advance=100))
    assert excess(too_little) <= 100


async def test_an_advance_is_one_for_all_conversations_of_a_user() -> None:
    trace = [
        Sent(one.at + n, one.path, one.upstream, f"s{n}", one.body.replace(b"claude", b"claude"))
        for n in range(20)
        for one in chat_trace(50 + n, 2)
    ]
    passed = await pass_on(trace, Features(markers=True, advance=3_000))
    assert 0 < excess(passed) <= 3_000


async def test_what_shortening_saves_pays_for_markers() -> None:
    trace = unmarked_agent()
    passed = await pass_on(trace, Features(markers=True, shorten_tools=True))
    assert excess(passed) <= 1e-6
    assert cost(passed, ours=True) < 0.08 * cost(passed, ours=False)
    marked = [one for one in passed if one.prepared.record.get("markers")]
    assert len(marked) > 20
    assert all(one.prepared.body.count(b"cache_control") <= 4 for one in passed)


async def test_an_entry_out_of_reach_is_read_with_a_marker_that_costs_nothing() -> None:
    """Thirty blocks between two marked ends: Anthropic looks back twenty."""
    bodies = agent_trace(requests=2)
    for n, body in enumerate(bodies):
        texts = [{"type": "text", "text": f"note {i}"} for i in range(30)]
        last = body["messages"][-1]["content"]
        body["messages"][-1]["content"] = [*texts, *last] if n else last
        del body["system"][-1:]
    passed = await pass_on(as_sent(bodies[:2]), Features(markers=True))
    direct, ours = simulated(passed, ours=False).steps[1], simulated(passed, ours=True).steps[1]
    assert ours.read > direct.read
    assert ours.cost < direct.cost


async def test_a_request_that_failed_buys_nothing_and_earns_nothing() -> None:
    trace = unmarked_agent()
    failed = [Sent(s.at, s.path, s.upstream, s.session, s.body, is_answered=False) for s in trace]
    passed = await pass_on(failed, Features(markers=True, shorten_tools=True))
    assert not any(one.prepared.record.get("markers") for one in passed)
    assert any(one.prepared.record.get("shortened") for one in passed)


def test_a_ledger_sets_aside_what_only_direct_traffic_keeps_alive() -> None:
    """A deeper read does not refresh the entry before it: what missing that would cost is not spent."""
    rules = find_model("claude-sonnet-5").cache
    bodies = agent_trace(requests=3)
    chains = [
        chain_of(Passed(one, None), ours=False)  # type: ignore[arg-type]
        for one in as_sent(bodies)
    ]
    ledger = CostLedger(rules)
    places = Places(range(len(chains[0].blocks)))
    ledger.commit(chains[0], chains[0], places)
    assert ledger.saved == 0
    assert isinstance(ledger.ours, MarkerCache)
    gone = Places([None] * len(chains[1].blocks))
    weighed = ledger.weigh(chains[1], chains[1], gone)
    assert weighed.extra == 0
    assert weighed.at_risk
    assert not ledger.allows(weighed, chains[1].at or 0)
    kept = Places(range(len(chains[1].blocks)))
    assert ledger.allows(ledger.weigh(chains[1], chains[1], kept), chains[1].at or 0)


# What was sent before is not rewritten.


@pytest.mark.parametrize("seed", range(300, 300 + TRACES))
async def test_what_was_sent_before_is_not_rewritten_but_by_a_compaction_that_says_so(seed: int) -> None:
    passed = await pass_on(random_trace(seed), Features(**ALL))
    for before, after in pairwise(passed):
        old, new = _digests(before, ours=False), _digests(after, ours=False)
        if before.sent.session != after.sent.session or before.model != after.model or new[: len(old)] != old:
            continue
        if before.prepared.record.get("compacted") != after.prepared.record.get("compacted"):
            names = dict(after.prepared.headers)
            assert names[b"x-loom-compacted"].endswith(after.prepared.record["compacted"]["id"].encode())  # type: ignore[index,call-overload,union-attr]
            continue
        sent = _digests(before, ours=True)
        assert _digests(after, ours=True)[: len(sent)] == sent


def _digests(one: Passed, *, ours: bool) -> list[str]:
    return RequestText.of(one.prepared.body if ours else one.sent.body, WIRES[one.sent.path]).digests


@pytest.mark.parametrize("seed", range(TRACES))
async def test_what_is_not_chosen_to_change_is_sent_byte_by_byte(seed: int) -> None:
    """Settings, tools, unknown fields, and every message but those that were shortened, summed up or marked."""
    for one in await pass_on(random_trace(seed), Features(**ALL)):
        came = RequestText.of(one.sent.body, WIRES[one.sent.path])
        went = RequestText.of(one.prepared.body, WIRES[one.sent.path])
        name = "input" if one.sent.path == "/v1/responses" else "messages"
        assert list(went.fields) == list(came.fields)
        for field in set(came.fields) - {name, "system"}:
            assert _raw(went, field) == _raw(came, field)
        if not one.prepared.record.get("compacted"):
            for old, new in zip(came.messages, went.messages, strict=True):
                is_result = (
                    "tool_result" in str(old.value) or "_output" in str(old.value) or "tool_call_id" in old.value
                )
                if not is_result and "cache_control" not in str(new.value):
                    assert came.slice(old.start, old.end) == went.slice(new.start, new.end)


def _raw(request: RequestText, name: str) -> str:
    node = request.fields[name]
    return request.text[node.start : node.end]


@pytest.mark.parametrize("seed", range(TRACES))
async def test_calls_and_results_stay_together_through_a_compaction(seed: int) -> None:
    for one in await pass_on(random_trace(seed), Features(compact=6_000)):
        text = one.prepared.body.decode()
        calls = RequestText.of(one.prepared.body, WIRES[one.sent.path]).calls()
        results = [r.call_id for r in RequestText.of(one.prepared.body, WIRES[one.sent.path]).result_texts()]
        assert set(results) <= set(calls), text[:200]
        direct = RequestText.of(one.sent.body, WIRES[one.sent.path])
        users = [direct.words(i) for i in range(len(direct.messages)) if direct.is_users(i)]
        sent = RequestText.of(one.prepared.body, WIRES[one.sent.path])
        assert users[-1] in [sent.words(i) for i in range(len(sent.messages)) if sent.is_users(i)]


# Long results.


async def test_every_shortened_result_can_be_read_back_whole_and_costs_little() -> None:
    store = open_checkpoints("inmemory")
    trace = as_sent(agent_trace())
    passed = await pass_on(trace, Features(shorten_tools=True), store=store)
    assert cost(passed, ours=True) < 0.40 * cost(passed, ours=False)
    last = RequestText.of(passed[-1].prepared.body, "messages")
    whole = {one.call_id: one.text for one in RequestText.of(passed[-1].sent.body, "messages").result_texts()}
    short = [one for one in last.result_texts() if one.text != whole[one.call_id]]
    assert len(short) >= 20
    for one in short:
        id = one.text.rpartition("loom proxy read ")[2].split()[0]
        assert await read_result(store, Scope("default", "ann"), id) == whole[one.call_id]
    await store.aclose()


async def test_results_that_were_sent_whole_stay_whole() -> None:
    trace = as_sent(agent_trace())
    late: Sequence[Sent] = trace[10:]
    passed = await pass_on(late, Features(shorten_tools=True))
    first = RequestText.of(trace[10].body, "messages")
    old = {one.call_id for one in first.result_texts() if one.message < first.new_from()}
    for one in passed:
        for result in RequestText.of(one.prepared.body, "messages").result_texts():
            if result.call_id in old:
                assert "[loom:" not in result.text
    assert "[loom:" in passed[-1].prepared.body.decode()


# With nothing chosen, any call at all.


def test_with_nothing_chosen_every_byte_goes_through() -> None:
    with raw_provider() as provider:
        upstreams = dict.fromkeys(("anthropic", "openai", "other"), provider.url)
        with proxied(upstreams, features=Features()) as address:
            changed = [seed for seed in range(500) if not is_passed_whole(any_call(seed), provider, address)]
    assert changed == []
