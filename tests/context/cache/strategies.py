"""Random traces: small requests that share prefixes, in any mix of levels, markers, settings and pauses."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from loom.catalog import CacheRules
from loom.core.window import LEVELS, Block, RequestBlocks
from tests.context.cache.layouts import EXACT, GRID, LOOKBACK, LOOKBACK_NO_RUNS, UNITS

SMALL_RULES = [replace(r, min_prefix=4) for r in (LOOKBACK, LOOKBACK_NO_RUNS, EXACT, replace(GRID, grid=3), UNITS)]
KINDS = [("user", "text"), ("assistant", "text"), ("assistant", "tool_use"), ("user", "tool_result")]


@st.composite
def blocks_of(draw: st.DrawFn) -> tuple[Block, ...]:
    levels = sorted(draw(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=12)), key=LEVELS.index)
    blocks: list[Block] = []
    for level in levels:
        content = draw(st.text("ab", min_size=1, max_size=4))
        role, kind = draw(st.sampled_from(KINDS)) if level == "messages" else ("system", "text")
        blocks.append(Block(level, role, kind, content, 2 * len(content)))
    return tuple(blocks)


@st.composite
def traces(draw: st.DrawFn, rules: CacheRules) -> list[RequestBlocks]:
    pool = draw(st.lists(blocks_of(), min_size=1, max_size=3))
    prompts: list[RequestBlocks] = []
    clock = 0.0
    for _ in range(draw(st.integers(1, 8))):
        base = draw(st.sampled_from(pool))
        blocks = list(base[: draw(st.integers(1, len(base)))])
        blocks += [b for b in draw(blocks_of()) if b.level == "messages"]
        marks = sorted(draw(st.sets(st.integers(0, len(blocks) - 1), max_size=3))) if rules.ttls else []
        ttls = [draw(st.sampled_from(list(rules.ttls))) for _ in marks]
        if rules.matching == "lookback":  # which refuses a longer lifetime behind a shorter one
            ttls.sort(key=lambda ttl: -rules.ttls[ttl])
        for i, ttl in zip(marks, ttls, strict=True):
            blocks[i] = blocks[i].marked(ttl)
        clock += draw(st.sampled_from([1.0, 200.0, 4000.0]))
        choice = draw(st.dictionaries(st.sampled_from(LEVELS), st.sampled_from(["x", "y"]), max_size=1))
        automatic = draw(st.sampled_from([None, rules.default_ttl]))
        model = draw(st.sampled_from(["m", "m", "m", "n"]))
        prompts.append(RequestBlocks("p", model, tuple(blocks), automatic=automatic, settings=choice, at=clock))
    return prompts
