"""Messages as providers write them come back as the neutral messages they were rendered from."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom import (
    Context,
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from loom.errors import UsageError
from tests.context.wire import body_of

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 20).decode()
PDF = base64.b64encode(b"%PDF-1.7 something").decode()
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda text: text.strip() and not text.startswith("[")
)
TEXT = WORDS.map(TextPart)
IMAGE = st.sampled_from(["image/png", "image/jpeg"]).map(lambda kind: ImagePart(PNG, kind))
DOCUMENT = st.sampled_from(["a.pdf", "b.pdf"]).map(lambda name: DocumentPart(PDF, "application/pdf", name))
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
INPUTS = st.dictionaries(st.text(min_size=1, max_size=6), JSONS, max_size=3)


@st.composite
def conversations(draw, media=TEXT | IMAGE | DOCUMENT):
    """A question, calls of tools, their results, and an answer."""
    count = draw(st.integers(1, 3))
    calls = [
        ToolCallPart(f"call_{n}", draw(st.sampled_from(["search", "read_file"])), draw(INPUTS)) for n in range(count)
    ]
    results = [
        ToolResultPart(call.id, tuple(draw(st.lists(media, min_size=1, max_size=2))), draw(st.booleans()))
        for call in calls
    ]
    said = draw(st.lists(TEXT, max_size=1))
    return [
        Message("user", tuple(draw(st.lists(TEXT | IMAGE | DOCUMENT, min_size=1, max_size=3)))),
        Message("assistant", (*said, *calls)),
        Message("user", tuple(results)),
        Message("assistant", (draw(TEXT),)),
    ]


def flat(messages):
    return [(message.role, part) for message in messages for part in message.parts]


def window_of(conversation):
    ctx = Context("agent")
    for message in conversation:
        ctx.convo.add(message)
    return ctx.compile()


@settings(max_examples=80, deadline=None)
@given(conversations())
def test_anthropic_messages_come_back(conversation):
    sent = body_of(window_of(conversation), "anthropic")["messages"]
    assert [Message.from_anthropic(json.loads(json.dumps(one))) for one in sent] == conversation


@settings(max_examples=80, deadline=None)
@given(conversations(media=TEXT))
def test_chat_messages_come_back(conversation):
    sent = body_of(window_of(conversation), "openai_chat")["messages"]
    assert flat(Message.from_openai(json.loads(json.dumps(one))) for one in sent) == flat(conversation)


@settings(max_examples=80, deadline=None)
@given(conversations())
def test_responses_items_come_back(conversation):
    sent = body_of(window_of(conversation), "openai")["input"]
    assert flat(Message.from_openai(json.loads(json.dumps(one))) for one in sent) == flat(conversation)


@settings(max_examples=60, deadline=None)
@given(conversations(media=TEXT), st.sampled_from(["anthropic", "openai_chat"]))
def test_a_section_takes_messages_as_providers_write_them(conversation, provider):
    sent = body_of(window_of(conversation), provider)["messages"]
    again = Context("agent")
    for one in sent:
        again.convo.add(one)
    before = body_of(window_of(conversation), provider, cache=False)
    assert body_of(again.compile(), provider, cache=False) == before


def test_plain_mappings_go_into_sections():
    ctx = Context("agent")
    ctx.convo.add({"role": "user", "content": "What is the gate code?"})
    ctx.convo.add({"role": "assistant", "content": "4711"})
    ctx.foundation.add({"role": "system", "content": "You are terse."})
    assert [entry.message.text for entry in ctx.convo] == ["What is the gate code?", "4711"]
    assert "You are terse." in str(ctx.compile())


THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig"}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (THINKING, ThinkingPart("hm", "sig")),
        ({"type": "redacted_thinking", "data": "x"}, ThinkingPart(redacted="x")),
        ({"type": "server_tool_use", "id": "s", "name": "web"}, NativePart("anthropic", {"type": "server_tool_use", "id": "s", "name": "web"})),
        ({"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}, TextPart("hi")),
        (URL_IMAGE, NativePart("anthropic", URL_IMAGE)),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "title": "t"}, DocumentPart(base64.b64encode(b"hi").decode(), "text/plain", "t")),
        ({"type": "tool_use", "id": "c", "name": "n"}, ToolCallPart("c", "n", {})),
    ],
)  # fmt: skip
def test_anthropic_blocks(block, part):
    assert Message.from_anthropic({"role": "assistant", "content": [block]}).parts == (part,)


def test_anthropic_results_of_any_form():
    for content, parts in (
        ("done", (TextPart("done"),)),
        ("", ()),
        ([], ()),
        ([{"type": "text", "text": "a"}], (TextPart("a"),)),
    ):
        block = {"type": "tool_result", "tool_use_id": "c", "content": content}
        assert Message.from_anthropic({"role": "user", "content": [block]}).parts == (ToolResultPart("c", parts),)
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "x"}]}
    (result,) = Message.from_anthropic({"role": "user", "content": [block]}).parts
    assert json.loads(result.content[0].text) == {"type": "tool_reference", "tool_name": "x"}


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "n", "arguments": arguments}}


@pytest.mark.parametrize(
    ("given_", "role", "parts"),
    [
        ({"role": "developer", "content": "be terse"}, "system", (TextPart("be terse"),)),
        ({"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]}, "assistant", (ToolCallPart("c", "n", {"a": 1}),)),
        ({"role": "assistant", "content": None, "tool_calls": [call("not json")]}, "assistant", (ToolCallPart("c", "n", "not json"),)),
        ({"role": "assistant", "tool_calls": [call("")]}, "assistant", (ToolCallPart("c", "n", {}),)),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "x"}}]}, "assistant", (ToolCallPart("c", "n", "x"),)),
        ({"role": "tool", "tool_call_id": "c", "content": "done"}, "user", (ToolResultPart("c", (TextPart("done"),)),)),
        ({"role": "function", "name": "n", "content": "done"}, "user", (ToolResultPart("n", (TextPart("done"),)),)),
        ({"role": "assistant", "content": "", "refusal": "no"}, "assistant", (TextPart("no"),)),
        ({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"}, "assistant", (ThinkingPart("s", "r", "e", "openai"),)),
        ({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}, "assistant", (TextPart("hi"),)),
    ],
)  # fmt: skip
def test_openai_messages(given_, role, parts):
    assert Message.from_openai(given_) == Message(role, parts)


def test_a_picture_elsewhere_stays_the_providers_own():
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert Message.from_openai({"role": "user", "content": [part]}).parts == (NativePart("openai_chat", part),)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"role": "robot", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "n"}]},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "c"}]},
        {"type": "function_call", "name": "n"},
    ],
    ids=str,
)
def test_what_is_not_a_message_is_refused_in_words(bad):
    with pytest.raises(UsageError):
        Context("agent").convo.add(bad)
    with pytest.raises(UsageError):
        Message.from_anthropic(bad)
    if not isinstance(bad.get("content"), list):
        with pytest.raises(UsageError):
            Message.from_openai(bad)
