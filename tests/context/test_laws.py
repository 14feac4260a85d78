"""The laws of a window, for every renderer."""

import base64
import json

import pytest

from loom import CacheWarning, Context, FileEntry, ImageEntry, StringEntry, plan, render
from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import BadCacheTTL, EntryNotFound, UnknownSection, UsageError
from tests.context.wire import MODELS, body_of, flat, marked, wire

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
LONG = "".join(f"a line that stays as it is, number {n}\n" for n in range(20))
PROVIDERS = sorted(MODELS)
every_renderer = pytest.mark.parametrize("provider", PROVIDERS)


def rich(name="agent"):
    ctx, guest = Context(name), Context("guest")
    ctx.include(guest)
    ctx.tools += [ToolSpec("search", "Find things.", {"type": "object", "properties": {"q": {"type": "string"}}})]
    ctx.foundation.add(StringEntry("You are careful."))
    guest.foundation.add(StringEntry("Check twice.", name="Rules"))
    ctx.focus.add(StringEntry("Fix the bug."))
    ctx.topic.add(ImageEntry(PNG, "image/png", "shot"))
    ctx.convo.add(Message.user("hello"))
    ctx.convo.add(Message.assistant("hi, what is it?"))
    ctx.convo.add(Message.user("look at this"))
    ctx.step.add(StringEntry("$ make test"))
    ctx.attention.add(StringEntry("Answer briefly."))
    return ctx


def turn(ctx, n):
    calls = tuple(ToolCallPart(f"c{n}.{i}", "search", {"q": f"{n} {i}"}) for i in range(2))
    ctx.convo.add(Message("assistant", (TextPart(f"looking {n}"), *calls)))
    ctx.convo.add(Message("user", tuple(ToolResultPart(c.id, (TextPart(f"found {c.id}"),)) for c in calls)))
    ctx.convo.add(Message.assistant(f"done {n}"))
    ctx.convo.add(Message.user(f"next {n}"))


# -- 1. appending leaves every earlier byte unchanged --------------------------------------------------------


@every_renderer
def test_appending_turns_leaves_every_earlier_byte_unchanged(provider):
    ctx = rich()
    before = wire(body_of(ctx.compile(), provider), provider)
    for n in range(30):
        stable = len(before) - (2 if n == 0 else 1)  # step and attention, then only a new attention, are volatile
        ctx.attention.clear()
        ctx.attention.add(StringEntry(f"reminder {n}"))
        turn(ctx, n)
        after = wire(body_of(ctx.compile(), provider), provider)
        assert after[:stable] == before[:stable]
        assert len(after) > len(before) - 1
        before = after


@every_renderer
def test_two_compiles_of_one_state_render_the_same_bytes(provider):
    ctx = rich()
    one, two = (json.dumps(body_of(ctx.compile(clear_volatile=False), provider)) for _ in range(2))
    assert one == two


@every_renderer
def test_ids_and_times_never_reach_the_wire(provider):
    one, two = rich(), rich()
    assert json.dumps(body_of(one.compile(), provider)) == json.dumps(body_of(two.compile(), provider))


def test_an_unchanged_prefix_is_the_identical_object():
    ctx = rich()
    first = ctx.compile()
    turn(ctx, 0)
    second = ctx.compile()
    assert second.heads[0] is first.heads[0]
    assert second.heads[1] is first.heads[1]
    assert second.heads[3].parent is first.heads[3]


# -- 2. and 3. markers ------------------------------------------------------------------------------------------


@every_renderer
@pytest.mark.parametrize(
    "breakpoints", [None, [], ["foundation"], ["attention", "step"], ["foundation", "focus", "topic", "convo"]]
)
def test_markers_are_few_and_never_on_what_is_volatile(provider, breakpoints):
    ctx = rich()
    turn(ctx, 0)
    window = ctx.compile()
    body = body_of(window, provider, cache_breakpoints=breakpoints)
    blocks = flat(body, provider)
    marks = marked(body, provider)
    volatile = range(len(blocks) - 2, len(blocks))
    assert not set(marks) & set(volatile)
    if provider == "gemini":
        assert marks == []
        return
    assert marks
    assert marks[-1] == len(blocks) - 3, "the end of the conversation is marked without being asked"
    if provider == "anthropic":
        assert len(marks) <= 4


