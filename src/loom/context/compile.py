"""Compile: a context, its visitors and its files become one window; what was sent keeps its place."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from loom.context.entry import Entry, MessageEntry, StringEntry, identity
from loom.context.file_entry import FileEntry, FileView
from loom.context.pairing import pair
from loom.context.section import Section
from loom.core.message import ToolSpec
from loom.core.section import DEDUPED, SECTIONS, SectionName
from loom.core.window import Notice, Run, View, Window

_CONVO = SECTIONS.index("convo")
_KEPT = tuple(range(_CONVO + 1))
"""The sections that stay between windows: foundation, focus, topic, convo."""
_ALL = (1 << len(_KEPT)) - 1

Contributor = tuple[str, Section]
"""A section that is part of the window, with the name of the context it belongs to."""


class Host(Protocol):
    """What a compile needs of a context."""

    name: str
    revision: int
    dirty: int
    """One bit for each section that changed since the last commit."""
    watchful: bool
    """Something other than its own sections can change the window: it has visitors or files."""
    tools: list[ToolSpec]

    @property
    def convo(self) -> Section:
        """The conversation."""
        ...

    @property
    def step(self) -> Section:
        """What is shown once."""
        ...

    @property
    def attention(self) -> Section:
        """What is shown last."""
        ...

    def contributors(self) -> tuple[list[Contributor], ...]:
        """For each section of the window, the sections that make it up, in visitor order."""
        ...

    def all_tools(self) -> list[ToolSpec]:
        """The tools of this context and its visitors."""
        ...

    def graph_revision(self) -> int:
        """Changes whenever a context is included or excluded anywhere."""
        ...


@dataclass(slots=True)
class _State:
    """What has been sent, or what would be if a draft were committed."""

    heads: list[Run | None] = field(default_factory=lambda: [None] * len(_KEPT))
    cursors: list[dict[Section, tuple[int, int]]] = field(default_factory=lambda: [{} for _ in _KEPT])
    views: dict[str, View] = field(default_factory=dict[str, View])
    waiting: list[tuple[str, View]] = field(default_factory=list[tuple[str, View]])
    tools: tuple[ToolSpec, ...] = ()
    void: frozenset[str] = frozenset()
    graph: int = -1
    hidden: int = 0
    """One bit for each section in which an entry was left out because its content is in the window already."""
    had_tail: bool = False


@dataclass(slots=True)
class _Once:
    """Says of each key whether it comes for the first time; what was sent came before what is new."""

    sent: dict[bytes, str]
    new: dict[bytes, str]

    def first(self, key: bytes, id: str) -> str:
        """The id that this key belongs to, which is `id` if nobody had the key before."""
        return self.sent.get(key) or self.new.setdefault(key, id)


class Compiler:
    """Makes windows of one context.

    `window()` can be called any number of times and changes nothing that was sent. `commit()` says that the
    last window went out: from then on its entries keep their order, whatever is included or added later.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sent = _State()
        self._draft = _State()
        self._revision = -1
        self._step: list[Entry] = []
        self._contents: dict[bytes, str] = {}
        self._placed: set[str] | None = None
        self._announced: dict[str, str] = {}
        self._notices: list[Notice] = []

    def window(self) -> Window:
        """The window of the context as it is now."""
        return self._next_turn() or self._whole()

    def _next_turn(self) -> Window | None:
        """The window, if nothing happened since the last but that the conversation grew by plain entries.

        That is the common case by far, and this makes it cost the same however long the conversation is.
        """
        host, sent = self._host, self._sent
        convo, cursors = host.convo, sent.cursors[_CONVO]
        if host.dirty != 1 << _CONVO or host.watchful or sent.graph != host.graph_revision() or convo not in cursors:
            return None
        edits, start = cursors[convo]
        if edits != convo.edits or convo.uses_tools or convo.thinks or convo.shares or sent.had_tail:
            return None
        if host.tools or sent.tools or host.step.entries or host.attention.entries:
            return None
        before, sources = sent.heads[_CONVO], tuple(convo.entries[start:])
        head = Run(before, "convo", host.name, sources, sources)  # pyright: ignore[reportArgumentType]
        heads = [*sent.heads[:_CONVO], head]
        cursors = [*sent.cursors[:_CONVO], {convo: (edits, len(convo.entries))}]
        self._draft = _State(heads, cursors, sent.views, sent.waiting, sent.tools, sent.void, sent.graph, sent.hidden)
        self._revision = host.revision
        return Window(host.name, (*heads, None, None), base=(tuple(sent.heads), ()), void=sent.void)

    def _whole(self) -> Window:
        """The window, every section looked at."""
        host, sent = self._host, self._sent
        self._notices = []
        groups, graph = host.contributors(), host.graph_revision()
        if sent.views:
            self._announce_pinned_edits(groups)
        draft = _State(
            sent.heads.copy(), sent.cursors.copy(), sent.views, sent.waiting, sent.tools, sent.void, graph, sent.hidden
        )
        once = _Once(self._contents, {})
        placed: set[str] = set()
        changed = _ALL if host.watchful or graph != sent.graph else host.dirty
        edited = sum(1 << at for at in _KEPT if changed >> at & 1 and self._was_edited(at, groups[at]))
        if edited:  # what was left out for an entry that is gone now has to be looked at again
            changed, edited = changed | sent.hidden, edited | sent.hidden
        for at in _KEPT:
            if changed >> at & 1:
                self._compile_section(draft, at, groups[at], once, placed, rebuilt=bool(edited >> at & 1))
        draft.tools = _ordered_tools(sent.tools, host.all_tools())
        self._void_thinking(draft, groups[_CONVO])
        step = self._volatile("step", groups[_CONVO + 1], once)
        attention = self._volatile("attention", groups[_CONVO + 2], once)
        draft.had_tail = step is not None or attention is not None
        if host.watchful:
            self._notices += [n for group in groups for _, s in group for entry in s.live for n in entry.notices()]
        self._draft, self._revision, self._step = draft, host.revision, host.step.entries.copy()
        return Window(
            host.name,
            (*draft.heads, step, attention),
            tools=draft.tools,
            notices=tuple(self._notices),
            base=(tuple(sent.heads), sent.tools),
            void=draft.void,
        )

    def commit(self) -> None:
        """The last window went out: freeze its order and take the step entries it showed away."""
        host, before, now = self._host, self._sent, self._draft
        if before.heads[:_CONVO] != now.heads[:_CONVO]:
            self._contents = _identities(now.heads)
        if self._placed is not None:
            self._placed = _grown(self._placed, before, now)
        self._sent = now
        if host.revision == self._revision:
            host.dirty = 0
        if self._step:
            host.step.drop(self._step)
            self._step = []

    def sent_head(self, section: SectionName) -> Run | None:
        """What was sent of a section."""
        return self._sent.heads[SECTIONS.index(section)] if section in SECTIONS[: _CONVO + 1] else None

    # -- one section ------------------------------------------------------------------------------------

    def _compile_section(
        self,
        draft: _State,
        at: int,
        contributors: list[Contributor],
        once: _Once,
        placed: set[str],
        *,
        rebuilt: bool,
    ) -> None:
        name = SECTIONS[at]
        if rebuilt:
            draft.heads[at] = self._replayed(draft, at, contributors)
            draft.waiting = [] if name == "convo" else draft.waiting
            once.sent, once.new = _identities(draft.heads), {}
        cursors = {} if rebuilt else self._sent.cursors[at]
        draft.cursors[at] = {s: (s.edits, len(s.entries)) for _, s in contributors}
        batches = [(c, s, s.entries[cursors[s][1] :] if s in cursors else s.entries) for c, s in contributors]
        if rebuilt or len(contributors) > 1 or contributors[0][1].shares:
            known = self._placed_ids() if len(contributors) > 1 and not rebuilt else _ids(draft)
            batches = [(c, s, _not_in(new, known, placed)) for c, s, new in batches]
        shown = [(context, self._read(draft, section, new)) for context, section, new in batches]
        if name == "convo":
            draft.heads[at] = self._grow_convo(draft, draft.heads[at], shown, contributors)
        else:
            for context, items in shown:
                fresh = tuple(self._unseen(items, once, name))
                draft.hidden |= (len(fresh) < len(items)) << at
                draft.heads[at] = Run(draft.heads[at], name, context, fresh, fresh) if fresh else draft.heads[at]

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
            e.id in views and not (isinstance(e, FileEntry) and e.pin) and e.show() is not views[e.id]
            for e in section.live
        )

    def _read(self, draft: _State, section: Section, new: list[Entry]) -> list[View]:
        if not section.live:
            return new  # pyright: ignore[reportReturnType]  (without live entries, all of them are their own view)
        shown = [entry.show() for entry in new]
        live = {entry.id: view for entry, view in zip(new, shown, strict=True) if entry.live}
        draft.views = draft.views | live
        return shown

    def _unseen(self, shown: list[View], once: _Once, name: SectionName) -> list[View]:
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

    def _grow_convo(
        self,
        draft: _State,
        head: Run | None,
        batches: list[tuple[str, list[View]]],
        contributors: list[Contributor],
    ) -> Run | None:
        if not draft.waiting and not any(s.uses_tools for _, s in contributors):
            for context, items in batches:
                sources = tuple(items)
                head = Run(head, "convo", context, sources, sources) if sources else head
            return head
        fed = draft.waiting + [(context, item) for context, items in batches for item in items]
        own = frozenset(item.id for _, item in fed if self._host.convo.get(item.id))
        shown, held = pair([item for _, item in fed], own=own)
        contexts = {item.id: context for context, item in fed}
        draft.waiting = [(contexts[item.id], item) for item in held]
        if held:
            message = "a tool call waits for its result; the two are shown together"
            self._notices.append(Notice("pending_call", message, held[0].id))
        waiting = {item.id for item in held}
        for context, group in groupby(shown, key=lambda item: contexts[item.id]):
            items = tuple(group)
            ids = {item.id for item in items}
            sources = tuple(i for _, i in fed if i.id in ids and i.id not in waiting)
            head = Run(head, "convo", context, sources, items)
        return head

    # -- after an edit ----------------------------------------------------------------------------------

    def _replayed(self, draft: _State, at: int, contributors: list[Contributor]) -> Run | None:
        """What was sent, with edits applied: the runs before the first edit are the very same objects."""
        head = self._sent.heads[at]
        base: Run | None = None
        for run in head.chain() if head else ():
            sources = tuple(s for s in (self._now(draft, s, contributors) for s in run.sources) if s)
            same = len(sources) == len(run.sources) and all(a is b for a, b in zip(sources, run.sources, strict=True))
            if same and base is run.parent:
                base = run
            elif same:
                base = Run(base, run.section, run.context, sources, run.items)
            elif sources:
                items = tuple(pair(sources, settle=True)[0]) if run.section == "convo" else sources
                base = Run(base, run.section, run.context, sources, items)
        return base

    def _now(self, draft: _State, source: View, contributors: list[Contributor]) -> View | None:
        """What stands in the place of something that was sent."""
        entry = next((e for _, s in contributors if (e := s.current(source.id))), None)
        if entry is None:
            return None
        if entry.id == source.id and (not entry.live or (isinstance(entry, FileEntry) and entry.pin)):
            return source
        view = entry.show()
        if entry.live:
            draft.views = draft.views | {entry.id: view}
        return view

    def _announce_pinned_edits(self, groups: tuple[list[Contributor], ...]) -> None:
        """Edits of a pinned file that was sent join the conversation as updates."""
        for group in groups[:_CONVO]:
            for _, section in group:
                for entry in section.live:
                    sent = self._sent.views.get(entry.id)
                    if isinstance(entry, FileEntry) and entry.pin and isinstance(sent, FileView):
                        view = entry.show()
                        if view.text != self._announced.get(entry.id, sent.text):
                            self._host.convo.add(StringEntry(_update(sent, view), role="user"))
                            self._announced[entry.id] = view.text

    def _void_thinking(self, draft: _State, contributors: list[Contributor]) -> None:
        """Find the reasoning whose prefix is no longer what the model saw when it produced it."""
        for _, section in contributors:
            if section.thinks:
                break
        else:
            return
        sent = self._sent
        before, now = sent.heads[_CONVO], draft.heads[_CONVO]
        grown = _runs_since(before, now)
        if draft.heads[:_CONVO] != sent.heads[:_CONVO] or draft.tools != sent.tools:
            draft.void = draft.void | _thinking(_sources(before))
        elif grown is None:
            old, new = _sources(before), _sources(now)
            edit = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a is not b), len(new))
            draft.void = draft.void | _thinking(old[edit:])
        elif sent.had_tail:
            draft.void = draft.void | _thinking([s for run in grown for s in run.sources])

    # -- what changes every time --------------------------------------------------------------------------

    def _volatile(self, name: SectionName, contributors: list[Contributor], once: _Once) -> Run | None:
        head: Run | None = None
        for context, section in contributors:
            if not section.entries:
                continue
            shown = [entry.show() for entry in section.entries]
            fresh = self._unseen(shown, once, name) if name in DEDUPED else shown
            if fresh:
                items = pair(fresh, settle=True)[0] if section.uses_tools else fresh
                head = Run(head, name, context, tuple(fresh), tuple(items))
        return head

    # -- indexes ----------------------------------------------------------------------------------------

    def _placed_ids(self) -> set[str]:
        """Ids of everything that was sent or waits."""
        if self._placed is None:
            self._placed = _ids(self._sent)
        return self._placed


