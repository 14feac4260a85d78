"""What a context guarantees where other libraries fail: roles, ids, duplicates, lifetimes, files, redaction."""

import base64
from hashlib import sha256

import pytest

from loom import Context, FileEntry, ImageEntry, MessageEntry, StringEntry
from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart
from loom.errors import EntryNotFound, TooManyBreakpoints, UnknownSection

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def blocks(messages):
    return [block for message in messages for block in message["content"]]


def markers(messages):
    return [block["cache_control"] for block in blocks(messages) if "cache_control" in block]


def test_01_the_lifetime_is_one_the_provider_knows():
    ctx = Context("c")
    ctx.foundation.add(StringEntry("rules"))
    assert markers(ctx.to_messages(cache_ttl=3600)) == [{"type": "ephemeral", "ttl": "1h"}]
    assert markers(ctx.to_messages(cache_ttl=300)) == [{"type": "ephemeral"}]


@pytest.mark.parametrize("section", ["foundation", "topic", "convo", "step", "attention"])
def test_02_images_travel_in_user_messages_as_pictures(section):
    ctx = Context("c")
    ctx.section(section).add(ImageEntry(PNG, "image/png", "shot"))
    system, user = ctx.to_messages()
    assert system["content"] == []
    assert user["role"] == "user"
    assert [b["type"] for b in user["content"]] == ["image", "text"]


def test_03_a_second_identical_turn_survives():
    ctx = Context("c")
    for _ in range(2):
        ctx.convo.add(StringEntry("ok"))
        ctx.step.add(StringEntry("same output"))
    window = ctx.compile()
    assert [p.text for p in window.parts] == ["ok", "ok", "same output", "same output"]


def test_04_dedup_looks_at_name_and_role_and_is_the_same_in_every_process():
    ctx = Context("c")
    for name, role in (("a", None), ("b", None), ("a", "user")):
        ctx.topic.add(StringEntry("same text", name=name, role=role))
    ctx.topic.add(StringEntry("same text", name="a"))
    window = ctx.compile()
    assert len(window.parts) == 3
    assert window.parts[0].content_hash == sha256(b"text\0# a\nsame text").hexdigest()


def test_05_an_id_is_not_handed_out_again():
    ctx = Context("c")
    entry = ctx.convo.add(StringEntry("one"))
    ctx.redact(entry.id)
    others = [ctx.convo.add(StringEntry(f"later {i}")) for i in range(200)]
    assert entry.id not in {other.id for other in others}
    with pytest.raises(EntryNotFound, match="removed"):
        ctx.redact(entry.id)
    assert len(ctx.convo) == 200


def test_06_sections_apply_to_every_role_and_a_visitors_step_stays_at_home():
    ctx, guest = Context("c"), Context("g")
    ctx.include(guest)
    ctx.foundation.add(StringEntry("rules"))
    ctx.step.add(StringEntry("step as user", role="user"))
    guest.step.add(StringEntry("guest step", role="user"))
    assert [b["text"] for b in blocks(ctx.to_messages(sections=["foundation"], clear_volatile=False))] == ["rules"]
    assert "guest step" not in ctx.render()


def test_07_visitors_of_visitors_are_shown():
    a, b, c = Context("a"), Context("b"), Context("c")
    a.include(b)
    b.include(c)
    c.include(a)
    c.foundation.add(StringEntry("from c"))
    assert a.render().count("from c") == 1


def test_08_never_more_than_four_markers_and_a_misspelt_one_is_an_error():
    ctx = Context("c")
    for name in ("foundation", "focus", "topic", "convo", "attention"):
        ctx.section(name).add(StringEntry(name, role="user" if name == "convo" else None))
    assert len(markers(ctx.to_messages(cache_breakpoints=["foundation", "focus", "topic", "convo"]))) == 4
    with pytest.raises(UnknownSection, match=r"'foundatoin'; the sections are foundation, focus"):
        ctx.to_messages(cache_breakpoints=["foundatoin"])
    with pytest.raises(TooManyBreakpoints, match="5 cache breakpoints"):
        ctx.to_messages(cache_breakpoints=["foundation", "focus", "topic", "convo", "attention"])


def test_08_an_empty_section_does_not_lose_its_marker():
    ctx = Context("c")
    ctx.foundation.add(StringEntry("rules"))
    assert len(markers(ctx.to_messages(cache_breakpoints=["topic"]))) == 1


