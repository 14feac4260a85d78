"""Rows 000 of `docs/reference/coming-from.md`: every snippet, with its documented result."""

import base64
from typing import Any

import pytest

from loom import (
    Context,
    DocumentEntry,
    FileEntry,
    ImageEntry,
    Message,
    StringEntry,
    TextPart,
    ThinkingPart,
)
from loom.compactor import Compactor, StubCompactor
from loom.errors import UsageError
from tests.docs.test_migration_examples import IMAGE, LIFECYCLE, QUICK_START, REDACTION, RENDERING, VISITORS

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000")).decode()


def texts(message):
    return [block.get("text") for block in message["content"]]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_quick_start(here):
    (here / "SOUL.md").write_text("Be kind.")
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.foundation.add(FileEntry("./SOUL.md"))
    ctx.focus.add(StringEntry("Review PR #42 and suggest improvements."))
    security_ctx = Context("security")
    security_ctx.foundation.add(StringEntry("Always validate user input."))
    ctx.include(security_ctx)

    messages = ctx.to_messages(cache_breakpoints=["foundation", "topic"], cache_ttl=3600)

    assert [m["role"] for m in messages] == ["system"]
    assert texts(messages[0]) == [
        "You are a helpful assistant.",
        "# SOUL.md\nBe kind.",
        "Always validate user input.",
        "Review PR #42 and suggest improvements.",
    ]
    marks = [block.get("cache_control") for block in messages[0]["content"]]
    hour = {"type": "ephemeral", "ttl": "1h"}
    assert marks == [None, None, hour, hour], "the end of foundation, and of all up to (the empty) topic"


def test_plain_text_is_the_same_content():
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.focus.add(StringEntry("Review PR #42."))
    text = ctx.render()
    assert text.index("You are a helpful assistant.") < text.index("Review PR #42.")
    assert text == str(ctx.compile())


def test_sections_compile_in_the_documented_order_with_the_documented_visitor_order():
    host, guest = Context("host"), Context("guest")
    host.include(guest)
    for name in ("foundation", "focus", "topic", "convo", "step", "attention"):
        host.section(name).add(StringEntry(f"{name} host"))
        guest.section(name).add(StringEntry(f"{name} guest"))
    window = host.compile(clear_volatile=False)
    assert [p.text for p in window.parts] == [
        "foundation host",
        "foundation guest",
        "focus guest",
        "focus host",
        "topic host",
        "topic guest",
        "convo guest",
        "convo host",
        "step host",
        "attention guest",
        "attention host",
    ]


def test_selected_sections_leave_the_others_out():
    ctx = Context("my-agent")
    for name in ("foundation", "focus", "topic", "convo", "step", "attention"):
        ctx.section(name).add(StringEntry(name))
    messages = ctx.to_messages(
        cache_breakpoints=["foundation", "topic"],
        cache_ttl=3600,
        sections=["foundation", "focus", "topic", "convo"],
        clear_volatile=False,
    )
    assert [texts(m) for m in messages] == [["foundation", "focus", "topic"], ["convo"]]
    assert "cache_control" in messages[1]["content"][-1], "the end of the conversation is marked without being asked"
    assert len(ctx.step) == 1


def test_an_entry_shared_by_several_contexts_is_compiled_once_even_in_a_grandparent(here):
    (here / "RULES.md").write_text("Never guess.")
    shared = Context("shared-rules")
    shared.foundation.add(FileEntry("./RULES.md"))
    agent_a, agent_b, parent = Context("a"), Context("b"), Context("parent")
    agent_a.include(shared)
    agent_b.include(shared)
    parent.include(agent_a)
    parent.include(agent_b)
    for ctx in (agent_a, agent_b, parent):
        assert ctx.render().count("Never guess.") == 1


def test_frontmatter_moves_a_file_out_of_the_system_prompt(here):
    (here / "memory.md").write_text("---\nrole: assistant\n---\nHere is what I remember from our last session...\n")
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.foundation.add(FileEntry("./memory.md"))
    messages = ctx.to_messages()
    assert [m["role"] for m in messages] == ["system", "assistant"]
    assert texts(messages[1]) == ["# memory.md\nHere is what I remember from our last session...\n"]