def test_a_marker_on_the_previous_end_when_the_new_one_is_out_of_reach():
    ctx = Context("agent")
    ctx.convo.add(Message.user("start"))
    ctx.compile()
    for n in range(12):
        ctx.convo.add(Message.assistant(f"thought {n}"))
        ctx.convo.add(Message.user(f"go on {n}"))
    body = body_of(ctx.compile(), "anthropic")
    assert marked(body, "anthropic") == [0, 24]


def test_the_earliest_named_section_gives_way_when_four_markers_are_not_enough():
    ctx = Context("agent")
    for name in ("foundation", "focus", "topic"):
        ctx.section(name).add(StringEntry(name))
    ctx.convo.add(Message.user("start"))
    ctx.compile()
    for n in range(12):
        ctx.convo.add(Message.assistant(f"thought {n}"))
        ctx.convo.add(Message.user(f"go on {n}"))
    found = plan(ctx.compile(), "anthropic", MODELS["anthropic"], cache_breakpoints=["foundation", "focus", "topic"])
    assert [m.path for m in found.markers] == [
        "system[1]",
        "system[2]",
        "messages[0].content[0]",
        "messages[24].content[0]",
    ]
    assert "the end of foundation gave way" in next(w for w in found.warnings if w.code == "breakpoint_dropped").message


def test_tools_listed_in_another_order_do_not_move():
    ctx = Context("agent")
    a, b, c = (ToolSpec(name) for name in "abc")
    ctx.tools = [a, b]
    ctx.compile()
    ctx.tools = [c, b, a]
    assert [t.name for t in ctx.compile().tools] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("seconds", "anthropic", "openai"),
    [(300, None, None), (3600, "1h", None), (1800, None, None), (42, None, None), (86400, "1h", "12h")],
)
def test_lifetimes_snap_to_what_the_provider_accepts(seconds, anthropic, openai):
    ctx = Context("agent")
    ctx.foundation.add(StringEntry("rules"))
    window = ctx.compile()
    body = body_of(window, "anthropic", cache_ttl=seconds)
    assert body["system"][0]["cache_control"].get("ttl") == anthropic
    body = body_of(window, "openai", cache_ttl=seconds)
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"].get("ttl") == openai


def test_the_plan_and_to_messages_say_when_a_lifetime_was_snapped():
    ctx = Context("agent")
    ctx.foundation.add(StringEntry("rules"))
    found = plan(ctx.compile(clear_volatile=False), "anthropic", MODELS["anthropic"], cache_ttl=42)
    assert [w.message for w in found.warnings if w.code == "ttl_snapped"] == [
        "cache_ttl=42 became 5m: the lifetimes of this provider are 5m (300 s), 1h (3600 s)"
    ]
    with pytest.warns(CacheWarning, match="cache_ttl=42 became 5m"):
        ctx.to_messages(cache_ttl=42)


@pytest.mark.parametrize("nonsense", [0, -1, float("nan"), float("inf"), True, "1h"])
def test_a_lifetime_that_means_nothing_is_refused(nonsense):
    ctx = Context("agent")
    ctx.step.add(StringEntry("output"))
    with pytest.raises(BadCacheTTL, match="positive number of seconds"):
        ctx.to_messages(cache_ttl=nonsense)
    assert len(ctx.step) == 1, "a refused call consumes nothing"


# -- 4. what goes where -----------------------------------------------------------------------------------------


def test_system_is_text_only_and_nothing_is_empty():
    ctx = rich()
    ctx.foundation.add(ImageEntry(PNG, "image/png", "logo", role="system"))
    body = body_of(ctx.compile(), "anthropic")
    assert {block["type"] for block in body["system"]} == {"text"}
    assert [b["type"] for b in body["messages"][0]["content"]].count("image") == 2


