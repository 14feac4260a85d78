"""The state of a compile: what a context has sent of each section, and pure functions over it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from loom.context.entry import Entry, MessageEntry, StringEntry, identity
from loom.context.file_entry import FileEntry, FileView
from loom.context.section import Section
from loom.core.message import ToolSpec
from loom.core.section import SECTIONS, SectionName
from loom.core.window import Past, Run, View
from loom.errors import UsageError

CONVO = SECTIONS.index("convo")
STABLE = tuple(range(CONVO + 1))
"""The sections that stay between windows: foundation, focus, topic, convo."""


NOTHING_SENT = -1
"""The graph of a state that no window was made of."""

Contributor = tuple[str, Section]
"""A section that is part of the window, with the name of the context it belongs to."""


@dataclass(slots=True)
class CompileState:
    """The state of what was sent, or of a draft that may be committed."""

    heads: list[Run | None] = field(default_factory=lambda: [None] * len(STABLE))
    cursors: list[dict[Section, tuple[int, int]]] = field(default_factory=lambda: [{} for _ in STABLE])
    views: dict[str, View] = field(default_factory=dict[str, View])
    waiting: tuple[tuple[str, View], ...] = ()
    """Calls without their results, and the entries after them, each with the name of its context."""
    tools: tuple[ToolSpec, ...] = ()
    void: frozenset[str] = frozenset()
    graph: int = NOTHING_SENT
    hidden: int = 0
    """One bit for each section in which an entry was left out because its content is in the window already."""
    updates: tuple[tuple[FileEntry, StringEntry], ...] = ()
    """Edits of pinned files that this window announces at the end of the conversation."""
    tail: tuple[Run | None, Run | None] = (None, None)
    """What stood behind the conversation: step and attention."""
    step: tuple[Entry, ...] = ()
    revision: int = -1
    number: int = 0
    """How many windows went out up to this one; a draft has the number of what it was made on."""
    past: tuple[Past, ...] = ()
    """The last few windows that went out, this one included."""

    @property
    def static(self) -> list[Run | None]:
        """The heads of the sections that make the system prompt."""
        return self.heads[:CONVO]

    @property
    def sources(self) -> list[View]:
        """Everything the conversation holds, what waits for a result included."""
        return [*sources_of(self.heads[CONVO]), *(item for _, item in self.waiting)]


@dataclass(slots=True)
class KnownIds:
    """The ids that are in the window: those that were sent, and those that joined since."""

    sent: set[str]
    new: set[str]

    def take(self, entries: list[Entry]) -> list[Entry]:
        """The entries whose ids are not known; from now on they are."""
        fresh = [e for e in entries if e.id not in self.sent and e.id not in self.new]
        self.new.update(e.id for e in fresh)
        return fresh


@dataclass(slots=True)
class KnownContent:
    """Says of each key whether it comes for the first time; what was sent came before what is new."""

    sent: dict[bytes, str]
    new: dict[bytes, str]

    def first(self, key: bytes, id: str) -> str:
        """The id that this key belongs to, which is `id` if the key is new."""
        return self.sent.get(key) or self.new.setdefault(key, id)


def runs_since(before: Run | None, now: Run | None) -> list[Run] | None:
    """The runs added after `before`, oldest first; None if `now` did not grow out of it."""
    runs: list[Run] = []
    run = now
    while run is not None and run is not before:
        runs.append(run)
        run = run.parent
    return runs[::-1] if run is before else None


def ids_after(ids: set[str], before: CompileState, now: CompileState) -> set[str] | None:
    """The ids of `now`, made from those of `before` if it only grew."""
    for old, new in zip(before.heads, now.heads, strict=True):
        fresh = runs_since(old, new)
        if fresh is None:
            return None
        ids.update(s.id for run in fresh for s in run.sources)
    ids.update(item.id for _, item in now.waiting)
    return ids


def sources_of(head: Run | None) -> list[View]:
    """Every source of a chain, oldest first."""
    return [s for run in (head.chain() if head else ()) for s in run.sources]


def thinking_in(sources: Iterable[View]) -> frozenset[str]:
    """The ids of the messages that hold a model's own reasoning."""
    return frozenset(s.id for s in sources if isinstance(s, MessageEntry) and s.has_thinking)


def ids_of(state: CompileState) -> set[str]:
    """The ids of everything that was sent or waits."""
    ids = {s.id for head in state.heads for s in sources_of(head)}
    return ids | {item.id for _, item in state.waiting}


def identities(heads: list[Run | None]) -> dict[bytes, str]:
    """The content of the static sections, each with the entry that says it."""
    found: dict[bytes, str] = {}
    for head in heads[:CONVO]:
        for run in head.chain() if head else ():
            for item in run.items:
                found.setdefault(identity(item, run.section), item.id)
    return found


def ordered_tools(sent: tuple[ToolSpec, ...], now: list[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Tools in the order they were first sent; new ones follow. A listing in another order moves nothing."""
    if not now:
        return ()
    by_name = {tool.name: tool for tool in now}
    kept = [by_name.pop(tool.name) for tool in sent if tool.name in by_name]
    ordered = (*kept, *by_name.values())
    return sent if ordered == sent else ordered


def update_text(sent: FileView, now: FileView) -> str:
    """How a pinned file differs from what was sent: the diff or the new text, whichever is shorter."""
    if now.text == sent.text:
        return f"[Update of {now.name}] It reads as it was first shown."
    lines = difflib.unified_diff(sent.text.splitlines(), now.text.splitlines(), lineterm="", n=1)
    diff = "\n".join(list(lines)[2:])
    if len(diff) < len(now.text):
        return f"[Update of {now.name}] Changes since it was first shown:\n{diff}"
    return f"[Update of {now.name}] It now reads:\n{now.text}"


def with_runs(head: Run | None, name: SectionName, batches: list[tuple[str, list[View]]]) -> Run | None:
    """A chain with a run more for each batch that holds something."""
    for context, items in batches:
        if items:
            sources = tuple(items)
            head = Run(head, name, context, sources, sources)
    return head


def paired_runs(head: Run | None, fed: list[tuple[str, View]], shown: list[View], held: set[str]) -> Run | None:
    """A conversation in its legal order as runs, one for each stretch of one context."""
    contexts = {item.id: context for context, item in fed}
    used: set[str] = set()
    joined = False
    for context, group in groupby(shown, key=lambda item: contexts[item.id]):
        items = tuple(group)
        ids = {item.id for item in items} - used
        sources = tuple(item for _, item in fed if item.id in ids and item.id not in held)
        used |= ids
        head = Run(head, "convo", context, sources, items, joined=joined)
        joined = True
    return head


def check_id(entry: Entry, groups: tuple[list[Contributor], ...]) -> None:
    """Refuse two different entries with one id: a reference to it would be ambiguous."""
    for group in groups:
        for context, section in group:
            other = section.get(entry.id)
            if other is not None and other is not entry:
                raise UsageError(
                    f"two entries have the id {entry.id!r}, one of them in {section.name} of context {context!r}; "
                    f"make one of them without an id of its own"
                )
