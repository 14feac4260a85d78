"""Diagnosis: the right cause for each bad layout, a fix that works, and silence on good ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.catalog import CacheRules
from loom.context.cache.diagnose import diagnose, simulate
from loom.context.cache.repair import FIXES, repair
from loom.context.cache.simulate import FindingCause, Fix, marked, replay
from loom.core.window import Block, BlockOrigin, RequestBlocks
from loom.errors import UsageError
from tests.context.cache import layouts
from tests.context.cache.layouts import EXACT, GRID, LOOKBACK, UNITS, Layout
from tests.context.cache.strategies import SMALL_RULES, traces

BAD: list[tuple[Callable[[], Layout], FindingCause, Fix]] = [
    (layouts.sections_only, "tail_not_marked", "mark_tail"),
    (layouts.automatic_on_reminder, "automatic_marker_on_volatile", "explicit_tail"),
    (layouts.reminder_before_last, "reminder_removed", "move_volatile"),
    (layouts.timestamp, "volatile_in_prefix", "move_volatile"),
    (layouts.tools_reordered, "tools_reordered", "pin_tools"),
    (partial(layouts.parallel_calls, previous_tail=False), "lookback_overflow", "mark_previous_tail"),
    (partial(layouts.clearing, 1), "history_rewritten", "batch_edits"),
    (layouts.implicit_on_reminder, "automatic_marker_on_volatile", "explicit_tail"),
    (layouts.only_current_tail, "past_marks_dropped", "remark_ends"),
    (layouts.grid_timestamp, "volatile_in_prefix", "move_volatile"),
]

GOOD: list[Callable[[], Layout]] = [
    layouts.automatic_tail,
    layouts.static_tail,
    layouts.reminder_after_tail,
    partial(layouts.parallel_calls, previous_tail=True),
    partial(layouts.clearing, 10),
    partial(layouts.clearing, 30),
    partial(layouts.clearing, 60),
    partial(layouts.clearing, 30, read=0.025),
    partial(layouts.cheap_reads, 0.05),
    layouts.implicit,
    layouts.past_ends_marked,
    layouts.implicit_and_marks,
    layouts.grid_clean,
]


def name_of(value: object) -> str | None:
    if isinstance(value, partial):
        return f"{value.func.__name__}-{value.args}-{value.keywords}"
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("layout", "cause", "fix"), BAD, ids=name_of)
def test_a_bad_layout_is_named_and_repaired(layout: Callable[[], Layout], cause: FindingCause, fix: Fix) -> None:
    bad = layout()
    findings = diagnose(bad.trace, bad.rules)
    assert (findings[0].cause, findings[0].fix) == (cause, fix)
    before, after = replay(bad.trace, bad.rules), replay(repair(bad.trace, fix, bad.rules), bad.rules)
    assert after.cost / bad.plain <= 0.12
    assert findings[0].saving == pytest.approx(1 - after.cost / before.cost)
    assert all(f.saving <= findings[0].saving for f in findings)


@pytest.mark.parametrize(("layout", "cause", "fix"), BAD, ids=name_of)
def test_a_repaired_layout_has_nothing_left_to_find(
    layout: Callable[[], Layout], cause: FindingCause, fix: Fix
) -> None:
    bad = layout()
    left = diagnose(repair(bad.trace, fix, bad.rules), bad.rules)
    assert [f for f in left if f.saving > 0.01] == []


@pytest.mark.parametrize("layout", GOOD, ids=name_of)
def test_a_good_layout_gives_no_finding(layout: Callable[[], Layout]) -> None:
    good = layout()
    assert [f for f in diagnose(good.trace, good.rules) if f.saving > 0.01] == []


def test_a_finding_says_where_and_how_much() -> None:
    bad = layouts.sections_only()
    finding = diagnose(bad.trace, bad.rules)[0]
    assert finding.where == "messages.846"
    assert finding.requests == 119  # nobody can avoid the first write
    fixed = replay(repair(bad.trace, "mark_tail", bad.rules), bad.rules)
    assert finding.lost == fixed.read - replay(bad.trace, bad.rules).read == 17_045_400
    assert "17,045,400 tokens were paid again in 119 of 120 requests" in finding.message
    assert finding.advice.startswith("mark the last block")
    assert finding.saving == pytest.approx(0.873, abs=0.001)


def changed_twice() -> tuple[RequestBlocks, ...]:
    """Twelve requests of a growing conversation, in which one block of the system prompt changes in two of them."""

    def prompt(n: int) -> RequestBlocks:
        day = {8: "Tuesday", 9: "Wednesday"}.get(n, "Monday" if n < 8 else "Wednesday")
        head = Block("system", "system", "text", f"{'rules ' * 50}{day}", 2_000, path="system.0", marker="5m")
        turns = [Block("messages", "user", "text", f"turn {k}", 150, path=f"messages.{k}") for k in range(n + 1)]
        return RequestBlocks("p", "m", (head, *turns[:-1], turns[-1].marked("5m")))

    return tuple(prompt(n) for n in range(12))


def test_only_what_was_lost_is_counted_and_only_where_it_was_lost() -> None:
    trace = changed_twice()
    (finding,) = diagnose(trace, LOOKBACK, price=2.0)
    steps = replay(trace, LOOKBACK).steps
    lost = (2_000 + 8 * 150) + (2_000 + 9 * 150)  # what requests 8 and 9 could have read
    assert [steps[8].read, steps[9].read] == [0, 0]
    assert (finding.cause, finding.requests) == ("volatile_in_prefix", 2)
    assert finding.lost == pytest.approx(lost, abs=64)  # the fix adds a note of a few tokens
    assert "came with other content in 2 of 12 requests" in finding.message
    assert "in 2 of 12 requests, which cost $0.01" in finding.message
    assert finding.usd == pytest.approx(finding.saving * replay(trace, LOOKBACK).cost * 2.0 / 1e6)


def test_savings_are_in_the_order_of_doing_and_add_up() -> None:
    stamped = layouts.timestamp()
    trace = tuple(replace(p, blocks=tuple(b.marked(None) for b in p.blocks)) for p in stamped.trace)
    found = diagnose(trace, LOOKBACK)
    repaired, cost = trace, replay(trace, LOOKBACK).cost
    for finding in found:
        assert finding.fix
        repaired = repair(repaired, finding.fix, LOOKBACK)
    assert sum(f.saving for f in found) == pytest.approx(1 - replay(repaired, LOOKBACK).cost / cost)
    assert sum(f.saving for f in found) < 1


def test_a_simulation_knows_its_findings_and_dollars() -> None:
    trace = changed_twice()
    done = simulate([replace(p, provider="anthropic", model="claude-sonnet-5") for p in trace])
    assert [f.cause for f in done.findings] == ["volatile_in_prefix"]
    assert done.price == 2.0
    assert done.usd == pytest.approx(done.cost * 2.0 / 1e6)
    assert done.findings[0].usd == pytest.approx(done.findings[0].saving * (done.usd or 0))
    assert done.fixed_cost == pytest.approx(done.cost * (1 - done.findings[0].saving))
    unpriced = simulate([replace(p, provider="vllm", model="m") for p in trace])
    assert (unpriced.usd, unpriced.price) == (None, None)
    assert all(f.usd is None for f in unpriced.findings)


def test_the_author_of_a_changing_block_is_named() -> None:
    origin = BlockOrigin("foundation", "e3", "main", "clock.md")
    bad = layouts.timestamp()
    trace = [
        replace(p, blocks=(p.blocks[0], replace(p.blocks[1], origin=origin), *p.blocks[2:])) for p in bad.trace[:20]
    ]
    assert diagnose(trace, bad.rules)[0].where == "system.1, entry e3 (clock.md) in foundation of context 'main'"


def test_faults_that_hide_each_other_are_both_found() -> None:
    stamped = layouts.timestamp()
    trace = tuple(replace(p, blocks=tuple(b.marked(None) for b in p.blocks)) for p in stamped.trace)
    found = diagnose(trace, LOOKBACK)
    assert {f.cause for f in found} == {"volatile_in_prefix", "tail_not_marked"}
    repaired = trace
    for finding in found:
        assert finding.fix is not None
        repaired = repair(repaired, finding.fix, LOOKBACK)
    assert replay(repaired, LOOKBACK).relative_cost <= 0.12


def test_clearing_pays_less_to_batch_on_a_grid_than_on_marks() -> None:
    grid, marks = layouts.grid_clearing(), layouts.clearing(1)
    on_grid, on_marks = diagnose(grid.trace, grid.rules), diagnose(marks.trace, marks.rules)
    assert on_grid[0].saving < on_marks[0].saving / 2


# Repairs are operations on blocks.


def shape(trace: tuple[RequestBlocks, ...]) -> list[list[tuple[bytes, str | None]]]:
    return [[(b.key, b.marker) for b in p.blocks] for p in trace]


def test_batched_edits_equal_a_run_that_batched_from_the_start() -> None:
    eager = layouts.clearing(1)
    assert shape(repair(eager.trace, "batch_edits", LOOKBACK)) == shape(layouts.clearing(20).trace)


def test_moved_reminders_equal_reminders_sent_last() -> None:
    bad, good = layouts.reminder_before_last(), layouts.reminder_after_tail()
    assert shape(repair(bad.trace, "move_volatile", LOOKBACK)) == shape(good.trace)


def test_an_automatic_breakpoint_becomes_a_marker_before_the_reminder() -> None:
    bad = layouts.automatic_on_reminder()
    repaired = repair(bad.trace, "explicit_tail", LOOKBACK)
    assert len(repaired) == len(bad.trace) > 1
    for prompt in repaired:
        assert prompt.automatic is None
        assert prompt.markers == (len(prompt.blocks) - 2,)


def test_pinned_tools_equal_the_plain_run() -> None:
    assert shape(repair(layouts.tools_reordered().trace, "pin_tools", LOOKBACK)) == shape(layouts.static_tail().trace)


def test_every_past_tail_is_marked_again_under_exact_matching() -> None:
    bad = layouts.implicit_on_reminder().trace
    tails = [len(p.blocks) - 2 for p in bad]  # the reminder is last
    repaired = repair(bad, "explicit_tail", EXACT)
    assert [p.markers for p in repaired] == [tuple(tails[: n + 1]) for n in range(120)]


def test_a_changed_line_moves_and_the_rest_of_its_block_stays() -> None:
    repaired = repair(layouts.timestamp().trace, "move_volatile", LOOKBACK)
    assert {p.blocks[1].key for p in repaired} == {layouts.timestamp().trace[0].blocks[1].key}
    assert repaired[0].tokens == layouts.timestamp().trace[0].tokens
    assert repaired[41].blocks[-1].content == "41"
    assert repaired[41].blocks[-1].volatile
    assert repaired[41].blocks[-2].marker == "5m"


def test_a_block_that_is_new_each_time_moves_whole() -> None:
    def prompt(n: int) -> RequestBlocks:
        weather = Block("system", "system", "text", f"{n * 7919}" * 50, 1000, path="system.0")
        rules = Block("system", "system", "text", "rules", 5000, path="system.1", marker="5m")
        asked = [Block("messages", "user", "text", f"question {k}", 10) for k in range(n + 1)]
        return RequestBlocks("p", "m", (weather, rules, *asked))

    trace = tuple(prompt(n) for n in range(6))
    assert diagnose(trace, LOOKBACK)[0].cause == "volatile_in_prefix"
    repaired = repair(trace, "move_volatile", LOOKBACK)
    assert [p.blocks[0].content for p in repaired] == ["rules"] * 6
    assert [(p.blocks[-1].content, p.blocks[-1].level, p.blocks[-1].tokens) for p in repaired] == [
        (f"{n * 7919}" * 50, "messages", 1000) for n in range(6)
    ]


def test_tools_keep_their_first_order_and_new_ones_come_last() -> None:
    def tool(name: str, text: str = "") -> Block:
        return Block("tools", "system", "tool", f'{{"name": "{name}", "description": "{text}"}}', 600)

    def prompt(*tools: Block) -> RequestBlocks:
        return RequestBlocks("p", "m", (*tools, Block("system", "system", "text", "rules", 2000, marker="5m")))

    trace = (
        prompt(tool("a"), tool("b")),
        prompt(tool("b"), tool("a")),
        prompt(tool("c"), tool("a", "now 3 files"), tool("b")),
    )
    repaired = repair(trace, "pin_tools", LOOKBACK)
    assert repaired[1].blocks == repaired[0].blocks == trace[0].blocks
    assert repaired[2].blocks[:3] == (tool("a"), tool("b"), tool("c"))
    assert diagnose(trace[:2], LOOKBACK)[0].cause == "tools_reordered"
    assert diagnose(trace, LOOKBACK)[0].cause == "tools_changed"


@pytest.mark.parametrize("fix", FIXES)
def test_no_repair_asks_for_more_markers_than_the_provider_takes(fix: Fix) -> None:
    full = layouts.trace_of(layouts.with_reminder_last, marks=lambda _: (0, 1, 2, 3))[:30]
    repaired = repair(full, fix, LOOKBACK)
    assert [len(marked(p, LOOKBACK)) for p in repaired] == [4] * 30
    if fix == "mark_tail":  # the earliest marker gives way
        assert [p.markers for p in repaired] == [(1, 2, 3, len(p.blocks) - 2) for p in full]


def test_a_new_marker_lasts_as_long_as_those_behind_it() -> None:
    whole = [Block("messages", "user", "text", name, 2000) for name in "abcde"]
    marked = [*whole[:2], whole[2].marked("1h"), whole[3].marked("5m")]
    trace = [RequestBlocks("p", "m", tuple(blocks)) for blocks in (whole[:2], marked, whole)]
    repaired = repair(trace, "mark_previous_tail", LOOKBACK)[1]
    assert dict(repaired.marks) == {1: "1h", 2: "1h", 3: "5m"}
    replay([repaired], LOOKBACK)  # which a provider would not refuse


def test_an_unknown_fix_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no fix 'pray'; the fixes are pin_tools"):
        repair((), "pray", LOOKBACK)  # pyright: ignore[reportArgumentType]


# Causes that the table of layouts does not show.


def conversation(n: int, *, marker: str | None = "5m", size: int = 3000) -> RequestBlocks:
    asked = [Block("messages", "user", "text", f"turn {k}", 100, path=f"messages.{k}") for k in range(n + 1)]
    asked[-1] = asked[-1].marked(marker)
    return RequestBlocks("p", "m", (Block("system", "system", "text", "rules", size, path="system.0"), *asked))


def test_a_clean_conversation_of_any_length_is_silent() -> None:
    for length in (0, 1, 2, 3, 10):
        assert diagnose([conversation(n) for n in range(length)], LOOKBACK) == ()


def test_a_pause_longer_than_the_lifetime_is_found() -> None:
    trace = [replace(conversation(n), at=n * 900.0) for n in range(10)]
    finding = diagnose(trace, LOOKBACK)[0]
    assert (finding.cause, finding.fix, finding.requests) == ("ttl_expired", "longer_ttl", 9)
    assert "900 seconds" in finding.message
    assert replay(repair(trace, "longer_ttl", LOOKBACK), LOOKBACK).read_share > 0.8


def test_a_pause_longer_than_every_lifetime_has_no_fix() -> None:
    trace = [replace(conversation(n), at=n * 9000.0) for n in range(10)]
    assert diagnose(trace, LOOKBACK) == ()


def test_a_prompt_below_the_minimum_is_said_to_be_too_short() -> None:
    finding = diagnose([conversation(n, size=200) for n in range(4)], LOOKBACK)[0]
    assert (finding.cause, finding.fix, finding.saving) == ("below_minimum", None, 0.0)
    assert "600 tokens" in finding.message
    assert "under 1,024" in finding.message


def test_a_changing_parameter_is_found() -> None:
    trace = [replace(conversation(n), settings={"system": f"speed={n % 2}"}) for n in range(10)]
    finding = diagnose(trace, LOOKBACK)[0]
    assert (finding.cause, finding.where) == ("settings_changed", "request 2")
    assert "a request parameter changed in 9 of 10 requests, first in request 2" in finding.message
    assert "the model changed" in diagnose([*trace[:1], replace(trace[1], model="n")], LOOKBACK)[0].message


def test_a_window_that_drops_its_oldest_message_is_found_and_batched() -> None:
    def prompt(n: int) -> RequestBlocks:
        turns = [
            Block("messages", "user", "text", f"turn {k} {'x' * 40}", 500, path=f"messages.{k}")
            for k in range(max(0, n - 15), n + 1)
        ]
        turns[-1] = turns[-1].marked("5m")
        rules = Block("system", "system", "text", "rules", 2000, path="system.0", marker="5m")
        return RequestBlocks("p", "m", (rules, *turns))

    trace = tuple(prompt(n) for n in range(60))
    finding = diagnose(trace, LOOKBACK)[0]
    assert (finding.cause, finding.requests) == ("history_rewritten", 43)
    assert "44 of 60 requests edited" in finding.message
    repaired = repair(trace, "batch_edits", LOOKBACK)
    assert replay(repaired, LOOKBACK).cost < replay(trace, LOOKBACK).cost / 2
    assert all(old.blocks[-1] == new.blocks[-1] for old, new in zip(trace, repaired, strict=True))


def test_requests_that_share_only_their_instructions_need_a_mark_there() -> None:
    def prompt(n: int) -> RequestBlocks:
        asked = Block("messages", "user", "text", f"customer {n}", 200, path="messages.0")
        return RequestBlocks(
            "p", "m", (Block("system", "system", "text", "rules", 4000, path="system.0"), asked), automatic="5m"
        )

    trace = [prompt(n) for n in range(8)]
    finding = diagnose(trace, LOOKBACK)[0]
    assert finding.cause == "automatic_marker_on_volatile"
    assert [p.markers for p in repair(trace, "explicit_tail", LOOKBACK)] == [(0,)] * 8


def test_a_declared_volatile_block_is_believed_in_a_single_request() -> None:
    last = Block("messages", "user", "text", "the time is now", 20, path="messages.1", volatile=True)
    first = conversation(0, marker=None)
    trace = [replace(first, blocks=(*first.blocks, last), automatic="5m")] * 2
    assert [p.markers for p in repair(trace[:1], "explicit_tail", LOOKBACK)] == [(1,)]


def test_sections_only_under_exact_matching_is_repaired_with_past_ends() -> None:
    trace = tuple(replace(p, blocks=tuple(b.marked("30m" if b.marker else None) for b in p.blocks))
                  for p in layouts.sections_only().trace)  # fmt: skip
    finding = diagnose(trace, EXACT)[0]
    assert finding.cause == "tail_not_marked"
    assert replay(repair(trace, "mark_tail", EXACT), EXACT).relative_cost <= 0.12


@pytest.mark.parametrize("rules", [GRID, UNITS], ids=lambda r: r.matching)
def test_caches_without_markers_are_never_told_to_mark(rules: CacheRules) -> None:
    clean = [conversation(n, marker=None) for n in range(12)]
    stamped = [
        replace(p, blocks=(replace(p.blocks[0], content=f"{n} o'clock. {'rules ' * 90}"), *p.blocks[1:]))
        for n, p in enumerate(clean)
    ]
    assert diagnose(clean, rules) == ()
    assert [(f.cause, f.fix) for f in diagnose(stamped, rules)] == [("volatile_in_prefix", "move_volatile")]


@pytest.mark.parametrize("rules", SMALL_RULES, ids=lambda r: f"{r.matching}-{r.collapse_runs}")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_trace_can_be_diagnosed_and_repaired(rules: CacheRules, data: st.DataObject) -> None:
    trace = data.draw(traces(rules))
    cost = replay(trace, rules).cost
    found = diagnose(trace, rules)
    together = trace
    for fix in sorted({f.fix for f in found if f.fix}, key=FIXES.index):
        together = repair(together, fix, rules)
    assert sum(f.saving for f in found) == pytest.approx(1 - replay(together, rules).cost / max(cost, 1.0), abs=1e-6)
    assert sum(f.saving for f in found) >= 0.0
    assert all(f.lost >= 0 and 0 <= f.requests <= len(trace) for f in found)
    for fix in FIXES:
        repaired = repair(trace, fix, rules)
        assert len(repaired) == len(trace)
        assert replay(repaired, rules).cost >= 0


def test_fixes_that_pay_only_beside_each_other_are_not_proposed() -> None:
    rules = next(r for r in SMALL_RULES if r.matching == "lookback" and r.collapse_runs)

    def request(at: float, *levels: str, marker: str | None = None) -> RequestBlocks:
        roles = ["user" if level == "messages" else "system" for level in levels]
        blocks = [Block(level, role, "text", "a", 2) for level, role in zip(levels, roles, strict=True)]
        return RequestBlocks("p", "m", (replace(blocks[0], marker=marker), *blocks[1:]), at=at)

    long = request(2.0, "tools", "system", "messages", "messages", marker="1h")
    found = diagnose([request(1.0, "tools", "system"), long, request(3.0, "tools")], rules)
    assert [f.saving for f in found if f.saving < 0] == []


def test_a_trace_may_come_one_by_one() -> None:
    body = {"model": "claude-sonnet-5", "cache_control": {"type": "ephemeral"}, "messages": []}
    said = {**body, "messages": [{"role": "user", "content": "word " * 3000}]}
    assert [step.read > 0 for step in simulate(iter([said, said])).steps] == [False, True]
    with pytest.raises(UsageError, match="the trace is empty"):
        simulate(iter(()))
