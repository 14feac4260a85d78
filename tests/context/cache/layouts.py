"""An agent run of 120 requests, laid out in the ways that make or break a prompt cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, permutations

from loom.catalog import CacheRules
from loom.core.window import Block, Level, RequestBlocks

REQUESTS = 120
USER_EVERY = 12
KEPT_RESULTS = 9
MODEL = "model-x"

LOOKBACK = CacheRules(
    matching="lookback",
    min_prefix=1024,
    read=0.1,
    write={"5m": 1.25, "1h": 2.0},
    ttls={"5m": 300, "1h": 3600},
    default_ttl="5m",
    max_markers=4,
)
LOOKBACK_NO_RUNS = replace(LOOKBACK, collapse_runs=False)
EXACT = CacheRules(
    matching="exact",
    min_prefix=1024,
    read=0.1,
    write={"30m": 1.25},
    ttls={"30m": 1800},
    default_ttl="30m",
    max_markers=4,
    implicit=True,
)
GRID = CacheRules(matching="grid", min_prefix=0, read=0.1, grid=16)
UNITS = CacheRules(matching="units", min_prefix=64, read=0.1)


@dataclass(frozen=True, slots=True)
class Layout:
    """A trace, the rules it meets, and the tokens that the same run shows without any clearing."""

    trace: tuple[RequestBlocks, ...]
    rules: CacheRules
    plain: int


def block(level: Level, role: str, kind: str, head: str, tokens: int) -> Block:
    """A block of about four characters to the token; `head` tells it from all others."""
    return Block(level, role, kind, f"{head}\n".ljust(tokens * 4, "lorem ipsum dolor "[len(head) % 17]), tokens)


def foundation(stamp: str = "2026-03-02") -> Block:
    return block("system", "system", "text", f"{stamp} is the current time. You are a careful engineer.", 3000)


TOOL_NAMES = ("read_file", "write_file", "grep", "run_tests", "list_files", "apply_patch", "fetch")


@cache
def tools(order: int = 0) -> Block:
    """The tool list, in the order of the n-th permutation."""
    names = next(islice(permutations(TOOL_NAMES), order, None))
    return block("tools", "system", "tool", f"tools: {', '.join(names)}", 6000)


FOCUS = block("system", "system", "text", "Fix the failing import in the billing service.", 800)
TOPIC = block("system", "system", "text", "The service has four packages and one queue.", 2200)


def static() -> list[Block]:
    return [tools(), foundation(), FOCUS, TOPIC]


def reminder(s: int) -> Block:
    return block(
        "messages", "user", "text", f"Reminder {s}: {REQUESTS - s} calls are left; keep the plan current.", 150
    )


@cache
def step(s: int, calls: int) -> tuple[Block, ...]:
    """What request `s` adds to the history: an answer, its tool calls and their results."""
    answer = block("messages", "assistant", "text", f"Step {s}: next I look at module {s * 7}.", 120)
    uses = [block("messages", "assistant", "tool_use", f'{{"read_file": "src/{s}/{c}.py"}}', 60) for c in range(calls)]
    size = 2100 // calls
    results = [block("messages", "user", "tool_result", f"src/{s}/{c}.py holds {s * c}", size) for c in range(calls)]
    return (answer, *uses, *results)


@cache
def question(s: int) -> Block:
    return block("messages", "user", "text", f"Question {s}: please go on with part {s // USER_EVERY}.", 300)


@cache
def cleared_result(s: int, call: int) -> Block:
    return block("messages", "user", "tool_result", f"[src/{s}/{call}.py cleared]", 12)


def history(s: int, *, calls: int = 3, cleared: int = 0) -> list[Block]:
    """The messages of request `s`, the first `cleared` tool results of them replaced by a note."""
    shown: list[Block] = []
    for past in range(s + 1):
        if past % USER_EVERY == 0:
            shown.append(question(past))
        if past == s:
            break
        done = min(calls, max(0, cleared - past * calls))
        blocks = step(past, calls)
        shown += blocks[: calls + 1]
        shown += [cleared_result(past, c) for c in range(done)]
        shown += blocks[calls + 1 + done :]
    return shown


@cache
def placed(b: Block, position: int) -> Block:
    return replace(b, path=f"{b.level}.{position}")


def trace_of(
    compose: Callable[[int], Iterable[Block]],
    *,
    marks: Callable[[Sequence[Block]], Iterable[int]] = lambda _: (),
    automatic: str | None = None,
    ttl: str = "5m",
) -> tuple[RequestBlocks, ...]:
    """120 requests: `compose` gives the blocks of one, `marks` the positions of its markers."""
    prompts: list[RequestBlocks] = []
    for s in range(REQUESTS):
        blocks = [placed(b, i) for i, b in enumerate(compose(s))]
        for i in set(marks(blocks)):
            blocks[i] = blocks[i].marked(ttl)
        prompts.append(RequestBlocks("provider-x", MODEL, tuple(blocks), automatic=automatic))
    return tuple(prompts)


@cache
def plain_tokens(calls: int = 3) -> int:
    """Tokens of the run without reminder or clearing: what no caching would cost."""
    return sum(sum(b.tokens for b in [*static(), *history(s, calls=calls)]) for s in range(REQUESTS))


def is_reminder(b: Block) -> bool:
    return b.content.startswith("Reminder")


def tail(blocks: Sequence[Block]) -> int:
    """The last block that is not a reminder."""
    return max(i for i, b in enumerate(blocks) if not is_reminder(b))


def static_and_tail(blocks: Sequence[Block]) -> tuple[int, ...]:
    return (3, tail(blocks))


def append_only(s: int) -> list[Block]:
    return [*static(), *history(s)]


def with_reminder_last(s: int) -> list[Block]:
    return [*append_only(s), reminder(s)]


# Markers are looked up a few positions back.


def sections_only() -> Layout:
    return Layout(trace_of(append_only, marks=lambda _: (1, 3)), LOOKBACK, plain_tokens())


def automatic_tail() -> Layout:
    return Layout(trace_of(append_only, automatic="5m"), LOOKBACK, plain_tokens())


def static_tail() -> Layout:
    return Layout(trace_of(append_only, marks=static_and_tail), LOOKBACK, plain_tokens())


def reminder_after_tail() -> Layout:
    return Layout(trace_of(with_reminder_last, marks=static_and_tail), LOOKBACK, plain_tokens())


def automatic_on_reminder() -> Layout:
    return Layout(trace_of(with_reminder_last, automatic="5m"), LOOKBACK, plain_tokens())


def reminder_before_last() -> Layout:
    def compose(s: int) -> list[Block]:
        blocks = append_only(s)
        return [*blocks[:-1], reminder(s), blocks[-1]]

    return Layout(trace_of(compose, marks=static_and_tail), LOOKBACK, plain_tokens())


def _stamped(s: int) -> list[Block]:
    blocks = append_only(s)
    blocks[1] = foundation(f"{s:03} minutes past nine")
    return blocks


def timestamp() -> Layout:
    return Layout(trace_of(_stamped, marks=static_and_tail), LOOKBACK, plain_tokens())


def tools_reordered() -> Layout:
    def compose(s: int) -> list[Block]:
        return [tools(s) if s % 7 == 3 else tools(), *append_only(s)[1:]]

    return Layout(trace_of(compose, marks=static_and_tail), LOOKBACK, plain_tokens())


def parallel_calls(*, previous_tail: bool) -> Layout:
    def compose(s: int) -> list[Block]:
        return [*static(), *history(s, calls=12)]

    def marks(blocks: Sequence[Block]) -> set[int]:
        last = len(blocks) - 1
        return {3, last, max(3, last - 25)} if previous_tail else {3, last}

    return Layout(trace_of(compose, marks=marks), LOOKBACK_NO_RUNS, plain_tokens(12))


def _clearing(every: int) -> Callable[[int], list[Block]]:
    def compose(s: int) -> list[Block]:
        return [*static(), *history(s, cleared=max(0, 3 * (s // every * every) - KEPT_RESULTS))]

    return compose


def clearing(every: int, *, read: float = 0.1) -> Layout:
    """Old tool results are cleared at every n-th request."""
    return Layout(trace_of(_clearing(every), marks=static_and_tail), replace(LOOKBACK, read=read), plain_tokens())


def cheap_reads(read: float) -> Layout:
    return replace(static_tail(), rules=replace(LOOKBACK, read=read))


# Markers are looked up exactly where they stand.


def implicit() -> Layout:
    return Layout(trace_of(append_only, automatic="30m"), EXACT, plain_tokens())


def implicit_on_reminder() -> Layout:
    return Layout(trace_of(with_reminder_last, automatic="30m"), EXACT, plain_tokens())


def only_current_tail() -> Layout:
    return Layout(trace_of(append_only, marks=static_and_tail, ttl="30m"), EXACT, plain_tokens())


def _past_ends(blocks: Sequence[Block]) -> list[int]:
    """The last static block, every question, and the last result of every step."""
    kinds = [*(b.kind for b in blocks), ""]
    questions = {i for i, b in enumerate(blocks) if b.content.startswith("Question")}
    last_results = {i for i in range(len(blocks)) if kinds[i] == "tool_result" != kinds[i + 1]}
    return sorted({3} | questions | last_results)


def past_ends_marked() -> Layout:
    return Layout(trace_of(with_reminder_last, marks=_past_ends, ttl="30m"), EXACT, plain_tokens())


def implicit_and_marks() -> Layout:
    trace = trace_of(with_reminder_last, marks=static_and_tail, automatic="30m", ttl="30m")
    return Layout(trace, EXACT, plain_tokens())


# No markers at all.


def grid_clean() -> Layout:
    return Layout(trace_of(append_only), GRID, plain_tokens())


def grid_timestamp() -> Layout:
    return Layout(trace_of(_stamped), GRID, plain_tokens())


def grid_clearing() -> Layout:
    return Layout(trace_of(_clearing(1)), GRID, plain_tokens())
