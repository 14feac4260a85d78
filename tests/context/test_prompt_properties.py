"""Whatever changes from turn to turn, the prefix of an assembled prompt keeps its bytes."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from loom import (
    Context,
    Fragment,
    Message,
    PromptBuilder,
    Skill,
    ToolSpec,
    create_active_skill_fragment,
    create_context_fragment,
    create_identity_fragment,
    create_memory_fragment,
    create_safety_fragment,
    create_skills_fragment,
    create_tools_fragment,
)
from loom.context.prompt import PLACES, SLOTS
from loom.core.message import TextPart, ToolCallPart, ToolResultPart
from tests.context.wire import body_of, common, marked, wire

TOOLS = [ToolSpec("search", "Find things."), ToolSpec("read", "Read a file.")]
SKILLS = [Skill(name=n, description=f"About {n}.", content=f"How to {n}.") for n in ("commit", "review", "ship")]
words = st.text(max_size=12)
places = st.sampled_from(["attention", "convo"])
turns = st.lists(
    st.fixed_dictionaries(
        {
            "date": st.dates(),
            "branch": words,
            "status": words,
            "active": st.sets(st.sampled_from(range(len(SKILLS)))),
            "tools": st.permutations(TOOLS),
            "calls": st.booleans(),
            "say": words.filter(lambda text: text.strip()),
        }
    ),
    min_size=2,
    max_size=6,
)


def encodable(text):
    return text.encode("utf-8", "replace").decode()


def prompt_of(turn, soul, agents, facts, skills):
    """A prompt assembled anew, fragments added in an order of no meaning."""
    builder = PromptBuilder()
    branch, status = encodable(turn["branch"]), encodable(turn["status"])
    builder.add_fragment(
        create_context_fragment(date=turn["date"], git_branch=branch, git_status=status, section=facts)
    )
    for at in sorted(turn["active"]):
        builder.add_fragment(create_active_skill_fragment(SKILLS[at], skills))
    builder.add_fragment(create_memory_fragment(agents)).add_fragment(create_skills_fragment(SKILLS))
    builder.add_fragment(create_tools_fragment(turn["tools"])).add_fragment(create_safety_fragment())
    return builder.add_fragment(create_identity_fragment(soul)).build()


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
@given(turns, st.tuples(words.map(encodable), words.map(encodable)), st.tuples(places, places))
def test_the_prefix_is_stable_while_the_date_changes(provider, turns, files, sections):
    ctx = Context("agent", tools=TOOLS)
    before, marks, volatile = [], [], 0
    for n, turn in enumerate(turns):
        ctx.convo.add(Message.user(encodable(turn["say"])))
        if turn["calls"]:
            ctx.convo.add(Message("assistant", (ToolCallPart(f"c{n}", "search", {}),)))
            ctx.convo.add(Message("user", (ToolResultPart(f"c{n}", (TextPart("found"),)),)))
        prompt_of(turn, *files, *sections).apply(ctx)
        body = body_of(ctx.compile(), provider)
        after = wire(body, provider)
        stays = len(before) - volatile
        assert after[:stays] == before[:stays]
        assert all(mark < common(before, after) for mark in marks), "what was marked can be read"
        volatile = len(ctx.attention.entries)
        before, marks = after, marked(body, provider)
        assert marks
        assert all(mark < len(after) - volatile for mark in marks)


fragments = st.builds(
    Fragment,
    st.sampled_from([slot for slot in SLOTS if slot != "context"]),
    words.map(encodable),
    st.integers(-3, 3),
    st.sampled_from([None, "One", "Two"]),
    st.sampled_from(PLACES),
)


@given(st.lists(fragments, max_size=8), st.lists(st.lists(fragments, max_size=8), max_size=4), st.booleans())
def test_a_context_that_was_never_sent_shows_the_text_of_the_last_build(first, later, look):
    ctx, prompt = Context("agent"), PromptBuilder().build()
    for given_now in [first, *later]:
        prompt = PromptBuilder(f for f in given_now if f.section != "convo").build()
        change = prompt.apply(ctx)
        shown = ctx.compile(clear_volatile=False).parts if look else ()
        assert not look or "".join(part.text for part in shown) == prompt.text
        assert len(change.added) + len(change.changed) + len(change.kept) == len(prompt.blocks)
    assert "".join(part.text for part in ctx.compile().parts) == prompt.text


@given(st.lists(st.lists(fragments, max_size=6), min_size=1, max_size=5))
def test_a_context_that_was_sent_shows_the_same_blocks_and_moves_none_that_stayed(builds):
    ctx = Context("agent")
    before = []
    for given_now in builds:
        prompt = PromptBuilder(f for f in given_now if f.section == "foundation").build()
        prompt.apply(ctx)
        shown = [part.text for part in ctx.compile().parts]
        assert sorted(shown) == sorted(block.text for block in prompt.blocks)
        assert [t for t in before if t in shown] == [t for t in shown if t in before], "no two changed places"
        before = shown


def said(*texts):
    return [Fragment("custom", text, section="convo") for text in texts]


@given(st.lists(st.lists(fragments, max_size=6), min_size=1, max_size=5))
@example([said("a"), said("a", "c"), said("b", "a")])
def test_the_conversation_says_everything_and_nothing_twice_in_a_row(builds):
    ctx = Context("agent")
    for given_now in builds:
        prompt = PromptBuilder(f for f in given_now if f.section == "convo").build()
        before = list(ctx.convo)
        prompt.apply(ctx)
        after = list(ctx.convo)
        assert after[: len(before)] == before
        assert {block.text for block in prompt.blocks} <= {entry.text for entry in after}
        assert prompt.apply(ctx).kept == tuple(f.slot for f in prompt.fragments)
        assert list(ctx.convo) == after


@given(st.lists(fragments, max_size=8))
def test_nothing_that_changes_stands_before_something_that_stays(given_now):
    builder = PromptBuilder(given_now)
    order = [PLACES.index(f.section) for f in builder.build().fragments]
    assert order == sorted(order)
    assert builder.build_text() == "".join(block.text for block in builder.build().blocks)
