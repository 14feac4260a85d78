"""Context: six sections of entries, visitors, and the doors to what the model will see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import count
from typing import Any

from loom.context._compile import Compiler, Contributor, pair, thinking_in
from loom.context.entry import Addable, Entry, MessageEntry, Section, as_entry
from loom.core.clock import SHARED
from loom.core.log import Shown
from loom.core.message import Message, ToolSpec
from loom.core.window import SECTIONS, STATIC, VISITORS_FIRST, Run, SectionName, View, Window, section_name
from loom.errors import EntryNotFound, UsageError
from loom.protocols.compactor import Compactor, Rewrite
from loom.protocols.token_counter import TokenCounter

_GRAPH = count(1)
_graph_revision = 0


@dataclass(frozen=True, slots=True)
class Redaction:
    """The result of a redaction: how much of the cached prefix the edit costs."""

    entry: str
    section: SectionName
    tombstone: Entry | None
    sent: bool
    """Whether a window that showed the entry already went out."""
    moved_chars: int
    """Characters that were sent at or after the entry: the cached prefix ends before them now."""


class Context:
    """The content of a model's window, in six named sections.

    `foundation` and `topic` show this context's own entries before its visitors', `focus`, `convo` and
    `attention` show the visitors' first, `step` has no visitors. Visitors bring their own visitors along.
    Once a window went out, what it showed keeps its place and whatever comes later follows it:

        context = Context("reviewer")
        context.foundation.add("You review pull requests.")
        context.convo.add(Message.user("Is the retry loop safe?"))
        body = render(context.compile(), "anthropic", "claude-sonnet-5", max_tokens=1024)
    """

    foundation: Section
    """Who the agent is, and its rules."""
    focus: Section
    """The task at hand."""
    topic: Section
    """What the task is about."""
    convo: Section
    """The conversation: it only grows."""
    step: Section
    """What is shown once: the output of a command, what was recalled for this turn."""
    attention: Section
    """Reminders, shown last and in every request."""

    def __init__(self, name: str, *, tools: Iterable[ToolSpec] = ()) -> None:
        if not name:
            raise UsageError("a context needs a name; it tells where an entry came from")
        self.name = name
        self.id = SHARED.next_id()
        self.revision = 0
        self.dirty = 0
        self.watchful = False
        self.shares = False
        self.sections = tuple(Section(section, self, 1 << at) for at, section in enumerate(SECTIONS))
        self.foundation, self.focus, self.topic, self.convo, self.step, self.attention = self.sections
        self.tools: list[ToolSpec] = list(tools)
        self._visitors: list[Context] = []
        self._contributors: tuple[list[Contributor], ...] = ()
        self._reach: tuple[Context, ...] = (self,)
        self._graph = -1
        self._compiler = Compiler(self)
        self._last: Window | None = None

    # -- sections and entries ---------------------------------------------------------------------------

    def section(self, name: str) -> Section:
        """The section called `name`, in any case."""
        return self.sections[SECTIONS.index(section_name(name))]

    def entries(self, section: str | None = None) -> Iterator[Entry]:
        """The entries of this context, of one section or of all, visitors not counted."""
        for name in (section_name(section),) if section is not None else SECTIONS:
            yield from self.section(name)

    def get(self, id: str) -> Entry | None:
        """The entry of this context with this id, or None."""
        return next((e for name in SECTIONS if (e := self.section(name).get(id))), None)

    def remember(self, entry: Addable) -> Entry:
        """Keep something in the conversation; an entry of `step` moves there."""
        made = as_entry(entry)
        if made in self.step:
            self.step.remove(made)
        return self.convo.add(made)

    def redact(self, entry: Entry | str, *, tombstone: str | None = None) -> Redaction:
        """Take an entry out, or put a tombstone in its place.

        The tombstone keeps the role and gives away neither the name nor the content; the messages of a tool
        call stay paired. Raises EntryNotFound for an id that is not in this context (any more).
        """
        id = entry if isinstance(entry, str) else entry.id
        for name in SECTIONS:
            section = self.section(name)
            old = section.get(id)
            if old is None or (isinstance(entry, Entry) and old is not entry):
                continue
            stone = old.redacted(tombstone) if tombstone is not None else None
            sent, moved = _chars_from(self._compiler.sent_head(name), id)
            if sent and name in STATIC:
                later = SECTIONS[SECTIONS.index(name) + 1 : SECTIONS.index("step")]
                moved += sum(h.chars for s in later if (h := self._compiler.sent_head(s)))
            section.replace(old, stone)
            return Redaction(id, name, stone, sent, moved)
        if any(self.section(name).was_removed(id) for name in SECTIONS):
            raise EntryNotFound(f"entry {id!r} was removed from context {self.name!r} earlier; nothing was changed")
        raise EntryNotFound(f"context {self.name!r} has no entry {id!r}; entries() lists the ones it has")

    def rewrite(self, convo: Iterable[Entry], *, void: Iterable[MessageEntry] = ()) -> None:
        """Show another conversation in place of the one so far, from the next window on.

        Entries that were shown before may come back. Nothing keeps the order it was sent in, pinned files included:
        one new prefix is begun, and the plan of the next window says what that costs. Thinking in the entries is
        taken for valid, except in those that `void` names: to a model that binds it to the prompt it is not sent.
        """
        entries = list(convo)
        self._compiler.restart(thinking_in(void))
        self.convo.clear()
        for entry in entries:
            self.convo.add(entry)

    def replace_unsent(self, old: Entry, by: Entry) -> bool:
        """Show another entry in place of the last one of the conversation, before any window showed that.

        Nothing that was sent moves. False, and nothing is changed, where it is not the last or was sent already.
        """
        entries = self.convo.entries
        if not entries or entries[-1] is not old or self._compiler.sent_length(self.convo) == len(entries):
            return False
        self.convo.replace_last(by)
        return True

    # -- visitors ---------------------------------------------------------------------------------------

    @property
    def visitors(self) -> list[Context]:
        """The contexts included here directly."""
        return list(self._visitors)

    def include(self, other: Context) -> None:
        """Show another context's sections together with this one's; including it again changes nothing."""
        if other is self:
            raise UsageError(f"context {self.name!r} cannot include itself")
        if other not in self._visitors:
            self._visitors.append(other)
            _graph_changed()

    def exclude(self, other: Context) -> None:
        """Stop showing another context; one that is not included does not matter."""
        if other in self._visitors:
            self._visitors.remove(other)
            _graph_changed()

    def copy(self) -> Context:
        """Another context with the same entries, tools and visitors, and a conversation of its own, empty yet."""
        other = Context(self.name, tools=self.tools)
        for name in (*STATIC, "attention"):
            for entry in self.section(name):
                other.section(name).add(entry)
        for visitor in self._visitors:
            other.include(visitor)
        return other

    # -- what the model sees ----------------------------------------------------------------------------

    def compile(self, *, clear_volatile: bool = True) -> Window:
        """The window as it is now.

        By default this also commits it: `step` is cleared, and the order of what was shown is frozen. With
        `clear_volatile=False` it is only looked at; `commit()` can follow once the call succeeded.
        """
        window = self._last = self._compiler.window()
        if clear_volatile:
            self._compiler.commit(window)
        return window

    def commit(self, window: Window | None = None) -> None:
        """A window went out: clear the step entries it showed and freeze its order.

        Without one, the window compiled last is meant. Committing it again changes nothing; one that was made
        before another went out is refused.
        """
        window = window or self._last
        if window is not None:
            self._compiler.commit(window)

    def render(self, *, clear_volatile: bool = True) -> str:
        """The window as plain text."""
        return str(self.compile(clear_volatile=clear_volatile))

    def to_messages(
        self,
        *,
        cache_breakpoints: Sequence[str] | None = None,
        cache_ttl: float | None = None,
        sections: Sequence[str] | None = None,
        clear_volatile: bool = True,
    ) -> list[dict[str, Any]]:
        """The window as chat messages with Anthropic cache markers; the first one is the system message.

        Args:
            cache_breakpoints: sections to mark at their end, up to four; the end of the conversation is marked
                as well. None marks what is worth marking, an empty list marks nothing.
            cache_ttl: how long the cache should keep the prefix, in seconds; the nearest lifetime the provider
                has is used, with a warning where that is another one.
            sections: show only these; their order stays the same, and a `step` that is not shown is not cleared.
            clear_volatile: also commit, as in `compile`.
        """
        from loom.context.render.request import chat_messages  # noqa: PLC0415  (renderers are only loaded if used)

        window = self._compiler.window()
        shown = window.only(sections)
        messages = chat_messages(shown, cache_breakpoints=cache_breakpoints, cache_ttl=cache_ttl)
        self._last = window
        if clear_volatile:
            self._compiler.commit(window, shown=sections)
        return messages

    async def compact(
        self,
        compactor: Compactor,
        *,
        target: int | None = None,
        counter: TokenCounter | None = None,
        keep: AbstractSet[str] = frozenset(),
    ) -> Window:
        """The window with its conversation rewritten by a compactor; the context itself keeps every entry.

        Args:
            compactor: who proposes the rewrite.
            target: tokens the conversation may have afterwards; its present size if not given.
            counter: who counts; an estimate if not given.
            keep: ids of entries that must stay as they are.
        """
        from loom.text.tokens import EstimateCounter  # noqa: PLC0415  (only a compaction counts)

        counter = counter or EstimateCounter()
        window = self._compiler.window()
        items = [item for _, item in window.items("convo")]
        shown = [Shown(item.id, Message(item.role or "user", item.parts)) for item in items]
        size = sum(counter.count_part(part) for item in items for part in item.parts)
        rewrite = await compactor.compact(shown, target=size if target is None else target, counter=counter, keep=keep)
        after = _rewritten(items, rewrite)
        edit = next((i for i, (a, b) in enumerate(zip(items, after, strict=False)) if a is not b), len(after))
        return window.with_items("convo", after, void=thinking_in(after[edit:]))

    # -- what a compile asks ----------------------------------------------------------------------------

    def section_changed(self, bit: int) -> None:
        """A section gained or lost an entry."""
        self.revision += 1
        self.dirty |= bit

    def graph_revision(self) -> int:
        """Changes whenever a context is included or excluded anywhere."""
        return _graph_revision

    def contributors(self) -> tuple[list[Contributor], ...]:
        """For each section of the window, the sections that make it up, in visitor order."""
        if self._graph != _graph_revision:
            self._walk()
        return self._contributors

    def all_tools(self) -> list[ToolSpec]:
        """The tools of this context, then its visitors'; of two with one name, the first."""
        tools: dict[str, ToolSpec] = {}
        for context in self._reach:
            for tool in context.tools:
                if not isinstance(tool, ToolSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise UsageError(f"the tools of context {context.name!r} hold {type(tool).__name__}; give ToolSpec")
                tools.setdefault(tool.name, tool)
        return list(tools.values())

    def _walk(self) -> None:
        """Find every context that can be reached, each once, in the order of inclusion."""
        reach: dict[Context, None] = {}
        stack: list[Context] = [self]
        while stack:
            context = stack.pop()
            if context not in reach:
                reach[context] = None
                stack.extend(reversed(context.visitors))
        self._reach = tuple(reach)
        self.watchful = self.watchful or len(reach) > 1
        self._contributors = tuple(self._contributors_of(name) for name in SECTIONS)
        self._graph = _graph_revision

    def _contributors_of(self, name: SectionName) -> list[Contributor]:
        own, *visiting = [(context.name, context.section(name)) for context in self._reach]
        if name == "step":
            return [own]
        return [*visiting, own] if name in VISITORS_FIRST else [own, *visiting]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n} {len(self.section(n))}" for n in SECTIONS if len(self.section(n)))
        return f"<Context {self.name!r} {self.id}: {sizes or 'empty'}>"


def _graph_changed() -> None:
    global _graph_revision  # noqa: PLW0603  (one counter for all contexts: a visitor's visitor may change too)
    _graph_revision = next(_GRAPH)


def _rewritten(items: list[View], rewrite: Rewrite) -> list[View]:
    """What is shown after a rewrite: each covered run gives way to its replacement, if it has one."""
    if not rewrite.replacements:
        return items
    firsts = {replacement.covers[0]: replacement.message for replacement in rewrite.replacements}
    shown: list[View] = []
    for item in items:
        message = firsts.get(item.id)
        if message is not None:
            shown.append(MessageEntry(message))
        if item.id not in rewrite.covered:
            shown.append(item)
    return pair(shown, settle=True)[0]


def _chars_from(head: Run | None, entry_id: str) -> tuple[bool, int]:
    """Whether a chain shows an entry, and how many characters it holds from there on."""
    passed = 0
    for run in head.chain() if head else ():
        for item, text in zip(run.items, run.texts, strict=True):
            if item.id == entry_id:
                assert head is not None
                return True, head.chars - passed
            passed += len(text)
    return False, 0
