"""What each strategy shows in place of what goes."""

import pytest

from loom.core.message import ImagePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from loom.errors import BadResponse, CannotCompact, CompactionError, ContextOverflow, RateLimited, UsageError
from loom.session.compaction.cut import shown_tokens
from loom.session.compaction.strategies import ClearTools, SlidingWindow, Snapshot, Truncate
from loom.session.compaction.summarize import MAX_ASKS, MAX_TOPICS, Hierarchical, Summarize, ask_model, topics_of
from loom.session.compaction.summary_message import read_record
from loom.session.config import ClearToolsOptions, Retain
from loom.session.history import units_of
from loom.text.tokens import EstimateCounter
from tests.session.histories import (
    PNG,
    ScriptedAsk,
    answer,
    applied,
    check_laws,
    is_shown_record,
    long_round,
    shown_from,
    tokens,
)

pytestmark = pytest.mark.anyio
COUNTER = EstimateCounter()


def chat(rounds, words=40):
    messages = []
    for number in range(rounds):
        messages.append(Message.user(f"Question {number}: " + "why is that so " * (words // 4)))
        messages.append(Message.assistant(f"Answer {number}: " + "because of this " * (words // 4)))
    return shown_from(messages)


async def compacted(compactor, shown, share=0.5, keep=frozenset()):
    target = int(tokens(shown, COUNTER) * share)
    rewrite = await compactor.compact(shown, target=target, counter=COUNTER, keep=keep)
    return rewrite, check_laws(shown, rewrite, target=target, counter=COUNTER, keep=keep)


def records(after):
    return [read_record(item.message) for item in after if is_shown_record(item)]


# -- what stays ----------------------------------------------------------------------------------------


async def test_whole_rounds_stay():
    _, after = await compacted(Truncate(retain=Retain("messages", count=5)), chat(20))
    assert [item.id for item in after] == ["k1.0", "m36", "m37", "m38", "m39"]


async def test_a_round_that_is_larger_than_retain_is_cut_between_units_behind_its_request():
    shown = (*chat(3)[:5], *shown_from(long_round(30), "n"))
    _, after = await compacted(Truncate(retain=Retain("messages", count=5)), shown)
    assert [item.id for item in after] == ["n0", "k1.1", "n57", "n58", "n59", "n60"]
    _, after = await compacted(Truncate(retain=Retain("messages", count=5)), (*shown, *shown_from([QUESTION], "q")))
    assert [item.id for item in after] == ["n0", "k1.1", "n59", "n60", "q0"], "the round before the request, in part"


QUESTION = Message.user("And now?")


async def test_retain_by_tokens_and_by_fraction():
    shown = chat(20)
    of_one = shown_tokens(shown[-2:], COUNTER)
    _, after = await compacted(Truncate(retain=Retain("tokens", count=3 * of_one + 5)), shown)
    assert len(after) == 1 + 6
    _, after = await compacted(Truncate(retain=Retain("fraction", amount=0.21)), shown)
    assert len(after) == 1 + 8


async def test_the_target_comes_before_retain():
    shown = chat(20)
    _, after = await compacted(Truncate(retain=Retain("messages", count=40)), shown, share=0.3)
    assert 2 < len(after) < 14


async def test_retain_nothing_keeps_the_current_request_and_nothing_else():
    shown = (*chat(5), *shown_from([QUESTION], "q"))
    _, after = await compacted(Truncate(retain=Retain("messages", count=0)), shown)
    assert [item.id for item in after] == ["k1.0", "q0"]
    _, after = await compacted(Truncate(retain=Retain("tokens", count=0)), shown_from(long_round(20)))
    assert [item.id for item in after] == ["m0", "k1.0"], "not even results that are new"


async def test_pins_stay_in_place_and_bring_their_calls_along():
    shown = (*shown_from(long_round(20), "n"), *chat(3))
    rewrite, after = await compacted(Truncate(), shown, keep={"n8"})
    assert [item.id for item in after][:2] == ["n7", "n8"]
    assert len([r for r in rewrite.replacements if r.message is not None]) == 1


async def test_opening_system_messages_stay():
    shown = (*shown_from([Message("system", (TextPart("Rules."),))] * 2, "s"), *chat(20))
    _, after = await compacted(Truncate(), shown)
    assert [item.id for item in after][:2] == ["s0", "s1"]


async def test_the_newest_result_is_clamped_where_it_alone_is_too_large():
    call, text = ToolCallPart("a", "read", {"path": "big.txt"}), "begin " + "x y " * 30_000 + " end"
    shown = shown_from(
        [
            *long_round(5),
            Message("assistant", (call,)),
            Message("user", (ToolResultPart("a", (TextPart(text),), True),)),
        ]
    )
    rewrite, after = await compacted(Truncate(), shown, share=0.1)
    assert after[0].id == "m0"
    result = after[-1].message.parts[0]
    assert result.call_id == "a"
    assert result.is_error
    shorter = result.content[0].text
    assert shorter.startswith("begin x y")
    assert shorter.endswith(" end")
    assert "characters are not shown" in shorter
    assert rewrite.replacements[-1].covers == (shown[-1].id,)


async def test_parallel_giants_are_clamped_by_the_same_share_and_small_results_stay():
    calls = Message("assistant", tuple(ToolCallPart(id, "read", {}) for id in "abc"))
    contents = [
        (TextPart("x y " * 20_000),),
        (TextPart("small"), ImagePart(PNG, "image/png")),
        (TextPart("ж" * 20_000), ImagePart(PNG, "image/png")),
    ]
    results = [Message("user", (ToolResultPart(id, content),)) for id, content in zip("abc", contents, strict=True)]
    shown = shown_from([QUESTION, calls, *results])
    _, after = await compacted(Truncate(), shown, share=0.2)
    assert after[:2] == shown[:2]
    assert after[3] == shown[3]
    assert "[Image: unnamed]" in after[4].message.parts[0].content[0].text


async def test_a_request_that_is_too_large_cannot_be_compacted():
    shown = (*chat(3), *shown_from([Message.user("word " * 9000)], "q"))
    with pytest.raises(CannotCompact, match=r"q0 has 8,818; shorten or unpin it"):
        await Truncate().compact(shown, target=1000, counter=COUNTER)


async def test_a_call_that_waits_for_its_result_stays():
    shown = (*chat(10), *shown_from([QUESTION, Message("assistant", (ToolCallPart("a", "run", {}),))], "q"))
    for retain in (Retain(), Retain("messages", count=0)):
        _, after = await compacted(Truncate(retain=retain), shown, share=0.2)
        assert [item.id for item in after][-2:] == ["q0", "q1"]


async def test_half_pairs_go_first_and_disable_nothing():
    stray = Message("user", (ToolResultPart("lost", (TextPart("r"),)),))
    dead = Message("assistant", (ToolCallPart("dead", "run", {}),))
    shown = (*chat(8), *shown_from([QUESTION, stray, dead, QUESTION], "q"))
    target = tokens(shown, COUNTER) // 2
    rewrite = await Truncate(retain=Retain("messages", count=9)).compact(shown, target=target, counter=COUNTER)
    assert not {"q1", "q2"} & {item.id for item in applied(shown, rewrite)}
    assert {"q0", "q3"} <= {item.id for item in applied(shown, rewrite)}


async def test_the_number_of_messages_can_be_the_limit():
    shown = chat(20)
    target = tokens(shown, COUNTER) - 1
    compactor = Truncate(retain=Retain("messages", count=30), max_messages=9)
    after = applied(shown, await compactor.compact(shown, target=target, counter=COUNTER))
    assert len(after) == 9
    with pytest.raises(CannotCompact, match="may be shown"):
        await compactor.compact(shown, target=target, counter=COUNTER, keep={f"m{n}" for n in range(0, 30, 3)})


async def test_thinking_behind_the_edit_goes_and_is_counted():
    shown = shown_from(long_round(20, thinking=True))
    rewrite, after = await compacted(Truncate(), shown)
    assert rewrite.dropped_thinking == 20
    kept = Truncate(binds_thinking=False)
    rewrite = await kept.compact(shown, target=tokens(shown, COUNTER) // 2, counter=COUNTER)
    assert rewrite.dropped_thinking == 18
    only_thought = Message("assistant", (ThinkingPart("hm", signature="s"),))
    _, after = await compacted(Truncate(), (*chat(9), *shown_from([QUESTION, only_thought], "q")))
    assert after[-1].id == "q0"


async def test_a_negative_target_is_refused():
    for compactor in (Truncate(), ClearTools()):
        with pytest.raises(UsageError, match="target of a compaction is -1"):
            await compactor.compact(chat(1), target=-1, counter=COUNTER)


# -- truncate and sliding_window -----------------------------------------------------------------------


async def test_truncation_says_so_and_carries_an_earlier_record_on():
    shown = chat(20)
    _, after = await compacted(Summarize(ScriptedAsk()), shown)
    _, again = await compacted(Truncate(), (*after, *shown_from([i.message for i in chat(20)], "n")), share=0.2)
    (record,) = records(again)
    assert record.messages == len(shown) + 40 - (len(again) - 1)
    assert record.parts["earlier"][0].startswith("1. Task: go on.")
    _, third = await compacted(Truncate(), (*again, *shown_from([i.message for i in chat(20)], "o")), share=0.2)
    assert records(third)[0].parts == record.parts, "it is carried on, and does not grow"


async def test_an_earlier_record_is_folded_in_wherever_it_stands():
    shown = chat(20)
    _, after = await compacted(Truncate(retain=Retain("messages", count=30)), shown, share=0.8, keep={"m1"})
    assert [item.id for item in after][:2] == ["m1", "k1.1"]
    _, again = await compacted(Truncate(retain=Retain("messages", count=40)), after, share=0.95)
    assert len(records(again)) == 1, "m1 is no longer pinned and goes; the record that follows it goes with it"


async def test_a_record_stays_where_nothing_else_goes():
    giant = [
        Message("assistant", (ToolCallPart("a", "read", {}),)),
        Message("user", (ToolResultPart("a", (TextPart("x y " * 9000),)),)),
    ]
    _, after = await compacted(Summarize(ScriptedAsk()), chat(20))
    ask = ScriptedAsk()
    shown = (after[0], *shown_from([QUESTION, *giant], "q"))
    _, again = await compacted(Summarize(ask), shown)
    assert again[0] == after[0]
    assert ask.asked == []


async def test_a_sliding_window_shows_a_glimpse_of_the_last_messages_that_went():
    _, after = await compacted(SlidingWindow(overlap=2, preview=30), chat(20))
    (record,) = records(after)
    assert record.parts["overlap"] == (
        "user: Question 16: why is that so w…",
        "assistant: Answer 16: because of this be…",
    )
    _, again = await compacted(SlidingWindow(), (*after, *shown_from([i.message for i in chat(20)], "n")))
    overlap = records(again)[0].parts["overlap"]
    assert overlap
    assert all("Question 16: why is that so w…" not in line for line in overlap)
    with pytest.raises(UsageError, match="overlap=-1"):
        SlidingWindow(overlap=-1)


# -- snapshot ------------------------------------------------------------------------------------------


async def test_a_snapshot_tells_what_was_asked_decided_touched_called_and_what_failed():
    call = ToolCallPart("e", "write_anything", {"where": {"target": "docs/deep/plan.md"}, "n": 3})
    messages = [
        Message.user("Please plan the move. We decided to use Postgres instead of MySQL."),
        Message("assistant", (call,)),
        Message("user", (ToolResultPart("e", (TextPart("permission denied: docs/deep"),), is_error=True),)),
        Message.assistant("I could not write the plan."),
        *long_round(30),
        QUESTION,
    ]
    _, after = await compacted(Snapshot(retain=Retain("messages", count=1)), shown_from(messages))
    parts = records(after)[0].parts
    assert parts["requests"][0].startswith("Please plan the move")
    assert "We decided to use Postgres instead of MySQL." in parts["decisions"]
    assert any("permission denied" in line for line in parts["errors"]) or len(parts["errors"]) == 2
    assert parts["files"][-1] == "src/module_29.py"
    assert parts["calls"][-1].startswith("search(path=")
    assert "calls of write_anything x1" in parts["counts"]
    assert parts["answer"] == ("I could not write the plan.",)


async def test_there_is_one_snapshot_and_its_counts_add_up():
    shown = shown_from(long_round(40))
    for number in range(5):
        rewrite, _ = await compacted(Snapshot(), shown)
        shown = applied(shown, rewrite)
        (record,) = records(shown)
        counted = sum(int(line.rpartition("x")[2]) for line in record.parts["counts"] if line.startswith("calls"))
        assert 40 * (number + 1) - 6 <= counted <= 40 * (number + 1)
        shown = (*shown, *shown_from(long_round(40), f"r{number}_"))
    (record,) = records(shown)
    assert any(line.startswith("Fix every failing test") for line in record.parts["requests"])


async def test_a_snapshot_keeps_what_a_summary_told():
    _, after = await compacted(Summarize(ScriptedAsk()), chat(20))
    _, again = await compacted(Snapshot(), (*after, *shown_from([i.message for i in chat(20)], "n")))
    assert any("1. Task: go on." in line for line in records(again)[0].parts["earlier"])


# -- clear_tools ---------------------------------------------------------------------------------------


async def test_old_results_are_cleared_all_at_once_and_say_what_they_were():
    shown = shown_from(long_round(20, size=4000))
    rewrite, after = await compacted(ClearTools(), shown, share=0.4)
    assert len(rewrite.replacements) == 17
    was, cleared = shown[2].message.parts[0], after[2].message.parts[0]
    assert (cleared.call_id, cleared.is_error) == (was.call_id, was.is_error)
    text = cleared.content[0].text
    assert 'read_file(path="src/module_0.py", line=0)' in text
    assert f"{len(was.content[0].text):,} characters" in text
    assert "It began: line 0 of output" in text
    assert after[-1] == shown[-1]


async def test_what_must_not_be_cleared_is_not():
    shown = shown_from(long_round(20, size=4000))
    options = ClearToolsOptions(keep=1, exclude=("run",))
    rewrite, _ = await compacted(ClearTools(options), shown, share=0.6, keep={"m2"})
    assert "m2" not in rewrite.covered
    runs = {shown[n + 1].id for n, i in enumerate(shown) if getattr(i.message.parts[0], "name", "") == "run"}
    assert not runs & rewrite.covered
    with pytest.raises(CannotCompact, match="use a strategy that cuts"):
        await ClearTools().compact(shown_from(long_round(20, size=100)), target=10, counter=COUNTER)


async def test_results_the_model_has_not_seen_are_never_cleared():
    calls = Message("assistant", tuple(ToolCallPart(f"p{n}", "read", {}) for n in range(6)))
    results = [Message("user", (ToolResultPart(f"p{n}", (TextPart("word " * 500),)),)) for n in range(6)]
    shown = shown_from([*long_round(20, size=4000), calls, *results])
    rewrite, _ = await compacted(ClearTools(ClearToolsOptions(keep=0)), shown, share=0.6)
    assert not {item.id for item in shown[-6:]} & rewrite.covered
    assert len(rewrite.covered) == 20


async def test_a_result_is_cleared_only_where_that_saves_half_and_never_twice():
    shown = shown_from(long_round(20, size=200))
    with pytest.raises(CannotCompact, match="clearing 0 messages"):
        await ClearTools(ClearToolsOptions(min_tokens=0)).compact(shown, target=10, counter=COUNTER)
    large = shown_from(long_round(20, size=4000))
    rewrite, _ = await compacted(ClearTools(), large, share=0.4)
    with pytest.raises(CannotCompact, match="clearing 0 messages"):
        await ClearTools().compact(applied(large, rewrite), target=10, counter=COUNTER)


# -- summarize -----------------------------------------------------------------------------------------


async def test_the_summary_is_asked_of_the_exact_history_up_to_the_cut():
    ask = ScriptedAsk()
    shown = chat(20)
    rewrite, after = await compacted(Summarize(ask), shown)
    ((history, instruction, max_output),) = ask.asked
    assert history == shown[:34]
    assert "neither carry it out again nor answer it" in instruction
    assert max_output <= 4096
    assert rewrite.usage.input == 100
    assert records(after)[0].parts["summary"] == ("1. Task: go on. 34 messages were read.",)


async def test_an_earlier_summary_is_part_of_what_is_summarised():
    ask = ScriptedAsk()
    _, after = await compacted(Summarize(ask), chat(20))
    _, again = await compacted(Summarize(ask), (*after, *shown_from([i.message for i in chat(20)], "n")))
    assert is_shown_record(ask.asked[1][0][0])
    (record,) = records(again)
    assert record.messages == 74


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("empty", BadResponse),
        ("no parts", BadResponse),
        ("tool call", BadResponse),
        ("refusal", BadResponse),
        ("longer", BadResponse),
        ("rate limit", RateLimited),
        ("overflow", ContextOverflow),
    ],
)
async def test_a_summary_that_fails_raises_its_own_error(fault, error):
    for kind in (Summarize, Hierarchical):
        with pytest.raises(error):
            await kind(ScriptedAsk(fault)).compact(chat(40), target=2000, counter=COUNTER)


async def test_a_summary_must_be_shorter_than_what_it_replaces_even_where_there_is_room():
    async def ask(history, instruction, *, max_output):
        return answer("word " * 400)

    result = ToolResultPart("a", (TextPart("x y " * 9000),))
    giant = [Message("assistant", (ToolCallPart("a", "read", {}),)), Message("user", (result,))]
    shown = (*chat(3), *shown_from([QUESTION, *giant], "q"))
    with pytest.raises(BadResponse, match="shorter than what it replaces"):
        await Summarize(ask, retain=Retain("messages", count=1)).compact(shown, target=4000, counter=COUNTER)


async def test_a_summary_request_that_overflows_goes_on_in_steps():
    ask = ScriptedAsk("small window")
    _, after = await compacted(Summarize(ask), chat(30))
    asked = [history for history, _, _ in ask.asked if len(history) <= 6]
    assert len(ask.asked) <= MAX_ASKS
    assert [item.id for history in asked for item in history if item.id != "summary"] == [f"m{n}" for n in range(54)]
    assert all(next(iter(history)).id == "summary" for history in asked[1:]), (
        "what was told so far is part of the next step"
    )
    assert len(records(after)) == 1


async def test_a_summary_never_loops():
    ask = ScriptedAsk("overflow")
    with pytest.raises(ContextOverflow):
        await Summarize(ask).compact(chat(200), target=4000, counter=COUNTER)
    assert len(ask.asked) < 12
    ask = ScriptedAsk("small window")
    with pytest.raises(CompactionError, match="use a model with more room"):
        await Summarize(ask).compact(chat(200), target=4000, counter=COUNTER)
    assert len(ask.asked) == MAX_ASKS


async def test_a_unit_that_overflows_alone_is_asked_about_in_a_shorter_form():
    sizes = []

    async def ask(history, instruction, *, max_output):
        sizes.append(tokens(history, COUNTER))
        if sizes[-1] > 3000:
            raise ContextOverflow("too long")
        return answer("It was a long text.")

    shown = (*shown_from([Message.user("long " * 9000)]), *shown_from([QUESTION], "q"))
    _, after = await compacted(Summarize(ask), shown)
    assert sizes[0] > 8000
    assert sizes[-1] < 3000
    assert records(after)[0].parts["summary"] == ("It was a long text.",)


async def test_no_room_for_a_summary_is_said_before_anybody_is_asked():
    ask = ScriptedAsk()
    with pytest.raises(CannotCompact, match="tokens are left for a summary"):
        await Summarize(ask).compact(chat(10), target=140, counter=COUNTER)
    assert ask.asked == []
    with pytest.raises(UsageError, match="max_output=1"):
        Summarize(ask, max_output=1)


async def test_ask_model_sends_text_that_any_model_can_read():
    class Recorder:
        name = "test:model"

        async def complete(self, request):
            self.request = request
            return answer("fine")

    model = Recorder()
    shown = shown_from([*long_round(1, thinking=True), Message("assistant", (ThinkingPart("hm"),))])
    await ask_model(model)(shown, "Sum up.", max_output=99)
    assert [message.role for message in model.request.messages] == ["user", "assistant", "user", "user"]
    assert [{type(p) for p in message.parts} for message in model.request.messages] == [{TextPart}] * 4
    assert "module_0.py" in model.request.messages[1].text
    assert model.request.messages[-1].text == "Sum up."
    assert model.request.settings.max_output == 99


# -- hierarchical --------------------------------------------------------------------------------------


async def test_one_request_writes_all_topics_where_they_fit():
    ask = ScriptedAsk()
    await compacted(Hierarchical(ask), chat(20))
    ((_, instruction, _),) = ask.asked
    assert "about 1 topics" in instruction


async def test_topics_are_asked_about_apart_and_rolled_up_where_they_do_not_fit():
    subjects = ("database migrations postgres", "holiday travel lisbon", "garden tomatoes watering")
    messages = [m for s in subjects for _ in range(3) for m in (Message.user(s * 3), Message.assistant("fine " * 60))]
    shown = shown_from([*messages, QUESTION])
    assert [len(group) for group in topics_of(units_of(shown[:18]))] == [6, 6, 6]
    ask = ScriptedAsk("small window")
    _, after = await compacted(Hierarchical(ask, retain=Retain("messages", count=1)), shown)
    assert [len(history) for history, _, _ in ask.asked] == [18, 12, 6, 6, 6, 3]
    (record,) = records(after)
    assert record.parts["summary"] == ("1. Task: go on. 3 messages were read.",)
    assert record.parts["topics"] == ("1. Task: go on. 6 messages were read.",) * 3


def test_topics_are_bounded():
    words = [f"{a}{b}" for a in "abcdef" for b in "xyz"]
    messages = [m for w in words for m in (Message.user(f"{w}one {w}two"), Message.assistant("ok"))]
    groups = topics_of(units_of(shown_from(messages)))
    assert len(groups) == MAX_TOPICS
    assert sum(map(len, groups)) == len(messages)
