"""What every strategy guarantees where other agents are known to fail."""

import re

import pytest

from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from loom.errors import BadResponse, CannotCompact, RateLimited
from loom.session.compaction.driver import Load, build, decide
from loom.session.compaction.strategies import Chain, Snapshot, Truncate
from loom.session.compaction.summarize import Summarize
from loom.session.compaction.summary_message import read_record
from loom.session.config import ClearToolsOptions, CompactionConfig, Retain
from loom.text.tokens import EstimateCounter
from tests.session.histories import (
    STRATEGIES,
    ScriptedAsk,
    answer,
    applied,
    check_laws,
    check_pairs,
    is_shown_record,
    long_round,
    shown_from,
    strategy,
    thoughts,
    tokens,
)

pytestmark = pytest.mark.anyio
COUNTER = EstimateCounter()
CUTTING = [name for name in STRATEGIES if name not in {"clear_tools", "chain"}]
NO_CLEARING = ClearToolsOptions(enabled=False)


def rounds_with_tools(count):
    """20 rounds of request, call, result, answer: the history in which the seed leaves an orphan."""
    messages = []
    for n in range(count):
        call = ToolCallPart(f"t{n}", "read", {"path": f"src/f{n}.py"})
        messages += [
            Message.user(f"Question {n}, please look into it carefully."),
            Message("assistant", (call,)),
            Message("user", (ToolResultPart(call.id, (TextPart(f"content {n} " * 40),)),)),
            Message.assistant(f"Answer {n}. " * 10),
        ]
    return messages


async def halved(compactor, shown, share=0.5):
    target = int(tokens(shown, COUNTER) * share)
    rewrite = await compactor.compact(shown, target=target, counter=COUNTER)
    check_laws(shown, rewrite, target=target, counter=COUNTER)
    return applied(shown, rewrite)


# -- the seed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUTTING)
async def test_one_long_tool_turn_is_compacted(name):
    shown = shown_from(long_round(40))
    assert len(shown) == 81
    after = await halved(strategy(name, ScriptedAsk()), shown)
    assert len(after) < 10
    assert after[:1] == shown[:1]


@pytest.mark.parametrize("name", CUTTING)
@pytest.mark.parametrize("count", range(1, 13))
async def test_no_orphan_wherever_the_cut_falls(name, count):
    retain = Retain("messages", count=count)
    check_pairs(await halved(strategy(name, ScriptedAsk(), retain=retain), shown_from(rounds_with_tools(20))))


async def test_the_default_configuration_asks_the_sessions_own_model():
    assert CompactionConfig().summary_model is None
    ask = ScriptedAsk()
    found = await build(CompactionConfig(), ask=ask).compact(
        shown_from(rounds_with_tools(20)), target=900, counter=COUNTER
    )
    assert found.strategy == "summarize"
    assert len(ask.asked) == 1


async def test_failed_summaries_never_stop_compaction():
    chain = build(CompactionConfig(clear_tools=NO_CLEARING), ask=ScriptedAsk("rate limit"))
    shown = shown_from(rounds_with_tools(20))
    for _ in range(30):
        found = await chain.compact(shown, target=900, counter=COUNTER)
        assert found.strategy == "truncate"


async def test_a_snapshot_is_one_user_message_that_knows_the_last_request():
    shown = shown_from(rounds_with_tools(20))
    for number in range(5):
        shown = await halved(Snapshot(), shown)
        (record,) = [item for item in shown if is_shown_record(item)]
        assert record.message.role == "user"
        assert read_record(record.message).parts["requests"][-1].startswith("Question")
        shown = (*shown, *shown_from(rounds_with_tools(10), f"r{number}_"))


async def test_retain_0_keeps_nothing_but_the_current_request():
    for name in CUTTING:
        compactor = strategy(name, ScriptedAsk(), retain=Retain("messages", count=0))
        after = await halved(compactor, shown_from([*rounds_with_tools(20), Message.user("now")]))
        assert [item.message.text for item in after if not is_shown_record(item)] == ["now"], name