@every_renderer
def test_a_call_waits_for_its_results_and_they_follow_it(provider):
    ctx = Context("agent")
    ctx.convo.add(Message.user("go"))
    ctx.convo.add(Message("assistant", (ToolCallPart("a", "t", {}), ToolCallPart("b", "t", {}))))
    ctx.convo.add(Message("user", (ToolResultPart("b", (TextPart("B"),)),)))
    window = ctx.compile()
    assert len(flat(body_of(window, provider), provider)) == 1
    assert [n.code for n in window.notices] == ["pending_call"]
    ctx.convo.add(Message("user", (ToolResultPart("a", (TextPart("A"),)), TextPart("and now?"))))
    window = ctx.compile()
    kinds = [type(p.part).__name__ for p in window.parts]
    assert kinds == ["TextPart", "ToolCallPart", "ToolCallPart", "ToolResultPart", "ToolResultPart", "TextPart"]
    assert [p.part.call_id for p in window.parts[3:5]] == ["b", "a"]


def test_a_conversation_that_goes_on_closes_the_call_and_a_late_result_is_text():
    ctx = Context("agent")
    ctx.convo.add(Message("assistant", (ToolCallPart("a", "t", {}),)))
    ctx.convo.add(Message.user("never mind"))
    first = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    assert "No result was recorded" in first[1]
    ctx.convo.add(Message("user", (ToolResultPart("a", (TextPart("late"),)),)))
    second = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    assert second[:3] == first
    assert '"text": "[result of a] late"' in second[3]


def test_a_visitors_line_does_not_tear_a_call_from_its_result():
    ctx, guest = Context("agent"), Context("guest")
    ctx.include(guest)
    ctx.convo.add(Message("assistant", (ToolCallPart("a", "t", {}),)))
    ctx.compile()
    guest.convo.add(StringEntry("by the way"))
    ctx.compile()
    ctx.convo.add(Message("user", (ToolResultPart("a", (TextPart("A"),)),)))
    assert [type(p.part).__name__ for p in ctx.compile().parts] == ["ToolCallPart", "ToolResultPart", "TextPart"]


def test_calls_and_results_have_their_senders():
    with pytest.raises(UsageError, match="a ToolResultPart goes into an user message"):
        Message("assistant", (ToolResultPart("x", "stray"),))
    with pytest.raises(UsageError, match="a ToolCallPart goes into an assistant message"):
        Message("user", (ToolCallPart("x", "t", {}),))
    with pytest.raises(UsageError, match="belong into the conversation"):
        Context("agent").topic.add(Message("assistant", (ToolCallPart("x", "t", {}),)))


def test_taking_a_result_out_of_what_was_sent_leaves_a_stand_in():
    ctx = Context("agent")
    ctx.convo.add(Message("assistant", (ToolCallPart("a", "t", {}),)))
    result = ctx.convo.add(Message("user", (ToolResultPart("a", (TextPart("secret"),)),)))
    ctx.convo.add(Message.user("thanks"))
    ctx.compile()
    ctx.redact(result)
    blocks = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    assert len(blocks) == 3
    assert "No result was recorded" in blocks[1]


# -- 5. dedup ---------------------------------------------------------------------------------------------------


def test_equal_content_is_shown_once_and_the_window_says_so():
    ctx, guest = Context("agent"), Context("guest")
    ctx.include(guest)
    first = ctx.foundation.add(StringEntry("same"))
    again = guest.topic.add(StringEntry("same"))
    ctx.attention.add(StringEntry("same"))
    ctx.attention.add(StringEntry("same", repeat=True))
    window = ctx.compile()
    assert [p.section for p in window.parts] == ["foundation", "attention"]
    assert [n.code for n in window.notices] == ["duplicate", "duplicate"]
    assert (again.id in window.notices[0].message, first.id in window.notices[0].message) == (True, True)