def test_an_image_is_a_vision_block_with_a_caption_and_a_stand_in_in_plain_text():
    ctx = Context("my-agent")
    ctx.topic.add(ImageEntry(data=PNG, media_type="image/png", name="screenshot"))
    block, caption = ctx.to_messages()[1]["content"]
    assert block["type"] == "image"
    assert block["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    assert caption["text"] == "[Image: screenshot]"
    assert "[Image: screenshot]" in ctx.render()


def test_remember_moves_a_step_entry_into_the_conversation():
    ctx = Context("my-agent")
    result = ctx.step.add(StringEntry("tests: 12 passed"))
    ctx.remember(result)
    assert result in ctx.convo
    assert len(ctx.step) == 0
    ctx.compile()
    assert "tests: 12 passed" in ctx.render(), "it outlives the step"


def test_redact_by_id_with_a_tombstone():
    ctx = Context("my-agent")
    entry = ctx.convo.add(StringEntry("my number is 555-0100"))
    assert entry.id.isalnum()
    assert 3 <= len(entry.id) <= 4
    assert entry.created_at > 0
    ctx.redact(entry.id, tombstone="[REDACTED: contained PII]")
    text = ctx.render()
    assert "555-0100" not in text
    assert "[REDACTED: contained PII]" in text


def test_step_is_cleared_by_compile_and_to_messages_unless_told():
    ctx = Context("my-agent")
    for door in (ctx.compile, ctx.render, ctx.to_messages):
        ctx.step.add(StringEntry("output"))
        door(clear_volatile=False)
        assert len(ctx.step) == 1
        door()
        assert len(ctx.step) == 0


@pytest.mark.anyio
async def test_the_shipped_compactor_passes_the_window_through():
    ctx = Context("my-agent")
    ctx.convo.add(StringEntry("hello"))
    ctx.step.add(StringEntry("output"))
    assert isinstance(StubCompactor(), Compactor)
    before = ctx.compile(clear_volatile=False)
    assert await ctx.compact(StubCompactor()) == before
    assert len(ctx.step) == 1


def test_the_shipped_compactor_gives_the_text_of_a_context_and_leaves_step_alone():
    ctx = Context("my-agent")
    ctx.convo.add(StringEntry("hello"))
    ctx.step.add(StringEntry("output"))
    assert StubCompactor().compact(ctx) == ctx.render(clear_volatile=False)
    assert len(ctx.step) == 1
    with pytest.raises(UsageError, match="target="):
        StubCompactor().compact([])  # type: ignore[call-overload]


def test_no_breakpoints_at_all_give_messages_without_a_marker():
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.convo.add(StringEntry("hello"))
    assert "cache_control" not in str(ctx.to_messages(cache_breakpoints=[], cache_ttl=3600))
    assert "cache_control" in str(ctx.to_messages(cache_breakpoints=None))


def test_a_step_that_was_not_shown_is_not_cleared():
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.step.add(StringEntry("tests: 12 passed"))
    assert "12 passed" not in str(ctx.to_messages(sections=["foundation"]))
    assert len(ctx.step) == 1
    assert "12 passed" in str(ctx.to_messages(sections=["foundation", "STEP"]))
    assert len(ctx.step) == 0


def test_thinking_made_without_the_hidden_tail_stays_valid():
    ctx = Context("my-agent")
    ctx.foundation.add(StringEntry("You are a helpful assistant."))
    ctx.convo.add(Message.user("hello"))
    ctx.step.add(StringEntry("a tail that nobody saw"))
    ctx.to_messages(sections=["foundation", "convo"])
    thought = ThinkingPart("greet back", signature="s")
    entry = ctx.convo.add(Message("assistant", (thought, TextPart("hi"))))
    assert entry.id not in ctx.compile(clear_volatile=False).void


def test_media_entries_tell_what_they_hold():
    image = ImageEntry(data=PNG, media_type="image/png", name="screenshot")
    assert (image.data, image.media_type, image.name) == (PNG, "image/png", "screenshot")
    document = DocumentEntry(PNG, name="paper")
    assert (document.data, document.media_type) == (PNG, "application/pdf")


def test_a_window_can_be_asked_for_text_and_for_entries():
    ctx = Context("my-agent")
    shown = ctx.foundation.add(StringEntry("You are a helpful assistant."))
    twin = ctx.foundation.add(StringEntry("You are a helpful assistant."))
    window = ctx.compile()
    assert "helpful assistant" in window
    assert "helpless" not in window
    assert shown in window
    assert twin not in window, "it is shown once"
    with pytest.raises(UsageError, match="int"):
        assert 5 in window


def test_the_id_of_a_context_is_in_its_repr():
    ctx = Context("my-agent")
    assert repr(ctx) == f"<Context 'my-agent' {ctx.id}: empty>"


def test_the_examples_run_as_they_are_written(here):
    (here / "SOUL.md").write_text("Be kind.")
    (here / "RULES.md").write_text("Never guess.")
    space: dict[str, Any] = {
        "agent_a": Context("a"),
        "agent_b": Context("b"),
        "b64": PNG,
        "tool_output": "tests: 12 passed",
    }
    exec(QUICK_START, space)
    ctx = space["ctx"]
    assert texts(space["messages"][0])[0] == "You are a helpful assistant."
    ctx.step.add(StringEntry("not shown"))
    exec(RENDERING, space)
    assert [m["role"] for m in space["messages"]] == ["system"]
    assert len(ctx.step) == 1
    exec(VISITORS, space)
    assert "Never guess." in space["agent_a"].compile()
    assert "Never guess." in space["agent_b"].compile()
    exec(IMAGE, space)
    assert "[Image: screenshot]" in ctx.render(clear_volatile=False)
    ctx.convo.add(StringEntry("my number is 555-0100", id="kvm"))
    exec(LIFECYCLE + REDACTION, space)
    window = ctx.compile()
    assert "tests: 12 passed" in window
    assert "[REDACTED: contained PII]" in window
    assert "555-0100" not in window
