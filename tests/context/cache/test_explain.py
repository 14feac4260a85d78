"""Explain: the first entry, section and byte that moved, who moved it, what it costs, what to do."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom import Context, FileEntry, Message, StringEntry, ToolSpec, explain, find_model, simulate
from loom.cli.output import plain
from loom.context.cache.explain import compare
from loom.context.cache.simulate import has_moved
from tests.context.cache.strategies import SMALL_RULES, traces
from tests.context.wire import body_of, wire

CLAUDE = "claude-sonnet-4-5"


def agent():
    ctx, guest = Context("agent"), Context("guest")
    ctx.include(guest)
    ctx.tools = [ToolSpec("look", "Look."), ToolSpec("find", "Find.")]
    ctx.foundation.add(StringEntry("rule " * 1500))
    guest.foundation.add(StringEntry("Guests take off their shoes."))
    ctx.focus.add(StringEntry("the task"))
    ctx.convo.add(Message.user("begin"))
    ctx.convo.add(Message.assistant("yes"))
    ctx.convo.add(Message.user("go on"))
    return ctx, guest


def after(change, *, ctx_guest=None):
    ctx, guest = ctx_guest or agent()
    before = ctx.compile()
    change(ctx, guest)
    return explain(before, ctx.compile(), "anthropic", CLAUDE)


def test_appending_moves_nothing():
    found = after(lambda ctx, _: ctx.convo.add(Message.assistant("more")))
    assert (found.cause, found.moved, found.lost_tokens, found.extra_cost) == ("nothing_moved", False, 0, 0)
    assert found.kept_tokens > 1500


def test_a_new_reminder_moves_nothing():
    def change(ctx, _):
        ctx.attention.add(StringEntry("soon"))
        ctx.step.add(StringEntry("output"))

    assert not after(change).moved


def test_an_edited_entry_is_named_with_its_section_its_context_and_the_byte():
    entries = []

    def change(_, guest):
        (entry,) = guest.foundation
        entries.append(guest.redact(entry, tombstone="Guests keep on their shoes.").tombstone)

    found = after(change)
    assert found.cause == "block_edited"
    assert (found.origin.section, found.origin.context, found.origin.entry) == ("foundation", "guest", entries[0].id)
    assert found.byte_in_block == len("Guests ")
    assert (found.before, found.after) == ("Guests take off their shoes.", "Guests keep on their shoes.")
    assert found.path == "system[1]"
    assert found.lost_tokens < 100
    assert found.extra_cost == pytest.approx(found.lost_tokens * 1.15)
    assert found.extra_usd == pytest.approx(found.extra_cost * find_model(CLAUDE).input_price / 1e6)


def test_bytes_are_counted_not_characters():
    ctx, guest = agent()
    entry = guest.foundation.add(StringEntry("Grüße: früh"))
    found = after(lambda _, g: g.redact(entry, tombstone="Grüße: spät"), ctx_guest=(ctx, guest))
    assert found.byte_in_block == len("Grüße: ".encode())


def test_an_inserted_entry_is_blamed_and_not_the_one_it_pushed():
    found = after(lambda ctx, _: ctx.foundation.add(StringEntry("One more rule.")))
    assert found.cause == "block_inserted"
    assert found.after == "One more rule."
    assert found.origin.section == "foundation"


def test_a_removed_entry_is_named():
    found = after(lambda ctx, _: ctx.redact(next(iter(ctx.focus))))
    assert (found.cause, found.before, found.origin.section) == ("block_removed", "the task", "focus")


def test_an_edited_file_gets_the_advice_to_pin_it(tmp_path):
    path = tmp_path / "SOUL.md"
    path.write_text("Be kind.")
    ctx, guest = agent()
    ctx.foundation.add(FileEntry(path))
    found = after(lambda *_: path.write_text("Be blunt."), ctx_guest=(ctx, guest))
    assert found.origin.label == "SOUL.md"
    assert "pin=True" in found.advice


def test_a_clock_gets_the_advice_to_move_it():
    ctx, guest = agent()
    entry = ctx.foundation.add(StringEntry("Now: 2026-11-15 03:12"))
    found = after(lambda c, _: c.redact(entry, tombstone="Now: 2026-11-15 03:13"), ctx_guest=(ctx, guest))
    assert "attention" in found.advice


def test_tools():
    found = after(lambda ctx, _: ctx.tools.append(ToolSpec("fetch", "Fetch.")))
    assert (found.cause, found.message) == ("tools_changed", "The tools changed: fetch added.")
    found = after(lambda ctx, _: setattr(ctx, "tools", [ToolSpec("look", "Look closely."), ToolSpec("find", "Find.")]))
    assert (found.cause, found.kept_tokens) == ("tools_changed", 0)


def anthropic(**changes):
    body = {
        "model": CLAUDE,
        "max_tokens": 10,
        "tools": [{"name": n, "input_schema": {"type": "object"}} for n in ("a", "b")],
        "system": "rule " * 4500,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        ],
    }
    return {**body, **changes}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "nothing_moved"),
        ({"max_tokens": 99}, "nothing_moved"),
        ({"model": "claude-opus-4-5"}, "model_changed"),
        ({"tools": anthropic()["tools"][::-1]}, "tools_reordered"),
        ({"tools": anthropic()["tools"][:1]}, "tools_changed"),
        ({"system": "rule " * 4499}, "block_edited"),
        ({"tool_choice": {"type": "any"}}, "settings_changed"),
        ({"messages": [{"role": "user", "content": "other"}]}, "block_edited"),
        ({"messages": []}, "block_removed"),
    ],
)
def test_requests_of_other_programs(changes, cause):
    found = explain(anthropic(), anthropic(**changes))
    assert found.cause == cause
    assert found.moved is (cause != "nothing_moved")
    assert not found.moved or (found.advice and found.lost_tokens > 0)
    assert plain(found)["cause"] == cause


def gemini(tools):
    declared = [{"googleSearch": {}}, {"functionDeclarations": tools}]
    return {"model": "gemini-3.1-pro", "contents": [{"parts": [{"text": "rule " * 9000}]}], "tools": declared}


def legacy(tools):
    return {"model": "gpt-5.5", "functions": tools, "messages": [{"role": "user", "content": "rule " * 4500}]}


@pytest.mark.parametrize(
    ("body", "path"), [(gemini, "tools[1].functionDeclarations[1]"), (legacy, "functions[1]")], ids=["gemini", "legacy"]
)
def test_a_tool_is_named_by_its_place_in_the_request(body, path):
    tools = [{"name": name, "description": "."} for name in "abc"]
    edited = [tools[0], {"name": "b", "description": "!"}, tools[2]]
    for later in (edited, tools[:1], [tools[0], tools[2], tools[1]]):
        assert explain(body(tools), body(later)).path == path
    assert explain(body(tools[:1]), body(tools)).path == path


def test_where_the_words_are_the_same_the_byte_is_that_of_what_is_beside_them():
    def named(name):
        words = [{"role": "system", "content": "rule " * 4500}, {"role": "user", "name": name, "content": "hello"}]
        return {"model": "gpt-5.5", "messages": words}

    found = explain(named("ann"), named("bob"))
    assert (found.cause, found.path) == ("block_edited", "messages[1].content")
    assert (found.before[-13:], found.after[-13:]) == ('"name":"ann"}', '"name":"bob"}')
    assert found.byte_in_block == len('{"type":"text","text":"hello","name":"')


def _chat_result(words):
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": words}]
    return {"model": "gpt-5.5", "messages": [{"role": "user", "content": "rule " * 4500}, *turn]}


def _responses_result(words):
    call = {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_text", "text": words}]}
    return {"model": "gpt-5.5", "instructions": "rule " * 4500, "input": [call, result]}


@pytest.mark.parametrize(
    ("body", "path"), [(_chat_result, "messages[2].content"), (_responses_result, "input[1].output[0]")]
)
def test_the_byte_in_a_result_is_that_of_its_words(body, path):
    found = explain(body('It is "öpen".'), body('It is "öper".'))
    assert (found.path, found.byte_in_block) == (path, len('It is "öpe'.encode()))
    assert (found.before, found.after) == ('It is "öpen".', 'It is "öper".')


def test_what_follows_the_last_breakpoint_of_the_provider_was_not_cached():
    def begun(answer, *more):
        opening = [{"role": "system", "content": "rule " * 4500}, {"role": "user", "content": "hello"}]
        return {"model": "gpt-5.6", "messages": [*opening, {"role": "assistant", "content": answer}, *more]}

    before, later = begun("One."), begun("Two.", {"role": "user", "content": "and?"})
    found = explain(before, later)
    assert (found.cause, found.kept_tokens) == ("nothing_moved", simulate([before, later]).steps[1].read)


def test_a_setting_among_the_messages_is_part_of_the_prefix():
    def at(effort):
        words = [{"role": "user", "content": "rule " * 4500}, {"role": "user", "content": "go on"}]
        setting = {"role": "system", "content": [], "output_config": {"effort": effort}}
        return anthropic(messages=[words[0], setting, words[1]], cache_control={"type": "ephemeral"})

    found = explain(at("low"), at("high"))
    assert (found.cause, found.path) == ("block_edited", "messages[1].output_config")
    assert explain(at("low"), at("low")).cause == "nothing_moved"


def test_nothing_was_cached_without_a_marker():
    before, later = anthropic(messages=[{"role": "user", "content": "hi"}]), anthropic(system="x")
    found = explain(before, later)
    assert found.message.startswith("The previous request left nothing in the cache")
    assert (found.lost_tokens, found.extra_cost) == (0, 0)


@pytest.mark.parametrize("provider", ["openai", "openai_chat", "gemini"])
def test_other_providers(provider):
    ctx, _ = agent()
    before = ctx.compile()
    ctx.focus.add(StringEntry("and one more"))
    later = ctx.compile()
    model = {"openai": "gpt-5.6", "openai_chat": "gpt-5.6", "gemini": "gemini-3.1-pro"}[provider]
    found = explain(before, later, provider, model)
    assert (found.cause, found.after) == ("block_inserted", "and one more")
    one, two = (wire(body_of(w, provider), provider) for w in (before, later))
    assert one != two


@given(st.sampled_from(SMALL_RULES).flatmap(lambda rules: st.tuples(st.just(rules), traces(rules))))
def test_the_quick_answer_is_that_of_the_explanation(drawn):
    rules, trace = drawn
    info = replace(find_model(CLAUDE), cache=rules)
    for before, later in pairwise(trace):
        assert has_moved(before, later, rules) == compare(before, later, info).moved


@pytest.mark.parametrize(
    ("provider", "model"), [("anthropic", CLAUDE), ("openai", "gpt-5.6"), ("gemini", "gemini-3.1-pro")]
)
def test_a_window_is_compared_as_what_the_recorded_request_is(provider, model):
    ctx, _ = agent()
    window = ctx.compile()
    body = {**body_of(window, provider), "model": model}
    assert explain(body, window).cause == explain(window, body).cause == "nothing_moved"
