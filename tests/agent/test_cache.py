"""Memory must not cost the prefix cache: the same conversation with and without it, replayed by the providers' rules."""

from __future__ import annotations

import pytest

from benchmarks.agent_cache import measure

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-4-5", "openai:gpt-5.1"])
async def test_memory_costs_the_cache_less_than_three_points_in_a_hundred_turns(model: str) -> None:
    row = await measure(model, turns=100, with_tools=True)
    assert row["off"]["share"] > 0.9
    assert row["on"]["tokens"] > row["off"]["tokens"], "memory was shown"
    assert row["points"] < 3


async def test_memory_that_stays_in_the_conversation_costs_it_nothing() -> None:
    row = await measure("anthropic:claude-opus-5-5", turns=25, with_tools=True)
    assert row["on"]["tokens"] > row["off"]["tokens"], "memory was shown"
    assert row["points"] < 1
