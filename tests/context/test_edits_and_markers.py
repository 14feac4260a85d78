"""Edits of a context after it was sent, and where markers go then; each case in the shortest script that shows it."""

import json
import os

import pytest

from loom import Context, FileEntry, Message, StringEntry, ToolSpec, explain, plan, render, simulate
from loom.compactor import Replacement, Rewrite
from loom.core.message import NativePart, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from loom.errors import UsageError
from tests.context.wire import body_of, marked, wire

BINDING = "claude-opus-5-5"
CALL = Message("assistant", (ToolCallPart("k", "t", {}),))
RESULT = Message("user", (ToolResultPart("k", "R"),))


def thought():
    return Message("assistant", (ThinkingPart("hm", "sig"), TextPart("a")))


def texts(ctx):
    return [p.text for p in ctx.compile().parts]


def edit_tools(ctx, first):
    ctx.tools.append(ToolSpec("late"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda ctx, first: ctx.topic.add("new fact"),
        edit_tools,
        lambda ctx, first: ctx.redact(first, tombstone="[gone]"),
    ],
)
def test_reasoning_that_is_new_is_void_when_its_prefix_was_edited_meanwhile(edit):
    ctx = Context("a")
    ctx.foundation.add("rules")
    first = ctx.convo.add(Message.user("q"))
    ctx.compile()
    answer = ctx.convo.add(thought())
    edit(ctx, first)
    ctx.convo.add(Message.user("q2"))
    assert ctx.compile().void == {answer.id}


def test_reasoning_that_waits_for_a_result_remembers_the_tail_it_was_made_behind():
    ctx = Context("a")
    ctx.convo.add(Message.user("q"))
    ctx.attention.add("be brief")
    ctx.compile()
    ctx.attention.clear()
    held = ctx.convo.add(Message("assistant", (ThinkingPart("hm", "sig"), ToolCallPart("k", "t", {}))))
    ctx.compile()
    ctx.convo.add(RESULT)
    assert ctx.compile().void == {held.id}


def test_a_restored_history_keeps_its_reasoning():
    ctx = Context("a")
    ctx.foundation.add("rules")
    ctx.convo.add(Message.user("q"))
    ctx.convo.add(thought())
    ctx.convo.add(Message.user("q2"))
    window = ctx.compile()
    assert window.void == frozenset()
    assert "thinking" in json.dumps(render(window, "anthropic", BINDING))


class Cover:
    name = "cover"

    def __init__(self, count):
        self.count = count

    async def compact(self, shown, *, target, counter, keep=frozenset()):
        covers = tuple(item.id for item in shown[: self.count])
        return Rewrite(replacements=(Replacement(covers=covers, message=Message.user("summary")),))


@pytest.mark.anyio
async def test_a_compaction_voids_the_reasoning_behind_it_and_leaves_no_orphan():
    ctx = Context("a")
    for message in (Message.user("u"), CALL, RESULT, thought(), Message.user("u2")):
        ctx.convo.add(message)
    window = await ctx.compact(Cover(2))
    assert [p.text for p in window.parts if "result of k" in p.text] == ["[result of k] R"]
    assert "thinking" not in json.dumps(render(window, "anthropic", BINDING))
    assert len(ctx.convo) == 5


def test_entries_can_be_replaced_back_and_forth():
    ctx = Context("a")
    one, two = ctx.convo.add(StringEntry("one")), StringEntry("two")
    ctx.compile()
    ctx.convo.replace(one, two)
    ctx.compile()
    ctx.convo.replace(two, one)
    assert texts(ctx) == ["one"]
    with pytest.raises(UsageError, match="already"):
        ctx.convo.replace(one, one)


def test_an_entry_that_comes_back_keeps_its_new_place():
    ctx = Context("a")
    one = ctx.convo.add(StringEntry("one"))
    ctx.compile()
    ctx.redact(one)
    ctx.convo.add(one)
    ctx.convo.add("two")
    three = ctx.convo.add("three")
    ctx.compile()
    ctx.redact(three)
    assert texts(ctx) == ["one", "two"]