def test_09_the_conversation_has_turns_with_tool_calls_and_results():
    ctx = Context("c")
    ctx.convo.add(Message.user("what is the weather?"))
    ctx.convo.add(Message("assistant", (TextPart("let me look"), ToolCallPart("t1", "weather", {"city": "Oslo"}))))
    ctx.convo.add(Message("user", (ToolResultPart("t1", (TextPart("rain"),)),)))
    messages = ctx.to_messages()
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert [b["type"] for b in messages[2]["content"]] == ["text", "tool_use"]
    assert messages[3]["content"][0]["tool_use_id"] == "t1"


def test_10_a_new_line_of_a_visitor_follows_what_was_sent():
    ctx, guest = Context("c"), Context("g")
    ctx.include(guest)
    ctx.convo.add(StringEntry("own 1"))
    ctx.compile()
    guest.convo.add(StringEntry("guest 1"))
    ctx.convo.add(StringEntry("own 2"))
    assert [p.text for p in ctx.compile().parts] == ["own 1", "guest 1", "own 2"]


@pytest.mark.parametrize(
    ("text", "shown", "role"),
    [
        (
            "---\nA page that opens with a rule\n\n---\nrest",
            "---\nA page that opens with a rule\n\n---\nrest",
            "system",
        ),
        ("--- x\nrole: user\n---\nrest", "--- x\nrole: user\n---\nrest", "system"),
        ("---\nrole: user\ntitle: 'a --- b'\n---\nbody", "body", "user"),
        ("---\nnested: {role: assistant}\nrole: user\n---\nbody", "body", "user"),
        ("---\nrole: user\n", "---\nrole: user\n", "system"),
    ],
)
def test_11_frontmatter_is_yaml_and_a_rule_is_not_frontmatter(tmp_path, text, shown, role):
    path = tmp_path / "f.md"
    path.write_text(text)
    ctx = Context("c")
    ctx.foundation.add(FileEntry(path))
    (part,) = ctx.compile().parts
    assert part.text == f"# f.md\n{shown}"
    assert part.role == role


def test_12_a_file_that_is_not_utf8_shows_a_notice(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("caf\xe9".encode("latin-1"))
    ctx = Context("c")
    ctx.foundation.add(FileEntry(path))
    window = ctx.compile()
    assert str(window).endswith("[File not UTF-8: latin.txt]")
    assert [n.message for n in window.notices] == ["latin.txt is not UTF-8: byte 0xe9 at offset 3"]


def test_13_role_and_body_come_from_one_reading(tmp_path):
    path = tmp_path / "f.md"
    path.write_text("---\nrole: user\n---\nfirst")
    entry = FileEntry(path)
    view = entry.show()
    path.write_text("---\nrole: assistant\n---\nother")
    assert (view.role, view.text) == ("user", "# f.md\nfirst")
    assert (entry.show().role, entry.show().text) == ("assistant", "# f.md\nother")


def test_15_remember_takes_the_entry_itself_and_no_other():
    ctx = Context("c")
    first, second = ctx.step.add(StringEntry("same")), ctx.step.add(StringEntry("same"))
    ctx.remember(second)
    assert list(ctx.step) == [first]
    assert list(ctx.convo) == [second]


def test_16_a_tombstone_hides_the_name_and_keeps_the_role():
    ctx = Context("c")
    entry = ctx.topic.add(StringEntry("secret body", name="secret name", role="user"))
    done = ctx.redact(entry, tombstone="[removed]")
    assert done.tombstone is not None
    assert (done.tombstone.name, done.tombstone.role) == (None, "user")
    assert "secret" not in ctx.render()


def test_16_a_tombstone_keeps_tool_calls_paired():
    ctx = Context("c")
    ctx.convo.add(Message.user("look it up"))
    ctx.convo.add(Message("assistant", (ToolCallPart("t1", "find", {"name": "secret"}),)))
    result = ctx.convo.add(MessageEntry(Message("user", (ToolResultPart("t1", (TextPart("secret"),)),))))
    ctx.redact(result.id, tombstone="[removed]")
    (answer,) = ctx.to_messages()[3]["content"]
    assert answer["type"] == "tool_result"
    assert answer["content"] == [{"type": "text", "text": "[removed]"}]
