"""Plan: what it predicts, what it warns of, and that it names the cause of every bad layout."""

import base64
import json
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from loom import Context, ImageEntry, Message, StringEntry, find_model, plan, render, simulate
from loom.context.cache.repair import repair
from loom.context.cache.simulate import replay
from loom.core.message import TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import UsageError
from tests.context.cache import layouts

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
CLAUDE, GPT, GEMINI, LOCAL = "claude-sonnet-4-5", "gpt-5.6", "gemini-3.1-pro", "llama-4"
TARGETS = [
    ("anthropic", CLAUDE),
    ("bedrock", CLAUDE),
    ("openai", GPT),
    ("openai_chat", GPT),
    ("gemini", GEMINI),
    ("vllm", LOCAL),
]


def agent(words=6000, *, picture=True):
    ctx = Context("agent", tools=[ToolSpec("look", "Look something up.")])
    ctx.foundation.add(StringEntry("rule " * words))
    ctx.focus.add(StringEntry("the task"))
    if picture:
        ctx.topic.add(ImageEntry(PNG, "image/png", "shot"))
    ctx.convo.add(Message.user("begin"))
    return ctx


def turn(ctx, n, calls=2):
    made = tuple(ToolCallPart(f"c{n}.{i}", "look", {"n": n, "i": i}) for i in range(calls))
    ctx.convo.add(Message("assistant", (TextPart(f"thinking about {n}"), *made)))
    ctx.convo.add(Message("user", tuple(ToolResultPart(c.id, (TextPart(f"found {c.id} " * 30),)) for c in made)))
    ctx.convo.add(Message.assistant(f"answer {n}"))
    ctx.convo.add(Message.user(f"and then {n}?"))


BAD = [
    (layouts.sections_only, "anthropic", CLAUDE, "tail_not_marked"),
    (layouts.automatic_on_reminder, "anthropic", CLAUDE, "automatic_marker_on_volatile"),
    (layouts.reminder_before_last, "anthropic", CLAUDE, "reminder_removed"),
    (layouts.timestamp, "anthropic", CLAUDE, "volatile_in_prefix"),
    (layouts.tools_reordered, "anthropic", CLAUDE, "tools_reordered"),
    (lambda: layouts.parallel_calls(previous_tail=False), "bedrock", CLAUDE, "lookback_overflow"),
    (lambda: layouts.clearing(1), "anthropic", CLAUDE, "history_rewritten"),
    (layouts.implicit_on_reminder, "openai", GPT, "automatic_marker_on_volatile"),
    (layouts.only_current_tail, "openai", GPT, "past_marks_dropped"),
    (layouts.grid_timestamp, "vllm", LOCAL, "volatile_in_prefix"),
]


@pytest.mark.parametrize(("layout", "provider", "model", "cause"), BAD, ids=[b[3] + "-" + b[1] for b in BAD])
def test_plan_names_the_cause_of_a_bad_layout_and_its_fix_restores_the_price(layout, provider, model, cause):
    bad = layout()
    *previous, last = bad.trace
    found = plan(last, provider, model, previous=previous).findings[0]
    assert found.cause == cause
    assert found.advice
    rules = find_model(model, provider).cache
    before, after = replay(bad.trace, rules), replay(repair(bad.trace, found.fix, rules), rules)
    assert after.cost / bad.plain <= 0.12 < before.cost / bad.plain


@pytest.mark.parametrize(("provider", "model"), TARGETS)
def test_the_prediction_is_what_replaying_the_real_requests_gives(provider, model):
    ctx = agent()
    bodies, predicted = [], []
    for n in range(12):
        ctx.attention.clear()
        ctx.attention.add(StringEntry(f"reminder {n}"))
        ctx.step.add(StringEntry(f"output {n}"))
        window = ctx.compile()
        predicted.append(plan(window, provider, model))
        bodies.append(json.loads(json.dumps(render(window, provider, model))))
        turn(ctx, n, calls=2 + n)
    steps = simulate(bodies, provider, model).steps
    assert [(p.read, p.write, p.uncached) for p in predicted] == [(s.read, s.write, s.uncached) for s in steps]
    assert [p.next_read for p in predicted[:-1]] == [s.read for s in steps[1:]]
    assert sum(s.read for s in steps[1:]) / sum(s.tokens for s in steps[1:]) > 0.85


def test_a_plan_carries_the_request_it_speaks_of():
    window = agent().compile()
    found = plan(window, "anthropic", CLAUDE)
    assert found.body == render(window, "anthropic", CLAUDE)
    assert [(m.path, m.ttl, m.reason) for m in found.markers] == [
        ("messages[0].content[1]", "5m", "end of what is static"),
        ("messages[0].content[2]", "5m", "end of the conversation"),
    ]
    assert found.read == 0
    assert found.write + found.uncached == found.tokens
    assert found.usd == pytest.approx(found.cost * 3 / 1e6)


def codes(found):
    return {w.code for w in found.warnings}


def test_a_prefix_below_the_minimum_is_said():
    found = plan(agent(words=10, picture=False).compile(), "anthropic", CLAUDE)
    assert "below_minimum" in codes(found)
    assert "caches none under 1,024" in str(found)
    assert (found.read, found.write) == (0, 0)
    assert "below_minimum" not in codes(plan(agent().compile(), "anthropic", CLAUDE))