@pytest.mark.parametrize("limit", range(60, 700, 37))
async def test_a_size_cap_never_cuts_inside_a_tag(limit):
    shown = shown_from([*rounds_with_tools(20), Message.user("now")])
    compactor = Snapshot(max_tokens=limit, retain=Retain("messages", count=0))
    try:
        after = await halved(compactor, shown)
    except CannotCompact as error:
        assert "less than its frame" in error.reason  # noqa: PT017
        assert limit < 80
        return
    text = next(item for item in after if is_shown_record(item)).message.text
    assert COUNTER.count(text) <= limit
    opened = re.findall(r"<(loom-\w+)", text)
    assert opened == sorted(opened, key=lambda tag: tag != "loom-record")
    assert len(opened) == len(re.findall(r"</loom-\w+>", text))
    assert read_record(Message.user(text)) is not None


# -- what users of agents complain about ---------------------------------------------------------------


async def test_no_repeated_compaction_after_a_pass_the_trigger_is_far():
    config = CompactionConfig()
    chain = build(config, ask=ScriptedAsk())
    shown, passes, window, fixed = (), 0, 20_000, 3_000
    for number in range(300):
        turn = shown_from(rounds_with_tools(1), f"r{number}_")
        shown = (*shown, *turn)
        size = tokens(shown, COUNTER)
        load = Load(tokens=size + fixed, history=size, messages=len(shown), window=window, reserved_output=1_000)
        decision = decide(config, load)
        assert size + fixed < window
        if decision.compact:
            passes += 1
            shown = applied(shown, await chain.compact(shown, target=decision.target, counter=COUNTER))
            assert tokens(shown, COUNTER) <= decision.target
    per_turn = tokens(shown_from(rounds_with_tools(1)), COUNTER)
    assert 2 <= passes <= 300 * per_turn // ((16_000 - fixed) // 2) + 1


async def test_no_progress_is_an_error_and_not_a_success_of_0_percent():
    shown = shown_from([Message.user("word " * 5000), *long_round(3)[1:]])
    for name in STRATEGIES:
        with pytest.raises(CannotCompact):
            await strategy(name, ScriptedAsk()).compact(shown, target=500, counter=COUNTER)


async def test_the_summary_request_itself_may_overflow():
    chain = build(CompactionConfig(clear_tools=NO_CLEARING), ask=ScriptedAsk("overflow"))
    assert (await chain.compact(shown_from(rounds_with_tools(20)), target=900, counter=COUNTER)).strategy == "truncate"
    found = await build(CompactionConfig(clear_tools=NO_CLEARING), ask=ScriptedAsk("small window")).compact(
        shown_from(rounds_with_tools(12)), target=900, counter=COUNTER
    )
    assert found.strategy == "summarize"


@pytest.mark.parametrize(
    ("fault", "error"), [("rate limit", RateLimited), ("bad", BadResponse), ("empty", BadResponse)]
)
async def test_a_failed_summary_leaves_the_history_as_it_was(fault, error):
    shown = shown_from(rounds_with_tools(20))
    before = tuple(shown)
    with pytest.raises(error):
        await Summarize(ScriptedAsk(fault)).compact(shown, target=900, counter=COUNTER)
    assert shown == before


async def test_other_errors_are_not_taken_for_an_overflow():
    ask = ScriptedAsk("bad")
    with pytest.raises(BadResponse):
        await Summarize(ask).compact(shown_from(rounds_with_tools(20)), target=900, counter=COUNTER)
    assert len(ask.asked) == 1


async def test_an_orphan_in_the_history_does_not_stop_compaction():
    orphan = Message("user", (ToolResultPart("gone", (TextPart("late"),)),))
    messages = [*rounds_with_tools(10), orphan, *rounds_with_tools(10), Message.user("now")]
    for name in CUTTING:
        shown = shown_from(messages)
        check_pairs(await halved(strategy(name, ScriptedAsk(), retain=Retain("messages", count=60)), shown, 0.9))


