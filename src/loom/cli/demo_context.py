"""The scenes of `loom demo` about contexts: compile, plan, edit, pin, and other providers."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from loom.catalog import find_model
from loom.cli.demo import MODEL, PROVIDER, DemoScene, table
from loom.cli.views import explanation_view, plan_view
from loom.context.cache.explain import explain
from loom.context.cache.plan import CachePlan, plan
from loom.context.context import Context
from loom.context.entry import ImageEntry, StringEntry
from loom.context.file_entry import FileEntry
from loom.core.message import ImagePart, Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.window import Window

OTHERS = (("openai", "gpt-5.6"), ("gemini", "gemini-3.1-pro"), ("vllm", "llama-4"))
_SOUL = "sue"
"""The id of the file's entry; otherwise ids are random."""

_AREAS = (
    *("naming", "errors", "retries", "logging", "money", "time zones", "tests", "migrations", "access", "limits"),
    *("queues", "caching", "deadlines", "releases", "alerts", "backups", "secrets", "payments", "refunds", "audits"),
    *("exports", "imports", "search", "ordering", "currencies", "rounding", "locking", "sessions", "quotas", "docs"),
)
_RULES = (
    "Say what {} is for before saying how it works; a reader who knows the purpose can judge the rest.",
    "A change to {} needs a test that fails without it, and a line in the changelog that a user understands.",
    "When {} and speed disagree, ask which of the two a customer would notice first, and write the answer down.",
    "Do not copy code for {} between services; move it into the shared package and give it an owner.",
    "The person who touched {} last answers questions about it this week, even when the question is simple.",
)


def context_scenes(folder: Path) -> Iterator[DemoScene]:
    """The scenes, in order."""
    soul = folder / "SOUL.md"
    soul.write_text(_handbook("Be kind."), encoding="utf-8")
    agent = build(soul, pin=False)
    window = agent.compile()
    first = plan(window, PROVIDER, MODEL)
    yield DemoScene(
        "Under the hood: a context is compiled, and planned before it is sent",
        "Six sections, a visitor (security rules), a file (SOUL.md) and an image become one immutable window. These "
        "are its parts in the order of the request, and what the cache will do with them. The reminder in attention "
        "comes after the last marker, so it can change freely.",
        Group(_parts_table(window), Text(), plan_view(first)),
        {"parts": len(window.parts), "chars": window.chars, "plan": first},
    )
    _turn(agent)
    second = plan(agent.compile(), PROVIDER, MODEL)
    yield DemoScene(
        "The conversation continues",
        "A tool call, its result and a question were appended. Every earlier byte is where it was: the cache hits.",
        _summary(second),
        second,
    )
    yield from _edit(agent, soul)
    yield from _edit_pinned(soul)
    yield DemoScene(
        "The same window, other providers",
        "One context, rendered for each: with markers where the provider accepts them, repeated where it needs that, "
        "none where it finds prefixes itself. 1st and 2nd are the costs of the two requests, relative to no cache.",
        _providers_table(rows := _providers(soul)),
        rows,
    )


def _edit(agent: Context, soul: Path) -> Iterator[DemoScene]:
    before = agent.compile(clear_volatile=False)
    soul.write_text(_handbook("Be blunt."), encoding="utf-8")
    after = agent.compile(clear_volatile=False)
    found, cost = explain(before, after, PROVIDER, MODEL), plan(after, PROVIDER, MODEL)
    yield DemoScene(
        "One edit, and what it costs",
        "One word of SOUL.md changes while the agent runs. The next request contains it, and this is the price:",
        Group(explanation_view(found), Text(), _summary(cost)),
        {"explanation": found, "plan": cost},
    )


def _edit_pinned(soul: Path) -> Iterator[DemoScene]:
    soul.write_text(_handbook("Be kind."), encoding="utf-8")
    agent = build(soul, pin=True)
    agent.compile()
    _turn(agent)
    before = agent.compile()
    soul.write_text(_handbook("Be blunt."), encoding="utf-8")
    after = agent.compile(clear_volatile=False)
    found = explain(before, after, PROVIDER, MODEL)
    cost = plan(after, PROVIDER, MODEL)
    update = [p.part.text for p in after.parts if isinstance(p.part, TextPart) and p.part.text.startswith("[Update")]
    yield DemoScene(
        "The same edit with FileEntry(..., pin=True)",
        "The text that was sent stays where it is; the change is appended to the conversation:",
        Group(Text("\n".join(update), style="cyan"), Text(), explanation_view(found), Text(), _summary(cost)),
        {"explanation": found, "plan": cost},
    )