def test_what_was_sent_is_never_removed_by_dedup():
    ctx, guest = Context("agent"), Context("guest")
    ctx.topic.add(StringEntry("same"))
    ctx.compile()
    guest.foundation.add(StringEntry("same"))
    ctx.include(guest)
    assert [p.section for p in ctx.compile().parts] == ["topic"]


def test_a_duplicate_comes_back_when_the_first_one_goes():
    ctx = Context("agent")
    first = ctx.foundation.add(StringEntry("same"))
    ctx.topic.add(StringEntry("same"))
    ctx.compile()
    ctx.redact(first)
    assert [p.section for p in ctx.compile().parts] == ["topic"]


# -- 6. ids -----------------------------------------------------------------------------------------------------


def test_redacting_something_that_is_not_there_says_which_case_it_is():
    ctx, other = Context("agent"), Context("other")
    gone = ctx.convo.add(StringEntry("x"))
    ctx.redact(gone)
    with pytest.raises(EntryNotFound, match="was removed from context 'agent' earlier"):
        ctx.redact(gone.id)
    with pytest.raises(EntryNotFound, match="context 'agent' has no entry"):
        ctx.redact(other.convo.add(StringEntry("y")))
    stepped = ctx.step.add(StringEntry("z"))
    ctx.compile()
    with pytest.raises(EntryNotFound, match="removed"):
        ctx.redact(stepped.id)


def test_a_redaction_says_what_it_moves():
    ctx = Context("agent")
    rule = ctx.foundation.add(StringEntry("r" * 10))
    ctx.focus.add(StringEntry("f" * 20))
    ctx.convo.add(StringEntry("c" * 30))
    assert (ctx.redact(ctx.convo.add(StringEntry("never sent"))).sent, len(ctx.convo)) == (False, 1)
    ctx.compile()
    done = ctx.redact(rule, tombstone="[gone]")
    assert (done.sent, done.moved_chars, done.section) == (True, 60, "foundation")


def test_a_tombstone_stands_where_the_entry_stood():
    ctx = Context("agent")
    entries = [ctx.convo.add(StringEntry(text)) for text in ("one", "two", "three")]
    ctx.compile()
    ctx.redact(entries[1], tombstone="[gone]")
    assert [p.text for p in ctx.compile().parts] == ["one", "[gone]", "three"]


# -- 7. compile, commit -----------------------------------------------------------------------------------------


def test_looking_does_not_consume_and_commit_does():
    ctx = Context("agent")
    ctx.step.add(StringEntry("one"))
    window = ctx.compile(clear_volatile=False)
    assert str(ctx.compile(clear_volatile=False)) == str(window)
    ctx.step.add(StringEntry("added while the call was running"))
    ctx.commit()
    assert [e.text for e in ctx.step] == ["added while the call was running"]


def test_looking_does_not_freeze_the_order():
    ctx, guest = Context("agent"), Context("guest")
    ctx.focus.add(StringEntry("own"))
    ctx.compile(clear_volatile=False)
    guest.focus.add(StringEntry("guest"))
    ctx.include(guest)
    assert [p.text for p in ctx.compile().parts] == ["guest", "own"]


def test_what_was_sent_keeps_its_place_when_a_context_is_included_late():
    ctx, guest = Context("agent"), Context("guest")
    ctx.focus.add(StringEntry("own"))
    ctx.convo.add(StringEntry("own line"))
    ctx.compile()
    guest.focus.add(StringEntry("guest"))
    guest.convo.add(StringEntry("guest line"))
    ctx.include(guest)
    assert [p.text for p in ctx.compile().parts] == ["own", "guest", "own line", "guest line"]
    ctx.exclude(guest)
    assert [p.text for p in ctx.compile().parts] == ["own", "own line"]


def test_a_window_is_not_touched_by_what_happens_later(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("before")
    ctx = rich()
    ctx.foundation.add(FileEntry(path))
    window = ctx.compile()
    text, body = str(window), json.dumps(body_of(window, "anthropic"))
    path.write_text("after")
    ctx.redact(next(iter(ctx.convo)))
    turn(ctx, 1)
    ctx.compile()
    assert (str(window), json.dumps(body_of(window, "anthropic"))) == (text, body)


# -- 8. files ---------------------------------------------------------------------------------------------------


def test_an_edit_shows_in_the_next_compile_even_within_one_clock_tick(tmp_path):
    path = tmp_path / "f.md"
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path))
    for n in range(50):
        path.write_text(f"{n:03}")
        assert f"{n:03}" in ctx.render()