def _runs_since(before: Run | None, now: Run | None) -> list[Run] | None:
    """The runs added after `before`, oldest first; None if `now` did not grow out of it."""
    runs: list[Run] = []
    run = now
    while run is not None and run is not before:
        runs.append(run)
        run = run.parent
    return runs[::-1] if run is before else None


def _grown(placed: set[str], before: _State, now: _State) -> set[str] | None:
    """The ids of `now`, made from those of `before` if it only grew."""
    for old, new in zip(before.heads, now.heads, strict=True):
        fresh = _runs_since(old, new)
        if fresh is None:
            return None
        placed.update(s.id for run in fresh for s in run.sources)
    placed.update(item.id for _, item in now.waiting)
    return placed


def _sources(head: Run | None) -> list[View]:
    return [s for run in (head.chain() if head else ()) for s in run.sources]


def _thinking(sources: list[View]) -> frozenset[str]:
    return frozenset(s.id for s in sources if isinstance(s, MessageEntry) and s.has_thinking)


def _ids(state: _State) -> set[str]:
    placed = {s.id for head in state.heads for s in _sources(head)}
    return placed | {item.id for _, item in state.waiting}


def _not_in(entries: list[Entry], known: set[str], placed: set[str]) -> list[Entry]:
    """The entries that are in neither set; they join the second."""
    new = [e for e in entries if not (e.id in known or e.id in placed)]
    placed.update(e.id for e in new)
    return new


def _identities(heads: list[Run | None]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for head in heads[:_CONVO]:
        for run in head.chain() if head else ():
            for item in run.items:
                found.setdefault(identity(item, run.section), item.id)
    return found


def _ordered_tools(sent: tuple[ToolSpec, ...], now: list[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Tools in the order they were first sent; new ones follow. A listing in another order moves nothing."""
    if not now:
        return ()
    by_name = {tool.name: tool for tool in now}
    kept = [by_name.pop(tool.name) for tool in sent if tool.name in by_name]
    ordered = (*kept, *by_name.values())
    return sent if ordered == sent else ordered


def _update(sent: FileView, now: FileView) -> str:
    """How a pinned file differs from what was sent: the diff or the new text, whichever is shorter."""
    lines = difflib.unified_diff(sent.text.splitlines(), now.text.splitlines(), lineterm="", n=1)
    diff = "\n".join(list(lines)[2:])
    if len(diff) < len(now.text):
        return f"[Update of {now.name}] Changes since it was first shown:\n{diff}"
    return f"[Update of {now.name}] It now reads:\n{now.text}"