def build(soul: Path, *, pin: bool) -> Context:
    """The agent of the demo."""
    agent, security = Context("agent"), Context("security")
    agent.tools.append(ToolSpec("read_file", "Read a file of the repository.", _schema("path")))
    agent.foundation.add(StringEntry("You review changes to a payment service."))
    agent.foundation.add(FileEntry(soul, pin=pin, id=_SOUL))
    security.foundation.add(StringEntry("Never log a card number. Treat every input as hostile.", name="Security"))
    agent.include(security)
    agent.focus.add(StringEntry("Review PR #42 and suggest improvements."))
    agent.topic.add(ImageEntry(_picture(), "image/png", "failing build"))
    agent.convo.add(Message.user("What changed in the retry logic, and is it safe?"))
    agent.attention.add(StringEntry("It is late; answer in three sentences."))
    return agent


def _turn(agent: Context) -> None:
    call = ToolCallPart("call_1", "read_file", {"path": "retry.py"})
    result = "def retry(call, tries=3):\n    for left in range(tries, 0, -1):\n        ...\n" * 12
    agent.convo.add(Message("assistant", (TextPart("I will read the file first."), call)))
    agent.convo.add(Message("user", (ToolResultPart("call_1", (TextPart(result),)),)))
    agent.convo.add(Message.assistant("The loop retries three times without a pause."))
    agent.convo.add(Message.user("How would you fix it?"))


def _providers(soul: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for provider, model in ((PROVIDER, MODEL), *OTHERS):
        agent = build(soul, pin=False)
        first = plan(agent.compile(), provider, model)
        _turn(agent)
        second = plan(agent.compile(), provider, model)
        rules = find_model(model, provider).cache
        rows.append(
            {
                "provider": provider,
                "model": model,
                "matching": rules.matching,
                "markers": len(second.markers),
                "first": first.relative_cost,
                "second": second.relative_cost,
                "read": second.read,
                "tokens": second.tokens,
            }
        )
    return rows


def _providers_table(rows: list[dict[str, object]]) -> Table:
    words, numbers = ("provider", "model", "matching"), ("markers", "tokens", "read", "1st", "2nd")
    shown = [
        (
            *(str(row[name]) for name in words),
            *(f"{row[name]:,}" for name in ("markers", "tokens", "read")),
            *(f"{row[name]:.2f}x" for name in ("first", "second")),
        )
        for row in rows
    ]
    return table((*words, *numbers), shown, right=numbers)


def _summary(found: CachePlan) -> Text:
    parts = f"read {found.read:,}, write {found.write:,}, uncached {found.uncached:,}"
    return Text(f"This request of {found.tokens:,} tokens: {parts}; {found.relative_cost:.2f} of the uncached price.")


def _parts_table(window: Window) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(style="dim", no_wrap=True, min_width=12)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for part in window.parts:
        shown = "(the image itself)" if isinstance(part.part, ImagePart) else part.text.replace("\n", " ")
        table.add_row(part.section, part.context, Text(f"{part.role}: {shown}"))
    return table


def _handbook(motto: str) -> str:
    """A file of a few thousand tokens: below the minimum prefix nothing is cached."""
    lines: list[str] = []
    for area in _AREAS:
        lines += [f"{len(lines) + n}. {rule.format(area)}" for n, rule in enumerate(_RULES, 1)]
    return "\n".join([motto, "", *lines]) + "\n"


def _schema(*names: str) -> dict[str, object]:
    return {"type": "object", "properties": {n: {"type": "string"} for n in names}, "required": list(names)}


def _picture(size: int = 96) -> str:
    """A small PNG: a red diagonal on white."""
    rows = b"".join(
        b"\0" + b"".join(b"\xd0\x20\x20" if abs(x - y) < 4 else b"\xff\xff\xff" for x in range(size))
        for y in range(size)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()