@pytest.mark.parametrize("text", ["It is 2026-11-15 03:12 now.", "Request 123e4567-e89b-12d3-a456-426614174000."])
def test_text_that_looks_like_a_clock_in_the_prefix_is_said(text):
    ctx = agent()
    entry = ctx.foundation.add(StringEntry(text))
    (warning,) = [w for w in plan(ctx.compile(), "anthropic", CLAUDE).warnings if w.code == "volatile_in_prefix"]
    assert entry.id in warning.message
    assert "attention" in warning.message
    assert "volatile_in_prefix" not in codes(plan(agent().compile(), "anthropic", CLAUDE))


def test_breakpoints_that_cannot_hit_are_said():
    ctx = agent()
    ctx.attention.add(StringEntry("soon"))
    found = plan(ctx.compile(), "anthropic", CLAUDE, cache_breakpoints=["attention"])
    assert "volatile_breakpoint" in codes(found)
    assert "no_markers" in codes(plan(ctx.compile(), "vllm", LOCAL, cache_breakpoints=["foundation"]))


def test_requests_that_would_be_refused_are_said():
    silent = Context("silent")
    silent.foundation.add(StringEntry("rules"))
    assert "no_user_turn" in codes(plan(silent.compile(), "anthropic", CLAUDE))
    ctx = agent()
    ctx.convo.add(Message.assistant("So"))
    assert "prefill" in codes(plan(ctx.compile(), "anthropic", "claude-opus-5-5"))
    assert "prefill" not in codes(plan(ctx.compile(), "anthropic", CLAUDE))
    ctx.convo.add(Message.user("word " * 300_000))
    assert "over_window" in codes(plan(ctx.compile(), "anthropic", CLAUDE))


def test_unknown_models_get_safe_defaults_and_the_plan_says_so():
    found = plan(agent().compile(), "anthropic", "claude-next-9")
    assert "unknown_model" in codes(found)
    assert found.usd is None


def test_an_empty_context_can_be_planned():
    found = plan(Context("empty").compile(), "anthropic", CLAUDE)
    assert (found.tokens, found.relative_cost) == (0, 1.0)


def test_a_window_needs_a_model():
    with pytest.raises(UsageError, match="name both"):
        plan(agent().compile())


def test_a_foreign_request_without_a_marker_caches_nothing():
    body = {"model": CLAUDE, "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 3000}]}
    found = plan(body)
    assert codes(found) == {"nothing_marked"}
    assert (found.uncached, found.provider) == (found.tokens, "anthropic")
    marked = {**body, "cache_control": {"type": "ephemeral"}}
    assert plan(marked).write > 3000
    assert plan(marked, previous=marked).read > 3000


def test_requests_kept_in_a_log_can_be_planned():
    body = {"model": CLAUDE, "max_tokens": 9, "messages": [{"role": "user", "content": "word " * 3000}]}
    assert plan({"at": 5, "request": body}).tokens == plan(body).tokens


def test_a_lifetime_of_an_hour_costs_twice_the_plain_price():
    window = agent().compile()
    assert plan(window, "anthropic", CLAUDE, cache_ttl=3600).relative_cost == pytest.approx(2.0, abs=0.01)
    assert plan(window, "anthropic", CLAUDE).relative_cost == pytest.approx(1.25, abs=0.01)


def test_a_trace_must_hold_something():
    with pytest.raises(UsageError, match="the trace is empty"):
        simulate([])


def test_expired_entries_are_not_read():
    layout = layouts.static_tail()
    late = [replace(p, at=400.0 * n) for n, p in enumerate(layout.trace[:5])]
    assert replay(late, layout.rules).read == 0


def test_a_plan_reads_well():
    ctx = agent(picture=False)
    ctx.compile()
    turn(ctx, 0)
    assert str(plan(ctx.compile(), "openai", "gpt-4o", cache_breakpoints=["foundation"])) == snapshot("""\
openai:gpt-4o: 6,402 tokens (±0%), 6,016 read, 0 written, 386 uncached
  cost 0.53x the uncached price, $0.0085; the next request reads 6,400
  warning: this provider takes no cache markers; it finds prefixes itself\
""")
    ctx.attention.add(StringEntry("Be brief."))
    assert str(plan(ctx.compile(), "anthropic", CLAUDE, cache_ttl=1000)) == snapshot("""\
anthropic:claude-sonnet-4-5: 7,501 tokens (±22%), 7,498 read, 0 written, 3 uncached
  cost 0.10x the uncached price, $0.0023; the next request reads 7,498
  marker 5m at system[1]: end of what is static (7,086 tokens)
  marker 5m at messages[4].content[0]: end of the conversation (7,498 tokens)
  warning: cache_ttl=1000 became 5m: the lifetimes of this provider are 5m (300 s), 1h (3600 s)\
""")


@pytest.mark.parametrize(
    ("turns", "named"), [(1, "entry {0} is"), (3, "{0}, {1}, {2} is"), (100, "{2} and 97 more is")]
)
def test_reasoning_that_is_left_out_is_one_warning_however_long_the_conversation(turns, named):
    ctx = Context("agent")
    thought = ThinkingPart("hm", signature="s")
    ids = []
    for n in range(turns):
        ctx.convo.add(Message.user(f"{n}?"))
        ids.append(ctx.convo.add(Message("assistant", (thought, TextPart(f"{n}.")))).id)
    ctx.convo.add(Message.user("and?"))
    found = plan(ctx.compile(), "openai", "gpt-5.6")
    (message,) = (w.message for w in found.warnings if w.code == "thinking_dropped")
    assert named.format(*ids, *"abc") in message
