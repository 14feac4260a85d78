"""Compile: a context, its visitors and its files become one immutable window."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import is_
from typing import Protocol

from loom.context.entry import Entry, MessageEntry, Section, StringEntry, identity
from loom.context.file_entry import FileEntry, FileView
from loom.core.message import Part, Role, TextPart, ToolCallPart, ToolResultPart, ToolSpec, plain
from loom.core.window import (
    DEDUPED,
    SECTIONS,
    STATIC,
    Notice,
    Past,
    Run,
    SectionName,
    View,
    Window,
    runs_since,
    section_name,
)
from loom.errors import UsageError

# The state of a compile: what a context has sent of each section, and pure functions over it.

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


# Tool calls and their results: the order every provider accepts, kept as a conversation grows.

NO_RESULT = "[No result was recorded for this call.]"


@dataclass(frozen=True, slots=True)
class PartsView:
    """Parts of an entry shown on their own, or stand-ins for missing results."""

    id: str
    name: str | None
    role: Role | None
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The parts as a person reads them."""
        return f"{self.role or 'user'}: " + "\n".join(map(plain, self.parts))


def pair(
    items: Iterable[View], *, own: frozenset[str] = frozenset(), settle: bool = False
) -> tuple[list[View], list[View]]:
    """Order what arrived since the last time; returns what can be shown now and what has to wait.

    Three rules, so that what was shown once never moves:
    - a message with calls waits until every call has its result; then come the message, the results, and
      whatever arrived between;
    - when the conversation goes on without a result, the call is closed with a stand-in result;
    - a result whose call is not open (late, doubled, or never made) is shown as plain text.

    What has to wait is fed again, first, the next time. `own` names the entries that count as the
    conversation going on: a line that a visitor adds between a call and its result does not. With `settle`
    nothing waits.
    """
    fold = _Fold()
    fold.feed(items)
    while fold.calls is not None and (settle or any(item.id in own for item in fold.deferred)):
        fold.close()
    return fold.shown, fold.held


class _Fold:
    """One pass over new entries: what is shown, and which calls are open."""

    def __init__(self) -> None:
        self.shown: list[View] = []
        self.calls: View | None = None
        self.deferred: list[View] = []
        self.held: list[View] = []
        self._open: dict[str, None] = {}
        self._results: list[View] = []

    def feed(self, items: Iterable[View]) -> None:
        """Take entries in order."""
        queue = deque(items)
        while queue:
            item = queue.popleft()
            if self.calls is None:
                self._show(item)
                continue
            self.held.append(item)
            self._answer(item)
            if not self._open:
                queue.extendleft(reversed(self._flush()))

    def close(self) -> None:
        """Answer what is open with stand-ins and go on with what waited."""
        assert self.calls is not None
        missing = tuple(ToolResultPart(id, (TextPart(NO_RESULT),), is_error=True) for id in self._open)
        self._results.append(PartsView(self.calls.id, None, "user", missing))
        self.feed(self._flush())

    def _flush(self) -> list[View]:
        assert self.calls is not None
        self.shown += [self.calls, *self._results]
        waiting = self.deferred
        self.calls, self.deferred, self.held, self._results, self._open = None, [], [], [], {}
        return waiting

    def _show(self, item: View) -> None:
        """Show an entry that nothing holds back; its own calls, if any, start to wait."""
        calls = [p.id for p in item.parts if isinstance(p, ToolCallPart)]
        if calls:
            self.calls, self.held, self._open = item, [item], dict.fromkeys(calls)
        elif any(isinstance(p, ToolResultPart) for p in item.parts):
            parts = tuple(TextPart(plain(p)) if isinstance(p, ToolResultPart) else p for p in item.parts)
            self.shown.append(PartsView(item.id, item.name, item.role, parts))
        else:
            self.shown.append(item)

    def _answer(self, item: View) -> None:
        """Take the results this entry brings for open calls; the rest of it waits behind them."""
        answers: list[Part] = []
        rest: list[Part] = []
        for part in item.parts:
            if isinstance(part, ToolResultPart) and part.call_id in self._open:
                del self._open[part.call_id]
                answers.append(part)
            else:
                rest.append(part)
        if not answers:
            self.deferred.append(item)
        elif not rest:
            self._results.append(item)
        else:
            self._results.append(PartsView(item.id, item.name, "user", tuple(answers)))
            self.deferred.append(PartsView(item.id, item.name, item.role, tuple(rest)))