def test_the_plan_reports_what_an_edited_file_costs(tmp_path):
    path = tmp_path / "soul.md"
    path.write_text("Be kind. " * 800)
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path))
    ctx.convo.add(Message.user("hello " * 200))
    ctx.compile()
    path.write_text("Be blunt. " * 800)
    found = plan(ctx.compile(clear_volatile=False), "anthropic", MODELS["anthropic"])
    (warning,) = [w for w in found.warnings if w.code == "prefix_moved"]
    assert "soul.md" in warning.message
    assert "pin=True" in warning.message
    assert found.read == 0
    assert found.write > 1500


def test_a_pinned_file_keeps_its_bytes_and_appends_the_change(tmp_path):
    path = tmp_path / "soul.md"
    path.write_text("line one\nline two\nline three\n" + LONG)
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path, pin=True))
    ctx.convo.add(Message.user("hello"))
    before = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    path.write_text("line one\nline 2\nline three\n" + LONG)
    assert str(ctx.compile(clear_volatile=False)) == str(ctx.compile(clear_volatile=False))
    assert len(ctx.convo) == 1, "looking adds nothing to the context"
    after = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1
    assert "-line two" in after[-1]
    assert "+line 2" in after[-1]
    assert wire(body_of(ctx.compile(), "anthropic"), "anthropic") == after, "one edit, one update"
    path.write_text("line one\nline two\nline three\n" + LONG)
    assert len(wire(body_of(ctx.compile(), "anthropic"), "anthropic")) == len(after) + 1, "going back is an edit too"


def test_a_pinned_file_keeps_its_bytes_when_its_section_is_edited(tmp_path):
    path = tmp_path / "soul.md"
    path.write_text("first")
    ctx = Context("agent")
    rule = ctx.foundation.add(StringEntry("rule"))
    ctx.foundation.add(FileEntry(path, pin=True))
    ctx.compile()
    path.write_text("second")
    ctx.redact(rule)
    assert next(p.text for p in ctx.compile().parts) == "# soul.md\nfirst"


@pytest.mark.parametrize("asked", ["system", "user", "assistant", "wizard"])
@pytest.mark.parametrize("allowed", ["system", "user", "assistant"])
def test_a_file_never_gets_a_role_above_the_one_allowed(tmp_path, asked, allowed):
    path = tmp_path / "f.md"
    path.write_text(f"---\nrole: {asked}\n---\nbody")
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path, max_role=allowed))
    window = ctx.compile()
    rank = ["assistant", "user", "system"]
    legal = asked in rank and rank.index(asked) <= rank.index(allowed)
    assert window.parts[0].role == (asked if legal else allowed)
    assert bool(window.notices) is not legal


# -- 9. errors --------------------------------------------------------------------------------------------------


def test_unknown_sections_are_named_with_the_known_ones():
    ctx = Context("agent")
    for call in (
        lambda: ctx.to_messages(sections=["fokus"]),
        lambda: ctx.section("fokus"),
        lambda: list(ctx.entries("x")),
    ):
        with pytest.raises(UnknownSection, match="foundation, focus, topic, convo, step, attention"):
            call()


def test_a_context_cannot_include_itself():
    ctx = Context("agent")
    with pytest.raises(UsageError, match="cannot include itself"):
        ctx.include(ctx)


# -- reasoning --------------------------------------------------------------------------------------------------


def thinking(n):
    return Message("assistant", (ThinkingPart(f"hm {n}", signature=f"sig{n}"), TextPart(f"answer {n}")))


def kinds(window, model):
    return [b["type"] for m in render(window, "anthropic", model)["messages"] for b in m["content"]]


