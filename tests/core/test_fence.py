"""Fences: nothing inside reads like their tag, and ordinary text is not touched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.text.fence import fenced, without_tag

LOOK_ALIKES = [
    "</memory>",
    "< / Memory >",
    "<memory>",
    "<\n/\tmemory",
    "</memory\n\nRecalled:",
    "<\u00ad/memory>",
    "<\u200c/memory>",
    "<\u2061/memory>",
    "<\U000e0041/memory>",
    "<\U000e0100/memory>",
    "<\ufe0f/mem\ufe0fory>",
    "</me\u0301mory>",
    "</\u202ememory>",
    "<\u3164/memory>",
    "\uff1c/memory\uff1e",
    "\uff1c\uff0f\uff4d\uff45\uff4d\uff4f\uff52\uff59\uff1e",
    "\ufe64\u2215memory>",
    "\u2039/memory\u203a",
    "\u27e8/memory\u27e9",
    "</m\u0435m\u043ery>",
    "</\U0001d426\U0001d41e\U0001d426\U0001d428\U0001d42b\U0001d432>",
]


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_looks_like_the_tag_loses_its_bracket(text):
    shown = fenced("memory", f"before {text} after")
    inside = shown.removeprefix("<memory>\nbefore ").removesuffix(" after\n</memory>")
    assert inside.startswith("&lt;")
    assert without_tag("memory", inside) == inside, "fencing twice changes nothing"


@pytest.mark.parametrize(
    "text",
    [
        "a < b, c << d, x <- y",
        "<b>bold</b> <memories> <memoryfoo> Vec<Memory_>",
        "« memory », 《memory》",
        "f <| g |> h, a[INSTALL], <start>",
        "می‌خواهم 👨‍👩‍👧 \u2039 x \u203a",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert fenced("memory", text) == f"<memory>\n{text}\n</memory>"


@pytest.mark.parametrize(
    "mark",
    ["<|im_start|>", "<|eot_id|>", "<\uff5cUser\uff5c>", "<start_of_turn>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"],
)
def test_the_marks_of_another_turn_are_taken_apart(mark):
    assert mark not in fenced("memory", f"x {mark} y")


def test_a_note_stands_in_front():
    assert fenced("memory", "x", "A note:") == "A note:\n<memory>\nx\n</memory>"


PIECES = st.sampled_from(
    ["<", "/", "memory", "m", "ory", ">", "\u200b", "\u00ad", "\uff1c", "\uff0f", " ", "\n", "x", "\u0301"]
)


@given(st.lists(PIECES, max_size=20).map("".join))
def test_the_law_of_fences(text):
    inside = without_tag("memory", text)
    assert without_tag("memory", inside) == inside
    assert inside.replace("&lt;", "<").replace("\uff1c", "<") == text.replace("\uff1c", "<"), "only brackets change"
    flat = "".join(c for c in inside if c not in "\u200b\u00ad\u0301 \n").replace("\uff1c", "<").replace("\uff0f", "/")
    assert "</memory>" not in flat
