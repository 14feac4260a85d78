"""Parts, messages and tools."""

from __future__ import annotations

import base64

import pytest

from loom.core.message import (
    DocumentPart,
    ImagePart,
    Message,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.text.tokens import (
    CALL_OVERHEAD,
    MESSAGE_OVERHEAD,
    TOOL_OVERHEAD,
    EstimateCounter,
    PartRules,
    count_message,
    count_messages,
    count_tool,
    pdf_pages,
)
from tests.tokens.test_images import png

WORDS = "a few words that take some tokens"


def length(text: str) -> int:
    return len(text)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def tokens(part: Part, model: str = "claude-sonnet-5", provider: str = "anthropic") -> int:
    return PartRules(model, provider).count(part, length)


def test_text() -> None:
    assert tokens(TextPart("12345")) == 5


def test_an_image_is_counted_by_its_pixels_not_by_its_base64() -> None:
    small = ImagePart(encoded(png(280, 280) + b"\x00" * 50_000), "image/png")
    assert tokens(small) == 100
    assert tokens(small, "gpt-4o", "openai") == 85 + 170


def test_an_image_of_unknown_size_takes_a_safe_constant() -> None:
    assert tokens(ImagePart(encoded(b"nothing known"), "image/png")) == 1600


def test_a_pdf_is_counted_by_its_pages() -> None:
    pdf = encoded(b"%PDF-1.7 << /Type /Pages /Count 3 >> << /Type /Page >> << /Type/Page >> << /Type /Page >>")
    assert tokens(DocumentPart(pdf)) == 3 * 3000
    assert tokens(DocumentPart(pdf), "gemini-3.8-flash", "gemini") == 3 * 560


@pytest.mark.parametrize(
    ("data", "pages"),
    [
        (b"/Type /Page /Type /Page", 2),
        (b"/Type /Pages /Count 12", 12),
        (b"x" * 175_000, 3),
        (b"x", 1),
    ],
)
def test_pages(data: bytes, pages: int) -> None:
    assert pdf_pages(data) == pages


def test_a_text_document_is_counted_as_text() -> None:
    assert tokens(DocumentPart(encoded(b"12345"), "text/plain")) == 5


def test_a_tool_call_is_its_name_and_its_input() -> None:
    call = ToolCallPart("call_1", "find", {"q": "中"})
    assert tokens(call) == CALL_OVERHEAD + len("find") + len('{"q": "中"}')


def test_a_tool_result_is_the_sum_of_its_content() -> None:
    picture = ImagePart(encoded(png(28, 28)), "image/png")
    assert tokens(ToolResultPart("call_1", (TextPart("12345"), picture))) == CALL_OVERHEAD + 5 + 1


def test_thinking_counts_its_text_and_not_its_seal() -> None:
    assert tokens(ThinkingPart("12345", signature="s" * 1000)) == 5
    assert tokens(ThinkingPart("", signature="s" * 1600)) == 300
    assert tokens(ThinkingPart("", redacted="s" * 160)) == 30


def test_a_native_block_counts_what_is_open_and_weighs_what_is_sealed() -> None:
    body = {"type": "compaction", "encrypted_content": "s" * 1600}
    assert tokens(NativePart("openai", body)) == len('{"type": "compaction"}') + 300


def test_messages_and_tools_have_a_frame() -> None:
    counter = EstimateCounter()
    words = counter.count(WORDS)
    message = Message("user", (TextPart(WORDS), TextPart(WORDS)))
    assert count_message(message, counter) == MESSAGE_OVERHEAD + 2 * words
    assert count_messages([message, message], counter) == 2 * (MESSAGE_OVERHEAD + 2 * words)
    tool = ToolSpec("find", WORDS)
    schema = counter.count('{"type": "object", "properties": {}}')
    assert count_tool(tool, counter) == TOOL_OVERHEAD + counter.count("find") + words + schema
