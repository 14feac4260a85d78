"""One context with everything in it, and the means to compare what the renderers make of it."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loom.context.context import Context
from loom.context.entry import DocumentEntry, Entry, ImageEntry, MessageEntry, StringEntry
from loom.context.file_entry import FileEntry
from loom.context.render.layout import Layout, WireSlot
from loom.core.message import (
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.core.window import STATIC, Window

GOLDENS = Path(__file__).parent / "goldens"
REWRITE = "LOOM_REWRITE_GOLDENS"

PNG = b64encode(b"\x89PNG plot of latency").decode()
PDF = b64encode(b"%PDF-1.7 runbook").decode()
SEAL = b64encode(b"thought of gemini").decode()

SEARCH = ToolSpec(
    "search_logs",
    "Search the logs of one service.",
    {
        "type": "object",
        "properties": {"service": {"type": "string"}, "since": {"type": "string"}},
        "required": ["service"],
    },
)
PLOT = ToolSpec("plot", "", {"type": "object", "properties": {"metric": {"type": "string"}}})

MarksOf = Callable[[Layout, Callable[[WireSlot], bool], str, str], dict[WireSlot, str]]


@pytest.fixture
def window(tmp_path: Path) -> Window:
    """A window that holds every kind of entry and part."""
    return rich_context(tmp_path).compile(clear_volatile=False)


@pytest.fixture
def marks() -> MarksOf:
    """Marks the last static slot and the last one of the conversation, each with its lifetime."""

    def mark(layout: Layout, may_mark: Callable[[WireSlot], bool], static: str, convo: str) -> dict[WireSlot, str]:
        slots = [slot for slot in layout.slots() if may_mark(slot) and not slot.volatile]
        return {
            [s for s in slots if s.section in STATIC][-1]: static,
            [s for s in slots if s.section == "convo"][-1]: convo,
        }

    return mark


@pytest.fixture
def golden(window: Window) -> Callable[[str, dict[str, Any]], None]:
    """Compares a body with the one kept under a name, byte for byte; rewrites it where the environment says so."""

    def compare(name: str, body: dict[str, Any]) -> None:
        text = json.dumps(body, ensure_ascii=False, indent=2) + "\n"
        assert not [part.entry for part in window.parts if part.entry in text], "an entry id reached the wire"
        path = GOLDENS / f"{name}.json"
        if os.environ.get(REWRITE):
            path.write_text(text, encoding="utf-8")
        assert text.encode() == path.read_bytes(), f"{path.name} differs; {REWRITE}=1 rewrites it"

    return compare


def rich_context(folder: Path) -> Context:
    """A host with two visitors (one of them through the other), a file, media, and a conversation with tools."""
    names = _ids()

    def put(section: Any, entry: Entry) -> None:
        entry.id = next(names)
        section.add(entry)

    style, brand = Context("style"), Context("brand")
    put(brand.foundation, StringEntry("Never name a customer.", "Brand"))
    put(style.focus, StringEntry("Answer in two sentences."))
    put(style.attention, StringEntry("Style guide 4 is in force."))
    style.include(brand)
    (folder / "runbook.md").write_text("---\nrole: user\n---\nRestart the queue, then the workers.\n", encoding="utf-8")

    host = Context("incident", tools=[SEARCH, PLOT])
    host.include(style)
    put(host.foundation, StringEntry("You keep the billing service running.", "Role"))
    put(host.topic, FileEntry(folder / "runbook.md"))
    put(host.topic, ImageEntry(PNG, "image/png", "dashboard.png"))
    put(host.topic, DocumentEntry(PDF, name="runbook.pdf"))
    for message in conversation():
        put(host.convo, MessageEntry(message))
    put(host.step, StringEntry("Two calls are left."))
    put(host.attention, StringEntry("Do not restart the database."))
    return host


def conversation() -> list[Message]:
    """Two calls at once, of which one fails and one answers with a picture, and reasoning of three providers."""
    thinking: tuple[Part, ...] = (
        ThinkingPart("Logs first.", "sealed-by-anthropic", provider="anthropic"),
        ThinkingPart("Logs, then a plot.", "rs_7", "encrypted-by-openai", provider="openai"),
        ThinkingPart(signature=SEAL, provider="gemini"),
    )
    calls = (
        ToolCallPart("call_1", "search_logs", {"service": "billing", "since": "06:00"}),
        ToolCallPart("call_2", "plot", {"metric": "latency · p99"}),
    )
    plotted = (TextPart("3 points"), ImagePart(PNG, "image/png", "plot.png"))
    return [
        Message.user("Why is billing slow?"),
        Message("assistant", (*thinking, TextPart("I look at the logs and at the latency."), *calls)),
        Message("user", (ToolResultPart("call_1", (TextPart("no such index"),), is_error=True),)),
        Message("user", (ToolResultPart("call_2", plotted),)),
        Message.assistant("The queue is full since 06:10."),
        Message("system", (TextPart("The change freeze has begun."),)),
        Message.user("Drain it — “carefully”."),
    ]


def _ids() -> Iterator[str]:
    """Ids that no other text of a request contains."""
    return (f"neverseen{a}{b}" for a in "abcdefgh" for b in "abcdefgh")