_REMEMBERED = 4
"""How many windows that went out are remembered: what they left in a cache may still be there."""
_ALL = (1 << len(STABLE)) - 1
"""Sections are sets of bits here (bit n is SECTIONS[n]): a compile that finds none set has nothing to look at."""


class _CompileHost(Protocol):
    """The view of a context that a compile needs; Context says what each of these is."""

    name: str
    revision: int
    dirty: int
    """One bit for each section that changed since the last commit."""
    watchful: bool
    """Something other than its own sections can change the window: it has visitors or files."""
    shares: bool
    """An entry stands in two of its sections."""
    tools: list[ToolSpec]

    @property
    def sections(self) -> tuple[Section, ...]: ...
    def contributors(self) -> tuple[list[Contributor], ...]: ...
    def all_tools(self) -> list[ToolSpec]: ...
    def graph_revision(self) -> int: ...


class Compiler:
    """Makes windows of one context.

    `window()` can be called any number of times and changes nothing that was sent. `commit()` says that a
    window went out: from then on its entries keep their order, whatever is included or added later.
    """

    def __init__(self, host: _CompileHost) -> None:
        self._host = host
        self._sent = CompileState()
        self._contents: dict[bytes, str] = {}
        self._sent_ids: set[str] | None = None
        self._sent_updates: dict[str, StringEntry] = {}
        self._draft_updates: dict[str, StringEntry] = {}
        self._notices: list[Notice] = []

    def window(self) -> Window:
        """The window of the context as it is now."""
        return self._next_turn() or self._all_sections()

    def _next_turn(self) -> Window | None:
        """The window, if nothing happened since the last but that the conversation and `step` gained plain entries.

        That is the common case by far, and this makes it cost the same however long the conversation is.
        """
        host, sent = self._host, self._sent
        convo, cursors = host.sections[CONVO], sent.cursors[CONVO]
        # Each condition below names something that reaches beyond the new entries: other sections, visitors, files,
        # edits, the pairing of tool calls, void thinking, dedup across sections, the order of tools.
        if (
            host.dirty & _ALL != 1 << CONVO
            or host.watchful
            or sent.graph != host.graph_revision()
            or convo not in cursors
        ):
            return None
        edits, start = cursors[convo]
        if edits != convo.edits or convo.uses_tools or convo.thinks or host.shares or host.tools or sent.tools:
            return None
        if host.sections[CONVO + 2].entries:
            return None
        sources = tuple(convo.entries[start:])
        head = Run(sent.heads[CONVO], "convo", host.name, sources, sources)  # pyright: ignore[reportArgumentType]
        heads, all_cursors = sent.heads.copy(), sent.cursors.copy()
        heads[CONVO], all_cursors[CONVO] = head, {convo: (edits, start + len(sources))}
        draft = CompileState(heads, all_cursors, sent.views, (), (), sent.void, sent.graph, sent.hidden)
        draft.revision, draft.number = host.revision, sent.number
        step = self._volatile("step", host.contributors(), KnownContent({}, {}), None)
        draft.tail, draft.step = (step, None), tuple(host.sections[CONVO + 1].entries)
        return Window(host.name, (*heads, step, None), past=sent.past, void=sent.void, draft=draft)

    def _all_sections(self) -> Window:
        """The window, every section looked at."""
        host, sent = self._host, self._sent
        self._notices = []
        groups, graph = host.contributors(), host.graph_revision()
        draft = CompileState(
            sent.heads.copy(), sent.cursors.copy(), sent.views, sent.waiting, sent.tools, sent.void, graph, sent.hidden
        )
        draft.updates = self._pinned_edits(groups) if sent.views else ()
        # Three masks. `changed`: look at the section at all. `edited`, a part of it: something that was sent is gone
        # or different, so its runs are made anew. `sent.hidden`: an entry was left out there as a duplicate.
        # Visitors and files set no bit of the host, so with them every section is looked at.
        changed = _ALL if host.watchful or graph != sent.graph else host.dirty
        changed |= bool(draft.updates) << CONVO
        edited = sum(1 << at for at in STABLE if changed >> at & 1 and self._was_edited(at, groups[at]))
        if edited:  # the entry that a duplicate was left out for may be gone, so those sections are made anew too
            changed, edited = changed | sent.hidden, edited | sent.hidden
            self._replay(draft, edited, groups)
        once = KnownContent(identities(draft.heads) if edited else self._contents, {})
        known = self._known(draft, groups, edited=bool(edited))
        for at in STABLE:
            if changed >> at & 1:
                self._grow(draft, at, groups, once, known, anew=bool(edited >> at & 1))
        draft.tools = ordered_tools(sent.tools, host.all_tools())
        self._void_thinking(draft, groups[CONVO])
        step = self._volatile("step", groups, once, known)
        attention = self._volatile("attention", groups, once, known)
        draft.tail, draft.step = (step, attention), tuple(groups[CONVO + 1][0][1].entries)
        draft.revision, draft.number = host.revision, sent.number
        self._notice_states(draft, groups)
        return Window(
            host.name,
            (*draft.heads, step, attention),
            tools=draft.tools,
            notices=tuple(self._notices),
            past=sent.past,
            void=draft.void,
            draft=draft,
        )

    def commit(self, window: Window, *, shown: Sequence[str] | None = None) -> None:
        """A window went out: freeze its order and take the step entries it showed away.

        Where only some sections were `shown`, `step` and `attention` did not go out unless named.
        """
        host, before, now = self._host, self._sent, window.draft
        if now is before:
            return
        if not isinstance(now, CompileState) or now.number != before.number:
            raise UsageError("this window is not the next one to go out: another one was committed since it was made")
        if shown is not None:
            wanted = {section_name(name) for name in ([shown] if isinstance(shown, str) else shown)}
            step, attention = now.tail
            now.tail = (step if "step" in wanted else None, attention if "attention" in wanted else None)
            now.step = now.step if "step" in wanted else ()
        if before.static != now.static:
            self._contents = identities(now.heads)
        if self._sent_ids is not None:
            self._sent_ids = ids_after(self._sent_ids, before, now)
        now.number += 1
        now.past = (*before.past[1 - _REMEMBERED :], Past((*now.heads, *now.tail), now.tools, now.void, window.made))
        self._sent = now
        if now.updates or self._sent_updates:
            self._keep_updates(now)
        if host.revision == now.revision:  # else entries came between compile and commit, and their bits must stay
            host.dirty = 0
        if now.step:
            host.sections[CONVO + 1].drop(now.step)

    def restart(self, void: frozenset[str]) -> None:
        """Forget the order of what was sent: the next window is made anew.

        What went out is still compared with; reasoning that was void stays so, and that of `void` becomes so.
        """
        before, void = self._sent, self.window().void | void
        self._sent = CompileState(number=before.number, past=before.past, void=void)
        self._contents, self._sent_ids = {}, None
        self._sent_updates, self._draft_updates = {}, {}
        self._host.dirty = _ALL

    def sent_length(self, convo: Section) -> int:
        """How many entries of a conversation a window that went out has looked at."""
        return self._sent.cursors[CONVO].get(convo, (0, 0))[1]

    def sent_head(self, section: SectionName) -> Run | None:
        """What was sent of a section."""
        at = SECTIONS.index(section)
        return self._sent.heads[at] if at <= CONVO else self._sent.tail[at - CONVO - 1]

    # -- what is new --------------------------------------------------------------------------------------

    def _grow(
        self,
        draft: CompileState,
        at: int,
        groups: tuple[list[Contributor], ...],
        once: KnownContent,
        known: KnownIds | None,
        *,
        anew: bool,
    ) -> None:
        """Add what a section gained; after an edit, look at all of its entries again."""
        name, contributors = SECTIONS[at], groups[at]
        cursors = {} if anew else self._sent.cursors[at]
        draft.cursors[at] = {s: (s.edits, len(s.entries)) for _, s in contributors}
        batches: list[tuple[str, list[View]]] = []
        for context, section in contributors:
            new = section.entries[cursors[section][1] :] if section in cursors else section.entries
            if known is not None:
                new = self._not_known(new, known, groups)
            shown: list[View] = [e.show() for e in new] if section.live else new  # pyright: ignore[reportAssignmentType]
            if name in DEDUPED:
                fresh = self._unseen(shown, once, name)
                draft.hidden |= (len(fresh) < len(shown)) << at
                shown = fresh
            if section.live:
                live = {entry.id for entry in section.live}
                draft.views = draft.views | {view.id: view for view in shown if view.id in live}
            batches.append((context, shown))
        if name == "convo":
            batches.append((self._host.name, [update for _, update in draft.updates]))
            draft.heads[at] = self._grow_convo(draft, draft.heads[at], batches, contributors)
        else:
            draft.heads[at] = with_runs(draft.heads[at], name, batches)

    def _grow_convo(
        self,
        draft: CompileState,
        head: Run | None,
        batches: list[tuple[str, list[View]]],
        contributors: list[Contributor],
    ) -> Run | None:
        if not draft.waiting and not any(s.uses_tools for _, s in contributors):
            return with_runs(head, "convo", batches)
        fed = [*draft.waiting, *((context, item) for context, items in batches for item in items)]
        announced = {update.id for update in self._sent_updates.values()} | {u.id for _, u in draft.updates}
        own = frozenset(i.id for _, i in fed if self._host.sections[CONVO].get(i.id) and i.id not in announced)
        shown, held = pair([item for _, item in fed], own=own)
        contexts = {item.id: context for context, item in fed}
        draft.waiting = tuple((contexts[item.id], item) for item in held)
        return paired_runs(head, fed, shown, {item.id for item in held})

    def _unseen(self, shown: list[View], once: KnownContent, name: SectionName) -> list[View]:
        """The entries whose content is not in the window yet."""
        fresh: list[View] = []
        for item in shown:
            first = once.first(identity(item, name), item.id)
            if first == item.id or (isinstance(item, Entry) and item.repeat):
                fresh.append(item)
            else:
                message = f"{name} entry {item.id} says the same as entry {first}; it is shown once"
                self._notices.append(Notice("duplicate", message, item.id))
        return fresh

    def _volatile(
        self, name: SectionName, groups: tuple[list[Contributor], ...], once: KnownContent, known: KnownIds | None
    ) -> Run | None:
        head: Run | None = None
        for context, section in groups[SECTIONS.index(name)]:
            if not section.entries:
                continue
            new = section.entries if known is None else self._not_known(section.entries, known, groups)
            shown = [entry.show() for entry in new]
            fresh = self._unseen(shown, once, name) if name in DEDUPED else shown
            items = pair(fresh, settle=True)[0] if section.uses_tools else fresh
            head = Run(head, name, context, tuple(fresh), tuple(items)) if fresh else head
        return head

    def _known(self, draft: CompileState, groups: tuple[list[Contributor], ...], *, edited: bool) -> KnownIds | None:
        """The ids that are in the window already; None where no entry can come twice."""
        if len(groups[0]) == 1 and not self._host.shares and not edited:
            return None
        if edited:
            return KnownIds(ids_of(draft), set())
        if self._sent_ids is None:
            self._sent_ids = ids_of(self._sent)
        return KnownIds(self._sent_ids, set())

    def _not_known(self, new: list[Entry], known: KnownIds, groups: tuple[list[Contributor], ...]) -> list[Entry]:
        fresh = known.take(new)
        if len(fresh) < len(new) and (len(groups[0]) > 1 or self._host.shares):
            for entry in new:
                check_id(entry, groups)
        return fresh

    # -- after an edit ------------------------------------------------------------------------------------

    def _was_edited(self, at: int, contributors: list[Contributor]) -> bool:
        """Whether something other than growth happened to what was sent of a section."""
        cursors = self._sent.cursors[at]
        known = 0
        for _, section in contributors:
            if section in cursors:
                known += 1
                if cursors[section][0] != section.edits or (section.live and self._files_changed(section)):
                    return True
        return known != len(cursors)

    def _files_changed(self, section: Section) -> bool:
        """Whether a file that was sent says something else now; a pinned one never does."""
        views = self._sent.views
        return any(
            e.id in views and not (isinstance(e, FileEntry) and e.pin) and e.show() != views[e.id] for e in section.live
        )

    def _replay(self, draft: CompileState, edited: int, groups: tuple[list[Contributor], ...]) -> None:
        """What was sent, with edits applied; views of what is gone are let go."""
        for at in STABLE:
            if edited >> at & 1:
                draft.heads[at] = self._replayed(draft, at, groups[at])
                draft.waiting = () if at == CONVO else draft.waiting
                draft.hidden &= ~(1 << at)
        here = ids_of(draft)
        draft.views = {id: view for id, view in draft.views.items() if id in here}

    def _replayed(self, draft: CompileState, at: int, contributors: list[Contributor]) -> Run | None:
        """A chain with edits applied: the runs before the first edit are the very same objects."""
        head = self._sent.heads[at]
        base: Run | None = None
        rest: list[tuple[str, View]] = []
        moved = False
        for run in head.chain() if head else ():
            # A joined run was put in order together with the one before it, so an edit in it reaches back to the
            # last run that began an order of its own; everything before that is reused as it is.
            if not moved and not run.joined:
                base, rest = run.parent, []
            sources = [s for s in (self._now(draft, s, contributors) for s in run.sources) if s]
            moved = moved or len(sources) < len(run.sources) or not all(map(is_, sources, run.sources))
            rest += [(run.context, s) for s in sources]
        if not moved:
            return head
        if at == CONVO:
            shown, _ = pair([s for _, s in rest], settle=True)
            return paired_runs(base, rest, shown, set())
        groups = groupby(rest, key=lambda pair: pair[0])
        return with_runs(base, SECTIONS[at], [(context, [s for _, s in group]) for context, group in groups])

    def _now(self, draft: CompileState, source: View, contributors: list[Contributor]) -> View | None:
        """The replacement of a part that was sent."""
        entry = next((e for _, s in contributors if (e := s.current(source.id))), None)
        if entry is None:
            return None
        if entry.id == source.id and (not entry.live or (isinstance(entry, FileEntry) and entry.pin)):
            return source
        view = entry.show()
        if view == source:
            return source
        if entry.live:
            draft.views = draft.views | {entry.id: view}
        return view

    def _void_thinking(self, draft: CompileState, contributors: list[Contributor]) -> None:
        """Find the reasoning whose prefix is not what the model saw when it produced it.

        What is new was produced by the request that went out last, behind all it showed, tail included.
        """
        sent = self._sent
        if sent.graph == NOTHING_SENT or not any(s.thinks for _, s in contributors):
            return
        before, now = sent.heads[CONVO], draft.heads[CONVO]
        fresh = runs_since(before, now)
        if draft.static != sent.static or draft.tools != sent.tools:
            void = thinking_in(draft.sources)
        elif fresh is None:
            old, new = sources_of(before), draft.sources
            edit = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a is not b), len(new))
            void = thinking_in(old[edit:]) | thinking_in(new[edit:])
        else:
            waited = {item.id for _, item in sent.waiting}
            late = [i for i, run in enumerate(fresh) if run.context != self._host.name]
            behind_others = fresh[late[0] :] if late else []
            new = [s for run in fresh for s in run.sources] + [item for _, item in draft.waiting]
            void = thinking_in([s for s in new if s.id not in waited]) if any(sent.tail) else frozenset[str]()
            void |= thinking_in([s for run in behind_others for s in run.sources])
        draft.void = draft.void | void

    # -- pinned files -------------------------------------------------------------------------------------

    def _pinned_edits(self, groups: tuple[list[Contributor], ...]) -> tuple[tuple[FileEntry, StringEntry], ...]:
        """Edits of pinned files that were sent and that no window that went out has announced."""
        found: list[tuple[FileEntry, StringEntry]] = []
        for entry in [e for at in STABLE for _, section in groups[at] for e in section.live]:
            sent = self._sent.views.get(entry.id)
            if isinstance(entry, FileEntry) and entry.pin and isinstance(sent, FileView):
                text = update_text(sent, entry.show())
                last = self._sent_updates.get(entry.id)
                if text != (last.text if last else update_text(sent, sent)):
                    drafted = self._draft_updates.get(entry.id)
                    if drafted is None or drafted.text != text:  # looking twice gives the same entry
                        drafted = self._draft_updates[entry.id] = StringEntry(text, role="user")
                    found.append((entry, drafted))
        return tuple(found)

    def _keep_updates(self, state: CompileState) -> None:
        """The announcements that went out become entries of the conversation, where the window showed them."""
        if state.updates:
            section = self._host.sections[CONVO]
            edits, length = state.cursors[CONVO][section]
            section.splice(length, [update for _, update in state.updates])
            state.cursors[CONVO] = {**state.cursors[CONVO], section: (edits, length + len(state.updates))}
            self._sent_updates.update({entry.id: update for entry, update in state.updates})
            state.updates = ()
        if self._sent_updates:
            self._sent_updates = {id: update for id, update in self._sent_updates.items() if id in state.views}

    # -- notices ------------------------------------------------------------------------------------------

    def _notice_states(self, draft: CompileState, groups: tuple[list[Contributor], ...]) -> None:
        """Say what holds now, and is worth saying in every window while it does."""
        if draft.waiting:
            message = "a tool call waits for its result; the two are shown together"
            self._notices.append(Notice("pending_call", message, draft.waiting[0][1].id))
        if self._host.watchful:
            for group in groups:
                for _, section in group:
                    for entry in section.live:
                        self._notices += entry.notices(static=section.name in STATIC)
