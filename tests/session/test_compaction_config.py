"""The configuration, the decisions that follow from it, and the compactor it builds."""

import math

import pytest

from loom.errors import UsageError
from loom.protocols.compactor import Compactor
from loom.session import compaction
from loom.session.compaction.driver import Load, build, decide
from loom.session.compaction.strategies import Chain, Truncate
from loom.session.compaction.summarize import ask_model
from loom.session.config import ClearToolsOptions, CompactionConfig, Retain, Trigger
from loom.text.tokens import EstimateCounter
from tests.session.histories import ScriptedAsk, answer, applied, long_round, shown_from, tokens

COUNTER = EstimateCounter()


def test_the_plain_dict_of_the_seed():
    config = CompactionConfig.of(
        {
            "trigger": {"type": "fraction", "threshold": 0.80},
            "retain": {"type": "messages", "count": 6},
            "strategy": "summarize",
        }
    )
    assert config == CompactionConfig() == CompactionConfig.of(None)
    assert CompactionConfig.of(config) is config


def test_every_setting_as_a_dict():
    own = Truncate()
    config = CompactionConfig.of(
        {
            "trigger": {"type": "tokens", "threshold": 90_000},
            "retain": {"type": "fraction", "amount": 0.25},
            "strategy": ["hierarchical", own],
            "target": 0.6,
            "clear_tools": {"keep": 1, "exclude": ["ask_user"], "min_tokens": 9},
        }
    )
    assert config.trigger == Trigger("tokens", 90_000)
    assert config.retain == Retain("fraction", amount=0.25)
    assert config.strategies == ("hierarchical", own)
    assert config.clear_tools == ClearToolsOptions(keep=1, exclude=("ask_user",), min_tokens=9)
    assert not CompactionConfig.of({"clear_tools": False}).clear_tools.enabled
    assert CompactionConfig.of({"trigger": {"type": "disabled"}}).trigger == Trigger("disabled")
    assert CompactionConfig.of({"retain": Retain("tokens", count=0)}).retain.nothing


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("summarize", "compaction is 'summarize'; give a dict"),
        ({"strategi": "summarize"}, "compaction has no setting strategi; it has trigger, retain"),
        ({"strategy": "magic"}, "strategy is 'magic'; use one of summarize, truncate"),
        ({"strategy": 3}, "3 is not a strategy"),
        ({"strategy": []}, "no compaction strategy"),
        ({"trigger": 0.8}, "trigger is 0.8; give a dict or a Trigger"),
        ({"trigger": {"threshold": 0.8}}, "which has no type"),
        ({"trigger": {"type": "fraction"}}, "threshold of a fraction trigger is None"),
        ({"trigger": {"type": "fraction", "threshold": 1.2}}, "threshold=1.2; give a share"),
        ({"trigger": {"type": "fraction", "threshold": 0}}, "threshold=0; give a share"),
        ({"trigger": {"type": "fraction", "threshold": math.nan}}, "is nan; give a number"),
        ({"trigger": {"type": "fraction", "threshold": True}}, "is True; give a number"),
        ({"trigger": {"type": "tokens", "threshold": -5}}, "is -5; give a whole number from 1"),
        ({"trigger": {"type": "messages", "threshold": 2.5}}, "is 2.5; give a whole number"),
        ({"trigger": {"type": "never"}}, "type of a trigger is 'never'"),
        ({"trigger": {"type": "tokens", "at": 5}}, "trigger has no setting at"),
        ({"retain": {"type": "messages", "count": -1}}, "is -1; give a whole number from 0"),
        ({"retain": {"type": "messages", "amount": 0.5}}, "give count"),
        ({"retain": {"type": "tokens"}}, "is None; give a number"),
        ({"retain": {"type": "fraction", "amount": 2}}, "amount=2"),
        ({"retain": {"type": "fraction", "amount": 0.2, "count": 2}}, "give amount"),
        ({"retain": {"type": "rounds", "count": 2}}, "type of retain is 'rounds'"),
        ({"target": 1.0}, "target of compaction is 1.0"),
        ({"target": "half"}, "target of compaction is 'half'; give a number"),
        ({"summary_model": "default"}, "summary_model is 'default'; give a Model"),
        ({"clear_tools": {"exclude": "search"}}, "give a list of tool names"),
        ({"clear_tools": {"keep": -1}}, "keep of clear_tools is -1"),
    ],
)
def test_bad_values_are_refused_in_words(value, message):
    with pytest.raises(UsageError) as error:
        CompactionConfig.of(value)
    assert message in str(error.value)


def test_every_strategy_has_one_door():
    assert compaction.__all__
    assert all(getattr(compaction, name).__name__ == name for name in compaction.__all__)
    assert sorted(compaction.__all__) == sorted(dir(compaction))


def test_typed_fields_refuse_dicts():
    with pytest.raises(UsageError, match=r"give a Trigger, or a dict to CompactionConfig.of"):
        CompactionConfig(trigger={"type": "disabled"})