def test_a_duplicate_in_an_earlier_section_comes_back():
    ctx = Context("a")
    topic = ctx.topic.add("same")
    ctx.compile()
    ctx.foundation.add("same")
    ctx.compile()
    ctx.redact(topic)
    assert [p.section for p in ctx.compile().parts] == ["foundation"]


def test_a_server_compaction_comes_first_and_replaces_what_it_covers():
    ctx = Context("a")
    ctx.topic.add(StringEntry("shown to the user", role="user"))
    ctx.convo.add(Message.user("hi"))
    ctx.compile()
    ctx.convo.add(Message("assistant", (NativePart("anthropic", {"type": "compaction", "content": "sum"}),)))
    ctx.convo.add(Message.user("go"))
    messages = render(ctx.compile(), "anthropic", BINDING)["messages"]
    assert [b["type"] for m in messages for b in m["content"]] == ["compaction", "text", "text"]
    with pytest.raises(UsageError, match="native part is list"):
        NativePart("anthropic", ["x"])


@pytest.mark.parametrize(
    "head",
    [
        'role: !!int ""',
        'role: !!timestamp "x"',
        "a: &a [x,x]\nb: &b [*a,*a]\nrole: *b",
        "a: &a {x: 1}\nb: &b {<<: [*a,*a]}",
        "x: y\n" * 3000,
        "role: " + "[" * 500,
    ],
)
def test_no_frontmatter_can_hang_or_flood_a_compile(tmp_path, head):
    path = tmp_path / "f.md"
    path.write_text(f"---\n{head}\n---\nbody")
    ctx = Context("a")
    ctx.foundation.add(FileEntry(path))
    window = ctx.compile()
    assert "body" in str(window)
    assert window.notices or "<<" in head, "a merge is not a fault"
    assert all(len(n.message) < 500 for n in window.notices)


def test_a_result_in_another_context_is_not_doubled_by_an_edit():
    ctx, guest = Context("a"), Context("g")
    ctx.include(guest)
    call = ctx.convo.add(Message("assistant", (TextPart("l"), ToolCallPart("k", "t", {}))))
    ctx.compile()
    guest.convo.add(RESULT)
    ctx.compile()
    ctx.redact(call, tombstone="[x]")
    assert [type(p.part).__name__ for p in ctx.compile().parts] == ["TextPart", "ToolCallPart", "ToolResultPart"]