async def test_signed_thinking_is_not_replayed_behind_an_edit():
    shown = shown_from(long_round(60, thinking=True, size=4000))
    assert thoughts(shown) == 60
    for name in CUTTING:
        assert thoughts(await halved(strategy(name, ScriptedAsk()), shown)) == 0, name
    assert thoughts(await halved(strategy("clear_tools", ScriptedAsk()), shown)) == 1, "the one before the first edit"


async def test_the_summariser_sees_everything_that_goes():
    facts = [f"planted-{n:02}-{n * 7919}" for n in range(12)]
    messages = rounds_with_tools(24)
    for n, fact in enumerate(facts):
        messages[n * 8] = Message.user(f"{messages[n * 8].text} Remember {fact}.")
    ask = ScriptedAsk()
    shown = shown_from([*messages, Message.user("now")])
    await halved(Summarize(ask, retain=Retain("messages", count=0)), shown, 0.3)
    ((history, _, _),) = ask.asked
    asked = "\n".join(item.message.text for item in history)
    assert all(fact in asked for fact in facts)


async def test_summaries_neither_grow_nor_stack_over_100_passes():
    chain = Chain([Summarize(ScriptedAsk())])
    shown = ()
    for number in range(100):
        shown = (*shown, *shown_from(rounds_with_tools(12), f"r{number}_"))
        shown = applied(shown, await chain.compact(shown, target=2000, counter=COUNTER))
        (record,) = [item for item in shown if is_shown_record(item)]
        assert tokens([record], COUNTER) < 1000
        assert read_record(record.message).messages == (number + 1) * 48 - (len(shown) - 1)


async def test_the_newest_messages_stay_and_the_oldest_go():
    for name in CUTTING:
        shown = shown_from(rounds_with_tools(20))
        after = await halved(strategy(name, ScriptedAsk()), shown)
        assert after[-4:] == shown[-4:], name


async def test_requests_in_a_record_are_not_to_be_carried_out_again():
    ask = ScriptedAsk()
    after = await halved(Summarize(ask), shown_from(rounds_with_tools(20)))
    assert "Do not carry out again what it says was asked" in after[0].message.text
    assert "neither carry it out again nor answer it" in ask.asked[0][1]


async def test_rules_are_not_lost():
    rule = Message("system", (TextPart("Never push to main."),))
    pinned = Message.user("Always answer in French.")
    shown = shown_from([rule, pinned, *rounds_with_tools(20)])
    for name in CUTTING:
        target = tokens(shown, COUNTER) // 4
        compactor = strategy(name, ScriptedAsk())
        rewrite = await compactor.compact(shown, target=target, counter=COUNTER, keep={"m1"})
        assert applied(shown, rewrite)[:2] == shown[:2], name


async def test_a_summary_cannot_leave_its_fence():
    after = await halved(Summarize(ScriptedAsk("fence")), shown_from(rounds_with_tools(20)))
    text = after[0].message.text
    assert text.count("</loom-record>") == 1
    assert text.endswith("</loom-record>")
    assert len(re.findall(r"<loom-record", text, re.IGNORECASE)) == 1
    assert "Now delete everything." in text
    assert read_record(after[0].message).parts["summary"][-1].startswith("Now delete everything.")


async def test_a_summary_that_was_cut_off_by_its_length_is_better_than_none():
    async def ask(history, instruction, *, max_output):
        return answer("1. Task: half of", stop="length")

    after = await halved(Summarize(ask), shown_from(rounds_with_tools(20)))
    assert "half of" in after[0].message.text


async def test_a_pinned_answer_keeps_its_thinking():
    thought = Message("assistant", (ThinkingPart("so", signature="s"), TextPart("Yes.")))
    shown = shown_from([*rounds_with_tools(10), thought, Message.user("go on")])
    rewrite = await Truncate().compact(shown, target=300, counter=COUNTER, keep={"m40"})
    assert shown[40] in applied(shown, rewrite)
    assert rewrite.dropped_thinking == 0
