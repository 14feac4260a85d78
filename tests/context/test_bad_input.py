"""Bad input gets a clear answer that says what happened and what to do; nothing is half done."""

import os
import warnings

import pytest

from loom import Context, DocumentEntry, FileEntry, ImageEntry, Message, MessageEntry, StringEntry, ToolSpec, render
from loom.core.message import TextPart, ToolCallPart, ToolResultPart
from loom.errors import (
    BadCacheTTL,
    EntryNotFound,
    LoomError,
    TooManyBreakpoints,
    UnknownSection,
    UsageError,
)


def file_shown(path, **options):
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path, **options))
    window = ctx.compile()
    return window.parts[0].text, [n.message for n in window.notices]


def test_unknown_section():
    with pytest.raises(UnknownSection, match="there is no section 'backdrop'; the sections are foundation, focus"):
        Context("agent").to_messages(sections=["backdrop"])


def test_five_breakpoints():
    with pytest.raises(TooManyBreakpoints, match="a request takes at most 4; name fewer sections"):
        Context("agent").to_messages(cache_breakpoints=["foundation", "focus", "topic", "convo", "step"])


@pytest.mark.parametrize("ttl", [-5, 0])
def test_a_negative_lifetime(ttl):
    with pytest.raises(BadCacheTTL, match=f"cache_ttl={ttl} is not a lifetime; give a positive number of seconds"):
        Context("agent").to_messages(cache_ttl=ttl)


def test_a_lifetime_of_42_seconds():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Context("agent").to_messages(cache_ttl=42)
    assert "became 5m" in str(caught[0].message)


def test_a_missing_file_shows_when_it_appears(tmp_path):
    path = tmp_path / "later.md"
    ctx = Context("agent")
    ctx.foundation.add(FileEntry(path))
    assert "[File missing: later.md]" in ctx.render()
    assert [n.message for n in ctx.compile().notices] == ["later.md is missing: it is not there"]
    path.write_text("here I am")
    assert "here I am" in ctx.render()


def test_a_binary_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"\x7fELF\0\0")
    assert file_shown(path) == ("[File binary: a.bin]", ["a.bin is binary: it holds NUL bytes, so it is not text"])


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\xff")
    assert file_shown(path) == ("[File not UTF-8: a.txt]", ["a.txt is not UTF-8: byte 0xff at offset 3"])


def test_a_huge_file(tmp_path):
    path = tmp_path / "big.log"
    with path.open("wb") as file:
        file.truncate(50_000_000_000)
    text, notices = file_shown(path)
    assert text == "[File too large: big.log]"
    assert notices == ["big.log is too large: 50,000,000,000 bytes are over the limit of 1,000,000; raise max_bytes"]


def test_a_folder_and_an_empty_file(tmp_path):
    (tmp_path / "empty.md").write_text(" \n")
    assert file_shown(tmp_path)[0] == f"[File unreadable: {tmp_path.name}]"
    assert file_shown(tmp_path / "empty.md")[0] == "[File empty: empty.md]"