# -- decisions -----------------------------------------------------------------------------------------


def load(used, **more):
    values = {"tokens": used, "history": used, "messages": 10, "window": 100_000}
    return Load(**{**values, **more})


def test_reaching_the_trigger_is_enough():
    config = CompactionConfig()
    assert not decide(config, load(79_999)).compact
    assert decide(config, load(80_000)).compact
    assert decide(config, load(80_000)).trigger == 80_000
    assert decide(CompactionConfig(trigger=Trigger("tokens", 500)), load(500)).compact
    assert decide(CompactionConfig(trigger=Trigger("messages", 10)), load(500)).compact
    assert not decide(CompactionConfig(trigger=Trigger("messages", 11)), load(500)).compact
    assert not decide(CompactionConfig(trigger=Trigger("disabled")), load(99_999)).compact


def test_no_trigger_lies_above_what_leaves_room_for_the_answer():
    for trigger in (Trigger("fraction", 1.0), Trigger("tokens", 10**9), Trigger("messages", 10**6)):
        decision = decide(CompactionConfig(trigger=trigger), load(92_000, reserved_output=8_000))
        assert decision.trigger == 92_000
        assert decision.compact


def test_a_large_window_with_a_large_answer_still_triggers_at_its_share():
    decision = decide(CompactionConfig(), load(800_000, window=1_000_000, reserved_output=128_000))
    assert decision.trigger == 800_000
    assert decision.compact


def test_the_target_is_a_share_of_the_room_the_history_has():
    config = CompactionConfig()
    assert decide(config, load(80_000)).target == 40_000
    assert decide(config, load(80_000, history=50_000)).target == 25_000
    assert decide(config, load(90_000, history=1_000)).target == 0
    after = load(30_000 + 25_000, history=25_000)
    assert not decide(config, after).compact, "a pass that reached its target does not set off the next"


def test_a_trigger_by_messages_always_leaves_something_to_do():
    config = CompactionConfig(trigger=Trigger("messages", 10))
    assert decide(config, load(600)).target == 300


def test_pressure_rises_before_compaction_comes():
    config = CompactionConfig()
    levels = [decide(config, load(used)).pressure for used in (59_999, 60_000, 70_000, 79_999, 80_000)]
    assert levels == [0, 1, 2, 2, 3]
    for used in range(0, 100_000, 777):
        decision = decide(config, load(used))
        assert decision.pressure > 0 or not decision.compact
    assert decide(CompactionConfig(trigger=Trigger("messages", 10)), load(10, messages=8)).pressure == 1
    assert decide(CompactionConfig(trigger=Trigger("disabled")), load(99_000)).pressure == 2


def test_a_load_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="none of these is negative"):
        load(-1)
    with pytest.raises(UsageError, match="ask for a shorter answer"):
        load(10, reserved_output=100_000)
    assert decide(CompactionConfig(), load(70_000, history=71_000)).target == 40_000


# -- building ------------------------------------------------------------------------------------------


class Answering:
    """The smallest Model."""

    name = "test:small"

    def __init__(self):
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        return answer("What the summary model said.")

    def stream(self, request):
        raise NotImplementedError

    async def aclose(self):
        pass


def test_a_strategy_that_asks_needs_somebody_to_ask():
    with pytest.raises(UsageError, match="summarize needs a model"):
        build(CompactionConfig())
    for name in ("truncate", "sliding_window", "snapshot", "clear_tools"):
        chain = build(CompactionConfig(strategy=name))
        assert isinstance(chain, Chain)
        assert isinstance(chain, Compactor)
        assert chain.name == name


@pytest.mark.anyio
async def test_without_a_summary_model_the_sessions_own_is_asked_and_with_one_that_is():
    shown = shown_from(long_round(60))
    own, other = ScriptedAsk(), Answering()
    target = tokens(shown, COUNTER) // 2
    await build(CompactionConfig(), ask=own).compact(shown, target=target, counter=COUNTER)
    assert len(own.asked) == 1
    chain = build(CompactionConfig(summary_model=other), ask=own)
    rewrite = await chain.compact(shown, target=target, counter=COUNTER)
    assert len(own.asked) == 1
    assert len(other.requests) == 1
    assert "What the summary model said." in rewrite.replacements[-1].message.text
    assert ask_model(other) is not None


@pytest.mark.anyio
async def test_a_trigger_by_messages_is_answered_by_fewer_messages():
    shown = shown_from(long_round(60, size=4000))
    config = CompactionConfig(trigger=Trigger("messages", 40), retain=Retain("tokens", count=10**6))
    decision = decide(config, load(tokens(shown, COUNTER), messages=len(shown), window=10**6))
    chain = build(config, ask=ScriptedAsk())
    after = applied(shown, await chain.compact(shown, target=decision.target, counter=COUNTER))
    assert len(after) <= 20, "clearing results would have reached the target and left every message"