def test_an_update_of_a_pinned_file_does_not_tear_a_waiting_call(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("v1" * 50)
    ctx = Context("a")
    ctx.foundation.add(FileEntry(path, pin=True))
    ctx.convo.add(Message.user("go"))
    ctx.compile()
    ctx.convo.add(CALL)
    path.write_text("v2" * 50)
    ctx.compile()
    window = ctx.compile()
    assert [n.code for n in window.notices] == ["pending_call"]
    ctx.convo.add(RESULT)
    assert "No result was recorded" not in ctx.render()


def test_commit_takes_only_what_the_window_that_went_out_showed():
    ctx = Context("a")
    ctx.step.add("A")
    sent = ctx.compile(clear_volatile=False)
    ctx.step.add("B")
    ctx.compile(clear_volatile=False)
    ctx.commit(sent)
    assert [e.text for e in ctx.step] == ["B"]
    ctx.commit(sent)
    later = ctx.compile(clear_volatile=False)
    ctx.compile()
    with pytest.raises(UsageError, match="another one was committed"):
        ctx.commit(later)


def test_two_entries_with_one_id_in_two_contexts_are_refused():
    ctx, guest = Context("a"), Context("g")
    ctx.include(guest)
    ctx.convo.add(StringEntry("mine", id="zzz"))
    guest.convo.add(StringEntry("theirs", id="zzz"))
    with pytest.raises(UsageError, match="two entries have the id 'zzz'"):
        ctx.compile()


def test_a_file_shared_with_another_context_keeps_its_role(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("---\nrole: system\n---\nrules")
    entry = FileEntry(path)
    ctx, other = Context("a"), Context("o")
    ctx.foundation.add(entry)
    ctx.compile()
    other.convo.add(entry)
    assert [p.role for p in ctx.compile().parts] == ["system"]
    window = other.compile()
    assert [p.role for p in window.parts] == ["user"]
    assert "asks for the role 'system'" in window.notices[0].message
    assert render(window, "openai", "gpt-5.6")["input"][0]["role"] == "user"


def test_an_edit_that_was_only_looked_at_and_undone_moves_nothing(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("v1")
    ctx = Context("a")
    ctx.foundation.add(FileEntry(path))
    ctx.convo.add(Message.user("q"))
    ctx.compile()
    ctx.convo.add(thought())
    before = wire(body_of(ctx.compile(), "anthropic"), "anthropic")
    path.write_text("v2")
    ctx.compile(clear_volatile=False)
    path.write_text("v1")
    assert wire(body_of(ctx.compile(), "anthropic"), "anthropic") == before


def test_what_was_sent_cannot_be_changed_from_outside():
    given = {"q": 1}
    ctx = Context("a", tools=[ToolSpec("t", "", {"type": "object"})])
    ctx.convo.add(Message("assistant", (ToolCallPart("k", "t", given),)))
    ctx.convo.add(RESULT)
    window = ctx.compile()
    before = json.dumps(body_of(window, "anthropic"))
    given["q"] = 2
    body = body_of(window, "anthropic")
    body["tools"][0]["input_schema"]["x"] = 1
    body["messages"][0]["content"][0]["input"]["q"] = 3
    assert json.dumps(body_of(window, "anthropic")) == before
    with pytest.raises(UsageError, match="the input of tool call 'k' is not JSON"):
        ToolCallPart("k", "t", {"a": {1}})


def test_a_pinned_file_in_the_conversation_is_updated_too(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("first")
    ctx = Context("a")
    ctx.convo.add(FileEntry(path, pin=True))
    ctx.compile()
    path.write_text("second")
    assert texts(ctx) == ["# f.md\nfirst", "[Update of f.md] It now reads:\n# f.md\nsecond"]


def test_a_pinned_file_that_left_and_came_back_is_shown_as_it_is(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("first")
    ctx, guest = Context("a"), Context("g")
    guest.foundation.add(FileEntry(path, pin=True))
    ctx.include(guest)
    ctx.compile()
    ctx.exclude(guest)
    ctx.compile()
    path.write_text("second")
    ctx.include(guest)
    assert texts(ctx) == ["# f.md\nsecond"]


def test_an_edit_that_keeps_time_and_size_is_seen(tmp_path):
    path = tmp_path / "f.md"
    ctx = Context("a")
    ctx.foundation.add(FileEntry(path))
    for text in ("aaaa", "bbbb"):
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        assert text in ctx.render()


@pytest.mark.parametrize("first", ["convo", "topic"])
def test_an_entry_in_two_sections_is_shown_once(first):
    ctx, guest = Context("a"), Context("g")
    entry = StringEntry("x")
    for name in (first, "topic" if first == "convo" else "convo"):
        ctx.section(name).add(entry)
    assert texts(ctx) == ["x"]
    ctx.include(guest)
    both = StringEntry("reminder")
    ctx.attention.add(both)
    guest.attention.add(both)
    assert texts(ctx) == ["x", "reminder"]


@pytest.mark.parametrize(
    ("provider", "model"),
    [("gemini", "gemini-3.1-pro"), ("vllm", "llama-4"), ("deepseek", "deepseek-v4"), ("openai", "gpt-4o")],
)
def test_a_plain_append_behind_a_reminder_moves_nothing(provider, model):
    ctx = Context("a")
    ctx.foundation.add("w " * 6000)
    ctx.convo.add("hi")
    ctx.attention.add("be brief")
    first = ctx.compile()
    ctx.convo.add(Message.assistant("yo"))
    ctx.convo.add("next")
    second = ctx.compile()
    assert "prefix_moved" not in {w.code for w in plan(second, provider, model).warnings}
    assert not explain(first, second, provider, model).moved


def test_the_plan_knows_which_reasoning_the_last_request_left_out():
    ctx = Context("a")
    ctx.foundation.add("w " * 3000)
    ctx.attention.add("be brief")
    ctx.convo.add(Message.user("q"))
    bodies, plans = [], []
    for _ in range(4):
        window = ctx.compile()
        plans.append(plan(window, "anthropic", BINDING))
        bodies.append(plans[-1].body)
        ctx.convo.add(thought())
        ctx.convo.add(Message.user("more"))
    assert [p.read for p in plans] == [s.read for s in simulate(bodies, "anthropic", BINDING).steps]
    assert not any(w.code == "prefix_moved" for p in plans for w in p.warnings)


def test_a_system_note_at_the_end_of_a_conversation_is_found_again():
    ctx = Context("a")
    ctx.foundation.add("r " * 1200)
    ctx.convo.add(Message.user("u " * 900))
    ctx.convo.add(Message.assistant("a"))
    ctx.convo.add(StringEntry("note " * 2000, role="system"))
    ctx.convo.add(Message.assistant("b"))
    windows = [ctx.compile()]
    ctx.convo.add(Message.user("next"))
    windows.append(ctx.compile())
    step = simulate([render(w, "openai", "gpt-5.6") for w in windows], "openai", "gpt-5.6").steps[1]
    assert step.read > 4000


def test_explain_blames_the_entry_that_went_and_not_its_twin():
    ctx = Context("a")
    ctx.foundation.add("w " * 3000)
    first = ctx.convo.add("ok")
    for text in ("go", "ok", "go"):
        ctx.convo.add(text)
    before = ctx.compile()
    ctx.redact(first)
    found = explain(before, ctx.compile(), "anthropic", "claude-sonnet-4-5")
    assert (found.cause, found.origin.entry) == ("block_removed", first.id)


def test_a_named_text_gets_no_advice_about_files():
    ctx = Context("a")
    entry = ctx.foundation.add(StringEntry("w " * 3000, name="Rules"))
    before = ctx.compile()
    ctx.redact(entry, tombstone="other")
    assert "FileEntry" not in explain(before, ctx.compile(), "anthropic", "claude-sonnet-4-5").advice


def test_the_callers_own_automatic_breakpoint_takes_a_place():
    ctx = Context("a")
    for name in ("foundation", "focus", "topic", "convo"):
        ctx.section(name).add(name)
    body = body_of(
        ctx.compile(),
        "anthropic",
        cache_breakpoints=["topic", "focus", "foundation"],
        cache_control={"type": "ephemeral"},
    )
    assert marked(body, "anthropic") == [1, 2, 3]


def test_no_cache_means_no_cache():
    ctx = Context("a")
    ctx.convo.add("hi")
    body = body_of(ctx.compile(), "openai", cache=False)
    assert body["prompt_cache_options"] == {"mode": "explicit"}
    assert marked(body, "openai") == []


def test_half_a_surrogate_pair_is_refused():
    for make in (lambda: StringEntry("a\ud800"), lambda: Context("a").convo.add(Message.user("\udfff"))):
        with pytest.raises(UsageError, match="half of a surrogate pair"):
            make()


def test_old_ids_and_files_are_let_go(tmp_path):
    ctx = Context("a")
    for _ in range(12_000):
        ctx.step.add("x")
        ctx.compile()
    assert len(ctx.step._removed) <= 10_000
    path = tmp_path / "f.md"
    path.write_text("secret")
    entry = ctx.foundation.add(FileEntry(path))
    ctx.compile()
    ctx.redact(entry)
    ctx.compile()
    assert entry.id not in ctx._compiler._sent.views
