"""Pictures: reading their size from the first bytes, and the providers' rules."""

from __future__ import annotations

import base64
import struct

import pytest

from loom.text.image_tokens import image_rule, image_size


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x06\x00\x00\x00"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00"


def jpeg(width: int, height: int, preview: int = 40) -> bytes:
    preview_segment = b"\xff\xe1" + struct.pack(">H", preview + 2) + b"\x11" * preview
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x03" + b"\x00" * 9
    return b"\xff\xd8" + preview_segment + b"\xff" + frame + b"\xff\xd9"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 100) + b"WEBP" + kind + struct.pack("<I", len(body)) + body + b"\x00" * 8


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", b"\x00" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("make", [png, gif, jpeg, lossy, lossless, extended])
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (4032, 3024)])
def test_the_size_stands_in_the_first_bytes(make, size: tuple[int, int]) -> None:
    assert image_size(encoded(make(*size))) == size


def test_a_jpeg_with_a_long_preview() -> None:
    assert image_size(encoded(jpeg(800, 600, preview=30_000))) == (800, 600)


@pytest.mark.parametrize(
    "data",
    [
        b"not a picture",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF",
        png(0, 10),
        jpeg(9, 9)[:30],
        b"\xff\xd8\x00\x00" * 9,
    ],
)
def test_what_cannot_be_read_has_no_size(data: bytes) -> None:
    assert image_size(encoded(data)) is None


# Tokens that were measured for one picture on Claude 5.5 and 4.5, on Gemini 3 and on GPT-6 and 5.5.
MEASURED = [
    ("claude-opus-5-5", (256, 256), 100),
    ("claude-opus-5-5", (1024, 1024), 1369),
    ("claude-opus-5-5", (1920, 1080), 2691),
    ("claude-opus-5-5", (3840, 2160), 2952),
    ("claude-opus-5-5", (4032, 3024), 3888),
    ("claude-haiku-4-5", (1280, 720), 1196),
    ("claude-haiku-4-5", (1920, 1080), 1560),
    ("claude-haiku-4-5", (4032, 3024), 1564),
    ("gpt-6-astra", (256, 256), 77),
    ("gpt-6-astra", (1920, 1080), 2448),
    ("gpt-6-astra", (4032, 3024), 14364),
    ("gpt-5.5", (4032, 3024), 11868),
    ("gemini-3.8-flash", (4032, 3024), 1065),
]


@pytest.mark.parametrize(("model", "size", "tokens"), MEASURED)
def test_the_rules_agree_with_measured_counts(model: str, size: tuple[int, int], tokens: int) -> None:
    assert image_rule(model).tokens(*size) == pytest.approx(tokens, rel=0.04)


def test_tiles() -> None:
    assert image_rule("gpt-4o").tokens(1024, 1024) == 85 + 170 * 4
    assert image_rule("gpt-4o").tokens(2048, 4096) == 85 + 170 * 6
    assert image_rule("gemini-2.5-pro").tokens(300, 300) == 258
    assert image_rule("gemini-2.5-pro").tokens(1000, 700) == 2 * 258


def test_another_model_gets_a_rule_too() -> None:
    assert image_rule("llava").tokens(560, 280) == 200
