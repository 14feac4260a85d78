"""The chain: one rewrite a pass, whatever fails, and never for ever."""

import pytest

from loom.core.log import Replacement
from loom.core.message import Message
from loom.errors import CannotCompact
from loom.protocols.compactor import Rewrite
from loom.session.compaction.driver import build
from loom.session.compaction.strategies import FAILURES, REST, Chain, ClearTools, Snapshot, Truncate
from loom.session.compaction.summarize import Summarize
from loom.session.config import ClearToolsOptions, CompactionConfig
from loom.text.tokens import EstimateCounter
from tests.session.histories import ScriptedAsk, check_laws, long_round, shown_from, tokens

pytestmark = pytest.mark.anyio
COUNTER = EstimateCounter()
LARGE = shown_from(long_round(60, size=4000))


async def passed(chain, shown, share=0.5, keep=frozenset()):
    target = int(tokens(shown, COUNTER) * share)
    found = await chain.compact(shown, target=target, counter=COUNTER, keep=keep)
    check_laws(shown, found, target=target, counter=COUNTER, keep=keep)
    return found


async def test_clearing_is_enough_where_it_reaches_the_target_and_nobody_is_asked():
    ask = ScriptedAsk()
    found = await passed(build(CompactionConfig(), ask=ask), LARGE)
    assert found.strategy == "clear_tools"
    assert ask.asked == []


async def test_where_clearing_is_not_enough_the_summary_is_made_of_what_was_really_said():
    ask = ScriptedAsk()
    found = await passed(build(CompactionConfig(), ask=ask), LARGE, share=0.05)
    assert found.strategy == "summarize"
    assert found.failures[0].startswith("clear_tools: clearing")
    ((history, _, _),) = ask.asked
    assert history == LARGE[: len(history)], "the prefix that was sent before, nothing cleared in it"
    assert len([r for r in found.replacements if r.message]) == 1, "one rewrite, one cache reset"


async def test_clearing_can_be_switched_off():
    config = CompactionConfig(clear_tools=ClearToolsOptions(enabled=False), strategy="truncate")
    assert (await passed(build(config), LARGE)).strategy == "truncate"


async def test_strategies_are_tried_in_order_and_truncation_comes_last():
    config = CompactionConfig(strategy=("summarize", "snapshot"), clear_tools=ClearToolsOptions(enabled=False))
    found = await passed(build(config, ask=ScriptedAsk("rate limit")), LARGE)
    assert found.strategy == "snapshot"
    assert found.failures == ("summarize: RateLimited: wait",)
    alone = CompactionConfig(clear_tools=ClearToolsOptions(enabled=False))
    for fault in ("rate limit", "overflow", "empty", "longer", "tool call", "crash"):
        found = await passed(build(alone, ask=ScriptedAsk(fault)), LARGE)
        assert found.strategy == "truncate", fault


class Own:
    """A compactor of somebody else's, which proposes what it is given."""

    name = "own"

    def __init__(self, *replacements):
        self.replacements = replacements

    async def compact(self, shown, *, target, counter, keep=frozenset()):
        return Rewrite(replacements=self.replacements)


@pytest.mark.parametrize(
    ("replacements", "reason"),
    [
        ((), "tokens and the target is"),
        ((Replacement(tuple(i.id for i in LARGE), Message.user("all")),), "covers m0, which must stay"),
        ((Replacement(tuple(i.id for i in LARGE[2:]), None),), "without its result"),
        ((Replacement(tuple(i.id for i in LARGE[1:2]) + tuple(i.id for i in LARGE[3:]), None),), "does not fit"),
        ((Replacement(tuple(i.id for i in LARGE[1:]), Message.user("x " * 90_000)),), "tokens and the target is"),
    ],
)
async def test_a_rewrite_that_breaks_a_law_is_refused(replacements, reason):
    found = await passed(Chain([Own(*replacements)]), LARGE)
    assert found.strategy == "truncate"
    assert reason in found.failures[0]


async def test_a_compactor_of_your_own_plugs_in():
    own = Own(Replacement(tuple(item.id for item in LARGE[1:]), Message.user("all of it")))
    config = CompactionConfig(strategy=own, clear_tools=ClearToolsOptions(enabled=False))
    found = await passed(build(config), LARGE)
    assert found.strategy == "own"
    assert build(config).name == "own"


async def test_where_nobody_can_every_reason_is_given_once():
    shown = shown_from([Message.user("word " * 9000)])
    chain = Chain([Truncate(), Snapshot()], cheap=ClearTools())
    with pytest.raises(CannotCompact) as error:
        await chain.compact(shown, target=100, counter=COUNTER)
    assert error.value.reason.count("truncate:") == 1
    assert "snapshot:" in error.value.reason
    assert "clear_tools:" in error.value.reason


async def test_a_strategy_that_keeps_failing_rests_and_is_tried_again():
    ask = ScriptedAsk("rate limit")
    chain = Chain([Summarize(ask)])
    for number in range(1, FAILURES + REST):
        found = await passed(chain, LARGE)
        assert found.strategy == "truncate", "truncation never rests"
        assert len(ask.asked) == min(number, FAILURES)
    found = await passed(chain, LARGE)
    assert found.failures == ("summarize rests after 3 failures in a row",)
    await passed(chain, LARGE)
    assert len(ask.asked) == FAILURES + 1, "half open: one try"
    await passed(chain, LARGE)
    assert len(ask.asked) == FAILURES + 1, "which failed, so it rests again"
    ask.fault = "none"
    strategies = [(await passed(chain, LARGE)).strategy for _ in range(REST + 3)]
    assert strategies == ["truncate"] * (REST - 1) + ["summarize"] * 4, "closed again"


async def test_having_no_room_does_not_count_as_a_failure():
    ask = ScriptedAsk()
    chain = Chain([Summarize(ask)])
    small = shown_from([Message.user("w " * 40), Message.assistant("w " * 40), Message.user("go on")])
    for _ in range(FAILURES + 1):
        found = await passed(chain, small, share=0.3)
        assert "tokens are left for a summary" in found.failures[0]