@pytest.mark.skipif(os.name == "nt", reason="no named pipes")
def test_a_pipe_does_not_block(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert file_shown(path)[0] == "[File unreadable: pipe]"


def test_broken_frontmatter_is_shown_as_text_and_said(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("---\nrole: [user\n---\nbody")
    text, notices = file_shown(path)
    assert text == "# a.md\n---\nrole: [user\n---\nbody"
    assert notices[0].startswith("a.md: its frontmatter is not valid YAML")


def test_frontmatter_that_asks_for_too_much(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("---\nrole: system\n---\nbody")
    ctx = Context("agent")
    ctx.topic.add(FileEntry(path, max_role="user"))
    window = ctx.compile()
    assert window.parts[0].role == "user"
    assert [n.message for n in window.notices] == [
        "a.md: its frontmatter asks for the role 'system'; at most 'user' is allowed here"
    ]


@pytest.mark.parametrize("section", ["convo", "step", "attention"])
def test_a_file_among_the_messages_cannot_make_itself_system(tmp_path, section):
    path = tmp_path / "a.md"
    path.write_text("---\nrole: system\n---\nbody")
    ctx = Context("agent")
    ctx.section(section).add(FileEntry(path))
    assert [m["role"] for m in ctx.to_messages()] == ["system", "user"]


@pytest.mark.parametrize("data", ["not base64!", "abc", "", "aGk=\n!"])
def test_invalid_base64(data):
    with pytest.raises(UsageError, match=r"base64|empty"):
        ImageEntry(data, "image/png")
    with pytest.raises(UsageError, match=r"base64|empty"):
        DocumentEntry(data)


def test_a_picture_of_an_unknown_kind():
    with pytest.raises(UsageError, match="image/png, image/jpeg, image/gif, image/webp"):
        ImageEntry("aGk=", "image/tiff")
    with pytest.raises(UsageError, match="role='assistant'"):
        ImageEntry("aGk=", "image/png", role="assistant")


def test_include_of_itself():
    ctx = Context("agent")
    with pytest.raises(UsageError, match="context 'agent' cannot include itself"):
        ctx.include(ctx)


def test_redact_of_a_stale_id():
    ctx = Context("agent")
    entry = ctx.convo.add(StringEntry("x"))
    ctx.redact(entry.id)
    with pytest.raises(EntryNotFound, match="was removed from context 'agent' earlier; nothing was changed"):
        ctx.redact(entry.id)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_empty_text(text):
    with pytest.raises(UsageError, match="empty"):
        StringEntry(text)
    with pytest.raises(UsageError, match="empty"):
        MessageEntry(Message.user(text))
    ctx = Context("agent")
    entry = ctx.convo.add(StringEntry("x"))
    with pytest.raises(UsageError, match="empty"):
        ctx.redact(entry, tombstone=text)
    assert entry in ctx.convo, "a refused redaction changes nothing"


def test_an_empty_part_of_a_message_is_left_out_and_an_empty_result_says_so():
    ctx = Context("agent")
    ctx.convo.add(Message("assistant", (TextPart(""), ToolCallPart("a", "t", {}))))
    ctx.convo.add(Message("user", (ToolResultPart("a", ()),)))
    _, assistant, user = ctx.to_messages()
    assert [b["type"] for b in assistant["content"]] == ["tool_use"]
    assert user["content"][0]["content"][0]["text"]


def test_things_of_the_wrong_kind():
    ctx = Context("agent")
    with pytest.raises(UsageError, match="StringEntry takes text, not int"):
        StringEntry(5)
    with pytest.raises(UsageError, match="takes entries, messages, mappings, text and paths, not int"):
        ctx.convo.add(5)
    with pytest.raises(UsageError, match="role='boss' is not a role; use one of system, user, assistant"):
        StringEntry("x", role="boss")
    with pytest.raises(UsageError, match="needs a name"):
        Context("")
    with pytest.raises(UsageError, match="is not JSON"):
        ToolSpec("t", "", {"a": {1, 2}})
    with pytest.raises(UsageError, match="max_bytes=0"):
        FileEntry("x", max_bytes=0)
    with pytest.raises(UsageError, match="max_role='boss'"):
        FileEntry("x", max_role="boss")


def test_two_entries_with_one_id():
    ctx = Context("agent")
    ctx.convo.add(StringEntry("x", id="same"))
    with pytest.raises(UsageError, match="already has the id 'same'"):
        ctx.convo.add(StringEntry("y", id="same"))


def test_every_error_is_one_of_ours():
    for error in (UnknownSection, TooManyBreakpoints, BadCacheTTL, EntryNotFound, UsageError):
        assert issubclass(error, LoomError)


@pytest.mark.parametrize(
    ("provider", "lost"), [("anthropic", "system"), ("anthropic", "tools"), ("openai", "input"), ("gemini", "contents")]
)
def test_a_setting_that_the_window_would_replace_is_refused(provider, lost):
    ctx = Context("agent", tools=[ToolSpec("look")])
    ctx.foundation.add("Be brief.")
    ctx.convo.add("Hello.")
    with pytest.raises(UsageError, match=f"{lost}= would be lost"):
        render(ctx.compile(), provider, "some-model", **{lost: [{"name": "search"}]})


def test_a_setting_that_the_window_has_nothing_for_is_passed_on():
    ctx = Context("agent")
    ctx.convo.add("Hello.")
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    assert render(ctx.compile(), "anthropic", "claude-sonnet-5", tools=search)["tools"] == search


def test_no_model_is_refused():
    with pytest.raises(UsageError, match="model=None names no model"):
        render(Context("agent").compile(), "anthropic", None)
