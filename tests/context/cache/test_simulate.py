"""The cache simulator: every layout of the table, each rule alone, and what holds for any trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.catalog import CacheRules
from loom.context.cache.simulate import Simulation, common_length, last_step, message_ends, replay
from loom.core.window import LEVELS, Block, Level, PrefixChain, RequestBlocks
from loom.errors import UsageError
from tests.context.cache import layouts
from tests.context.cache.layouts import EXACT, GRID, LOOKBACK, LOOKBACK_NO_RUNS, UNITS, Layout
from tests.context.cache.strategies import SMALL_RULES, traces

TABLE: list[tuple[str, Callable[[], Layout], float, float | None]] = [
    ("sections only", layouts.sections_only, 0.932, 7.6),
    ("automatic tail", layouts.automatic_tail, 0.118, 98.4),
    ("static and tail", layouts.static_tail, 0.118, 98.4),
    ("reminder after the tail marker", layouts.reminder_after_tail, 0.119, 98.3),
    ("automatic on the reminder", layouts.automatic_on_reminder, 1.251, 0),
    ("reminder before the last message", layouts.reminder_before_last, 1.164, 7.6),
    ("timestamp in foundation", layouts.timestamp, 1.250, 0),
    ("tools reordered", layouts.tools_reordered, 0.280, 84.3),
    ("12 calls, runs not collapsed", partial(layouts.parallel_calls, previous_tail=False), 1.177, 6.3),
    ("12 calls, previous tail marked", partial(layouts.parallel_calls, previous_tail=True), 0.119, 98.4),
    ("clear every request", partial(layouts.clearing, 1), 0.229, 30.1),
    ("clear every 10", partial(layouts.clearing, 10), 0.067, 90),
    ("clear every 30", partial(layouts.clearing, 30), 0.067, 95),
    ("clear every 60", partial(layouts.clearing, 60), 0.082, 97),
    ("read 0.05", partial(layouts.cheap_reads, 0.05), 0.069, None),
    ("read 0.025", partial(layouts.cheap_reads, 0.025), 0.045, None),
    ("clear every 30, read 0.05", partial(layouts.clearing, 30, read=0.05), 0.046, None),
    ("clear every 30, read 0.025", partial(layouts.clearing, 30, read=0.025), 0.036, None),
    ("implicit", layouts.implicit, 0.118, 98.4),
    ("implicit on the reminder", layouts.implicit_on_reminder, 1.251, 0),
    ("only the current tail", layouts.only_current_tail, 1.163, 7.6),
    ("past ends marked again", layouts.past_ends_marked, 0.119, 98.3),
    ("implicit and marks", layouts.implicit_and_marks, 0.120, 98.3),
    ("grid clean", layouts.grid_clean, 0.114, 98),
    ("grid timestamp", layouts.grid_timestamp, 0.966, 4),
    ("grid clear every request", layouts.grid_clearing, 0.067, 82),
]


@pytest.mark.parametrize(("layout", "cost", "read"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table_of_layouts(layout: Callable[[], Layout], cost: float, read: float | None) -> None:
    given_layout = layout()
    done = replay(given_layout.trace, given_layout.rules)
    # The published figures have three digits; matching all of them is stricter than one part in a hundred.
    assert done.cost / given_layout.plain == pytest.approx(cost, abs=0.0011)
    if read is not None:
        assert done.read_share * 100 == pytest.approx(read, abs=0.5)


def test_the_trace_has_the_size_of_the_table() -> None:
    trace = layouts.static_tail().trace
    assert len(trace) == 120
    assert trace[-1].tokens == 300_600
    assert sum(p.tokens for p in trace) == layouts.plain_tokens() == 18_774_000


# One rule at a time.


def text(name: str, tokens: int, *, marker: str | None = None, role: str = "user", kind: str = "text") -> Block:
    return Block("messages", role, kind, name, tokens, path=f"messages.{name}", marker=marker)


def system(name: str, tokens: int, *, marker: str | None = None) -> Block:
    return Block("system", "system", "text", name, tokens, path="system.0", marker=marker)


def prompt(*blocks: Block, automatic: str | None = None, at: float | None = None, model: str = "m") -> RequestBlocks:
    return RequestBlocks("p", model, blocks, automatic=automatic, at=at)


def reads(done: Simulation) -> list[int]:
    return [step.read for step in done.steps]


def test_an_empty_trace_costs_nothing() -> None:
    done = replay([], LOOKBACK)
    assert (done.steps, done.tokens, done.cost, done.read_share, done.relative_cost) == ((), 0, 0, 0.0, 1.0)


def test_a_step_names_what_was_read_written_and_left() -> None:
    trace = [
        prompt(system("s", 2000, marker="5m"), text("a", 300)),
        prompt(system("s", 2000, marker="5m"), text("b", 400, marker="5m"), text("c", 10)),
    ]
    first, second = replay(trace, LOOKBACK).steps
    assert (first.read, first.write, first.uncached, first.at_block) == (0, 2000, 300, 0)
    assert (second.read, second.write, second.uncached, second.at_block) == (2000, 400, 10, 1)
    assert second.cost == pytest.approx(200 + 500 + 10)
    assert second.tokens == 2410


def test_each_stretch_is_priced_by_the_lifetime_of_its_marker() -> None:
    blocks = (system("s", 3000, marker="1h"), text("a", 1000, marker="5m"), text("b", 100))
    done = replay([prompt(*blocks)], LOOKBACK)
    assert done.cost == pytest.approx(3000 * 2.0 + 1000 * 1.25 + 100)


def test_an_entry_expires_and_each_read_keeps_it_alive() -> None:
    def at(seconds: float) -> RequestBlocks:
        return prompt(system("s", 2000, marker="5m"), at=seconds)

    assert reads(replay([at(0), at(299), at(598), at(898)], LOOKBACK)) == [0, 2000, 2000, 0]


def test_an_hour_outlives_five_minutes() -> None:
    def at(seconds: float) -> RequestBlocks:
        return prompt(system("s", 2000, marker="1h"), text("a", 1000, marker="5m"), at=seconds)

    assert reads(replay([at(0), at(1000), at(1200)], LOOKBACK)) == [0, 2000, 3000]


def test_without_times_everything_stays_warm() -> None:
    warm = prompt(system("s", 2000, marker="5m"))
    assert reads(replay([warm] * 3, LOOKBACK)) == [0, 2000, 2000]


@pytest.mark.parametrize("rules", [LOOKBACK, EXACT])
def test_below_the_minimum_nothing_is_cached(rules: CacheRules) -> None:
    ttl = rules.default_ttl
    short = prompt(system("s", 1023, marker=ttl))
    enough = prompt(system("s", 1024, marker=ttl))
    assert [(s.read, s.write) for s in replay([short, short], rules).steps] == [(0, 0), (0, 0)]
    assert [(s.read, s.write) for s in replay([enough, enough], rules).steps] == [(0, 1024), (1024, 0)]


def test_a_fifth_marker_is_refused_and_the_request_named() -> None:
    good = prompt(*(text(n, 1000, marker="5m") for n in "abcd"))
    bad = prompt(*(text(n, 1000, marker="5m") for n in "abcde"))
    with pytest.raises(UsageError, match=r"request 2 .* 5 cache markers .* takes 4"):
        replay([good, bad], LOOKBACK)


def test_the_automatic_breakpoint_takes_the_place_of_a_marker() -> None:
    four = [text(n, 1000, marker="5m") for n in "abcd"]
    assert replay([prompt(*four, automatic="5m")], LOOKBACK).write == 4000
    with pytest.raises(UsageError, match="5 cache markers"):
        replay([prompt(*four, text("e", 1000), automatic="5m")], LOOKBACK)


def test_an_unknown_lifetime_is_refused() -> None:
    with pytest.raises(UsageError, match=r"request 1 .* '2h'; use one of 5m, 1h"):
        replay([prompt(text("a", 2000, marker="2h"))], LOOKBACK)


def test_a_longer_lifetime_behind_a_shorter_one_is_refused() -> None:
    short, long = text("a", 2000, marker="5m"), text("b", 100, marker="1h")
    assert replay([prompt(text("a", 2000, marker="1h"), text("b", 100, marker="5m"))], LOOKBACK).write == 2100
    for bad in (prompt(short, long), prompt(short, text("b", 100), automatic="1h")):
        with pytest.raises(UsageError, match=r"would be refused: .* '1h' behind '5m' at "):
            replay([bad], LOOKBACK)
    openai = replace(EXACT, ttls={"30m": 1800, "12h": 43200})
    assert replay([prompt(short.marked("30m"), long.marked("12h"))], openai).write == 2100


def test_thinking_cannot_carry_the_automatic_breakpoint() -> None:
    thought = text("hm", 500, role="assistant", kind="thinking")
    assert replay([prompt(text("a", 2000), thought, automatic="5m")], LOOKBACK).write == 2000


@pytest.mark.parametrize(("added", "found"), [(19, 2000), (20, 0)])
def test_the_lookback_counts_the_marker_itself(added: int, found: int) -> None:
    more = [text(str(n), 10, role="assistant") for n in range(added)]
    more[-1] = more[-1].marked("5m")
    trace = [prompt(system("s", 2000, marker="5m")), prompt(system("s", 2000), *more)]
    assert reads(replay(trace, LOOKBACK)) == [0, found]


@pytest.mark.parametrize(("rules", "found"), [(LOOKBACK, 2000), (LOOKBACK_NO_RUNS, 0)])
def test_a_run_of_results_is_one_position_where_runs_collapse(rules: CacheRules, found: int) -> None:
    calls = [text(f"c{n}", 10, role="assistant", kind="tool_use") for n in range(15)]
    results = [text(f"r{n}", 10, kind="tool_result") for n in range(15)]
    trace = [
        prompt(system("s", 2000, marker="5m")),
        prompt(system("s", 2000), *calls, *results[:-1], results[-1].marked("5m")),
    ]
    assert reads(replay(trace, rules)) == [0, found]


def test_another_model_finds_nothing() -> None:
    here = prompt(system("s", 2000, marker="5m"))
    assert reads(replay([here, replace(here, model="n"), here], LOOKBACK)) == [0, 0, 2000]


@pytest.mark.parametrize(("level", "found"), [("tools", 0), ("system", 1500), ("messages", 3500)])
def test_a_setting_salts_its_level_and_what_follows(level: Level, found: int) -> None:
    tool = Block("tools", "system", "tool", "t", 1500, marker="5m")
    base = prompt(tool, system("s", 2000, marker="5m"), text("a", 1000, marker="5m"))
    changed = replace(base, settings={level: "effort=high"})
    assert reads(replay([base, changed], LOOKBACK)) == [0, found]


def test_exact_matching_does_not_look_back() -> None:
    trace = [
        prompt(text("a", 2000, marker="30m")),
        prompt(text("a", 2000), text("b", 100, marker="30m")),
        prompt(text("a", 2000, marker="30m"), text("b", 100), text("c", 100)),
    ]
    assert reads(replay(trace, EXACT)) == [0, 0, 2000]


def test_exact_matching_writes_only_the_latest_marks() -> None:
    many = prompt(*(text(n, 2000, marker="30m") for n in "abcdef"))
    early = prompt(text("a", 2000), text("b", 2000, marker="30m"), text("x", 2000))
    late = prompt(*(text(n, 2000) for n in "ab"), text("c", 2000, marker="30m"), text("x", 2000))
    assert reads(replay([many, early, late], EXACT)) == [0, 0, 6000]


def test_implicit_mode_leaves_three_writes_for_marks() -> None:
    marks = [text(n, 2000, marker="30m") for n in "abcd"]
    first = prompt(*marks, text("e", 2000), automatic="30m")
    second = prompt(text("a", 2000, marker="30m"), text("x", 2000))
    third = prompt(text("a", 2000), text("b", 2000, marker="30m"), text("x", 2000))
    assert reads(replay([first, second, third], EXACT)) == [0, 0, 4000]


def test_message_ends_are_user_messages_result_runs_and_the_opening() -> None:
    blocks = [
        Block("tools", "system", "tool", "t", 1),
        Block("system", "system", "text", "s", 1, path="input.0.content.0"),
        Block("messages", "developer", "text", "d", 1, path="input.1.content.0"),
        Block("messages", "user", "text", "u1", 1, path="input.2.content.0"),
        Block("messages", "user", "image", "u2", 1, path="input.2.content.1"),
        Block("messages", "user", "text", "v", 1, path="input.3.content.0"),
        Block("messages", "assistant", "text", "a", 1, path="input.4.content.0"),
        Block("messages", "assistant", "function_call", "c", 1, path="input.5"),
        Block("messages", "user", "function_call_output", "r1", 1, path="input.6"),
        Block("messages", "user", "function_call_output", "r2", 1, path="input.7"),
    ]
    assert message_ends(blocks) == [2, 4, 5, 9]


def test_a_grid_reads_whole_cells_and_part_of_a_changed_block() -> None:
    one = prompt(system("s" * 400, 100), text("hello world", 11))
    two = prompt(system("s" * 400, 100), text("hello there", 11))
    assert reads(replay([one, two], replace(GRID, grid=1))) == [0, 106]
    assert reads(replay([one, two], replace(GRID, grid=16))) == [0, 96]
    assert reads(replay([one, two], replace(GRID, min_prefix=1024))) == [0, 0]


def test_a_grid_forgets_after_its_lifetime() -> None:
    rules = replace(GRID, ttls={"10m": 600}, default_ttl="10m")

    def at(seconds: float, name: str) -> RequestBlocks:
        return prompt(system(f"{name} and the same long text", 160), at=seconds)

    trace = [at(0, "aaaaaaaa"), at(100, "b"), at(650, "aaaaaaaa"), at(1250, "aaaaaaaa")]
    assert reads(replay(trace, rules)) == [0, 0, 0, 0]
    assert reads(replay([replace(p, at=None) for p in trace], rules)) == [0, 0, 160, 160]


def test_a_shared_prefix_becomes_a_unit_after_the_second_request() -> None:
    shared = system("A", 1000)
    trace = [prompt(shared, text(name, 100)) for name in ("B", "C", "D")]
    assert reads(replay(trace, UNITS)) == [0, 0, 1000]


def test_a_unit_is_read_whole_or_not_at_all() -> None:
    long, short = prompt(system("A", 1000), text("B", 100)), prompt(system("A", 1000))
    assert reads(replay([long, short], UNITS)) == [0, 0]
    assert reads(replay([short, long], UNITS)) == [0, 1000]


def test_the_end_of_an_answer_is_a_unit() -> None:
    ask, answer, call = (
        text("q", 500),
        text("a", 80, role="assistant"),
        text("c", 20, role="assistant", kind="tool_use"),
    )
    trace = [prompt(ask), prompt(ask, answer, call, text("r", 300, kind="tool_result"))]
    assert reads(replay(trace, UNITS)) == [0, 600]


# What holds for any trace.


def shared_tokens(old: RequestBlocks, new: RequestBlocks, rules: CacheRules) -> float:
    """Tokens of `new` that a cache could know from `old`, written down without any hashing."""
    if old.model != new.model:
        return 0
    tokens = 0.0
    for i, block in enumerate(new.blocks):
        upto = LEVELS[: LEVELS.index(block.level) + 1]
        if any(old.settings.get(level) != new.settings.get(level) for level in upto):
            return tokens
        if i == len(old.blocks):
            rest = new.blocks[i:]
            answer = next((n for n, b in enumerate(rest) if b.role != "assistant"), len(rest))
            return tokens + (sum(b.tokens for b in rest[:answer]) if rules.matching == "units" else 0)
        other = old.blocks[i]
        if (other.level, other.role, other.kind) != (block.level, block.role, block.kind):
            return tokens
        if other.content != block.content:
            part = block.tokens * common_length(other.content, block.content) / len(block.content)
            return tokens + (part if rules.matching == "grid" else 0)
        tokens += block.tokens
    return tokens


@pytest.mark.parametrize("rules", SMALL_RULES, ids=lambda r: f"{r.matching}-{r.collapse_runs}")
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_tokens_are_partitioned_and_reads_were_really_sent_before(rules: CacheRules, data: st.DataObject) -> None:
    trace = data.draw(traces(rules))
    done = replay(trace, rules)
    for number, (step, sent) in enumerate(zip(done.steps, trace, strict=True)):
        assert step.read + step.write + step.uncached == sent.tokens
        assert min(step.read, step.write, step.uncached) >= 0
        assert step.read == 0 or step.read >= rules.min_prefix
        assert sum(b.tokens for b in sent.blocks[: step.at_block]) <= step.read
        known = max((shared_tokens(old, sent, rules) for old in trace[:number]), default=0)
        assert step.read <= known
        assert step.cost >= step.tokens * rules.read - 1e-9


@pytest.mark.parametrize("rules", SMALL_RULES, ids=lambda r: f"{r.matching}-{r.collapse_runs}")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_last_step_alone_is_that_of_the_whole_replay(rules: CacheRules, data: st.DataObject) -> None:
    trace = [PrefixChain.of(prompt) for prompt in data.draw(traces(rules))]
    for end in range(1, len(trace) + 1):
        assert last_step(trace[:end], rules) == replay(trace[:end], rules).steps[-1]


@pytest.mark.parametrize("rules", [LOOKBACK, EXACT, GRID], ids=lambda r: r.matching)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_time_only_ever_loses_reads(rules: CacheRules, data: st.DataObject) -> None:
    rules = replace(rules, min_prefix=4, ttls=rules.ttls or {"5m": 300}, default_ttl=rules.default_ttl or "5m")
    trace: Sequence[RequestBlocks] = data.draw(traces(rules))
    timed = replay(trace, rules)
    warm = replay([replace(p, at=None) for p in trace], rules)
    assert all(t.read <= w.read for t, w in zip(timed.steps, warm.steps, strict=True))