def test_reasoning_after_an_edit_is_dropped_where_it_is_bound_to_its_prefix_and_kept_elsewhere():
    ctx = Context("agent")
    rule = ctx.foundation.add(StringEntry("rule"))
    ctx.convo.add(Message.user("q0"))
    ctx.compile()
    ctx.convo.add(thinking(0))
    ctx.convo.add(Message.user("q1"))
    window = ctx.compile()
    assert kinds(window, "claude-opus-5-5") == ["text", "thinking", "text", "text"]
    ctx.redact(rule, tombstone="[gone]")
    window = ctx.compile(clear_volatile=False)
    assert kinds(window, "claude-opus-5-5") == ["text", "text", "text"]
    assert kinds(window, "claude-sonnet-4-5") == ["text", "thinking", "text", "text"]
    found = plan(window, "anthropic", "claude-opus-5-5")
    assert "thinking_dropped" in [w.code for w in found.warnings]


def test_reasoning_before_an_edit_stays():
    ctx = Context("agent")
    ctx.convo.add(Message.user("q0"))
    ctx.compile()
    ctx.convo.add(thinking(0))
    late = ctx.convo.add(StringEntry("q1"))
    ctx.compile()
    ctx.convo.add(thinking(1))
    ctx.convo.add(Message.user("q2"))
    ctx.compile()
    ctx.redact(late, tombstone="[gone]")
    assert kinds(ctx.compile(), "claude-opus-5-5") == ["text", "thinking", "text", "text", "text", "text"]


@every_renderer
def test_reasoning_of_another_provider_is_not_sent(provider):
    ctx = Context("agent")
    ctx.convo.add(Message.user("q"))
    ctx.convo.add(Message("assistant", (ThinkingPart("hm", signature="s", provider="elsewhere"), TextPart("a"))))
    assert "hm" not in json.dumps(body_of(ctx.compile(), provider))


def test_an_entry_added_while_a_pinned_edit_went_out_follows_the_update(tmp_path):
    path = tmp_path / "soul.md"
    path.write_text("first")
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path, pin=True))
    ctx.compile()
    path.write_text("second")
    sent = ctx.compile(clear_volatile=False)
    ctx.convo.add(StringEntry("said meanwhile"))
    ctx.commit()
    later = ctx.compile()
    assert [p.text for p in later.parts][: len(sent.parts)] == [p.text for p in sent.parts]
    assert later.parts[-1].text == "said meanwhile"


def test_the_whole_previous_window_is_known():
    ctx = rich()
    first = ctx.compile()
    turn(ctx, 0)
    second = ctx.compile()
    assert first.history == ()
    assert second.history[-1] == first


@pytest.mark.parametrize("provider", ["anthopic", "openai-chat"])
def test_a_misspelt_provider_is_an_error(provider):
    with pytest.raises(UsageError, match="use 'compatible' for a server"):
        render(rich().compile(), provider, "some-model")


def test_a_model_is_sent_as_the_caller_named_it():
    window = rich().compile()
    for name in ("us.anthropic.claude-sonnet-4-5-v1:0", "claude-sonnet-4.5"):
        assert plan(window, "bedrock", name).body["model"] == render(window, "bedrock", name)["model"] == name
    assert render(window, "anthropic", "anthropic:claude-sonnet-4-5")["model"] == "claude-sonnet-4-5"
    assert plan(window, None, "openai:gpt-5.6", max_output_tokens=9).body["max_output_tokens"] == 9


def test_a_context_where_a_window_is_meant():
    for ask in (lambda: render(rich(), "anthropic", "x"), lambda: plan(rich(), "anthropic", "x")):
        with pytest.raises(UsageError, match=r"compile\(\)"):
            ask()


def test_plain_text_in_the_place_of_parts():
    assert Message("user", "hello") == Message.user("hello")
    assert ToolResultPart("a", "ok") == ToolResultPart("a", (TextPart("ok"),))
    with pytest.raises(UsageError, match="holds int; give text, or parts"):
        Message("user", (5,))
