"""Compile: a context, its visitors and its files become one window; what was sent keeps its place."""

from __future__ import annotations

from itertools import groupby
from typing import Protocol

from loom.context.entry import Entry, StringEntry, identity
from loom.context.file_entry import FileEntry, FileView
from loom.context.pairing import pair
from loom.context.section import Section
from loom.context.sent import (
    CONVO,
    KEPT,
    Once,
    State,
    grown,
    identities,
    ids_of,
    not_in,
    ordered_tools,
    runs_since,
    sources_of,
    thinking_in,
    update_text,
)
from loom.core.message import ToolSpec
from loom.core.section import DEDUPED, SECTIONS, SectionName
from loom.core.window import Notice, Run, View, Window

_ALL = (1 << len(KEPT)) - 1

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


class Compiler:
    """Makes windows of one context.

    `window()` can be called any number of times and changes nothing that was sent. `commit()` says that the
    last window went out: from then on its entries keep their order, whatever is included or added later.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sent = State()
        self._draft = State()
        self._revision = -1
        self._step: list[Entry] = []
        self._contents: dict[bytes, str] = {}
        self._placed: set[str] | None = None
        self._announced: dict[str, StringEntry] = {}
        self._notices: list[Notice] = []

    def window(self) -> Window:
        """The window of the context as it is now."""
        return self._next_turn() or self._whole()

    def _next_turn(self) -> Window | None:
        """The window, if nothing happened since the last but that the conversation grew by plain entries.

        That is the common case by far, and this makes it cost the same however long the conversation is.
        """
        host, sent = self._host, self._sent
        convo, cursors = host.convo, sent.cursors[CONVO]
        if host.dirty != 1 << CONVO or host.watchful or sent.graph != host.graph_revision() or convo not in cursors:
            return None
        edits, start = cursors[convo]
        if edits != convo.edits or convo.uses_tools or convo.thinks or convo.shares:
            return None
        if host.tools or sent.tools or host.step.entries or host.attention.entries:
            return None
        before, sources = sent.heads[CONVO], tuple(convo.entries[start:])
        head = Run(before, "convo", host.name, sources, sources)  # pyright: ignore[reportArgumentType]
        heads = [*sent.heads[:CONVO], head]
        cursors = [*sent.cursors[:CONVO], {convo: (edits, len(convo.entries))}]
        self._draft = State(heads, cursors, sent.views, sent.waiting, sent.tools, sent.void, sent.graph, sent.hidden)
        self._revision, self._step = host.revision, []
        return Window(host.name, (*heads, None, None), base=((*sent.heads, *sent.tail), ()), void=sent.void)

    def _whole(self) -> Window:
        """The window, every section looked at."""
        host, sent = self._host, self._sent
        self._notices = []
        groups, graph = host.contributors(), host.graph_revision()
        draft = State(
            sent.heads.copy(), sent.cursors.copy(), sent.views, sent.waiting, sent.tools, sent.void, graph, sent.hidden
        )
        once = Once(self._contents, {})
        placed: set[str] = set()
        changed = _ALL if host.watchful or graph != sent.graph else host.dirty
        draft.updates = self._pinned_edits(groups) if sent.views else []
        changed |= bool(draft.updates) << CONVO
        edited = sum(1 << at for at in KEPT if changed >> at & 1 and self._was_edited(at, groups[at]))
        if edited:  # what was left out for an entry that is gone now has to be looked at again
            changed, edited = changed | sent.hidden, edited | sent.hidden
        for at in KEPT:
            if changed >> at & 1:
                self._compile_section(draft, at, groups[at], once, placed, rebuilt=bool(edited >> at & 1))
        draft.tools = ordered_tools(sent.tools, host.all_tools())
        self._void_thinking(draft, groups[CONVO])
        step = self._volatile("step", groups[CONVO + 1], once)
        attention = self._volatile("attention", groups[CONVO + 2], once)
        draft.tail = (step, attention)
        if host.watchful:
            self._notices += [n for group in groups for _, s in group for entry in s.live for n in entry.notices()]
        self._draft, self._revision, self._step = draft, host.revision, host.step.entries.copy()
        return Window(
            host.name,
            (*draft.heads, step, attention),
            tools=draft.tools,
            notices=tuple(self._notices),
            base=((*sent.heads, *sent.tail), sent.tools),
            void=draft.void,
        )

    def commit(self) -> None:
        """The last window went out: freeze its order and take the step entries it showed away."""
        host, before, now = self._host, self._sent, self._draft
        if before.heads[:CONVO] != now.heads[:CONVO]:
            self._contents = identities(now.heads)
        if self._placed is not None:
            self._placed = grown(self._placed, before, now)
        self._sent = now
        self._keep_updates(now)
        if host.revision == self._revision:
            host.dirty = 0
        if self._step:
            host.step.drop(self._step)
            self._step = []

    def sent_head(self, section: SectionName) -> Run | None:
        """What was sent of a section."""
        return self._sent.heads[SECTIONS.index(section)] if section in SECTIONS[: CONVO + 1] else None

    # -- one section ------------------------------------------------------------------------------------

    def _compile_section(
        self,
        draft: State,
        at: int,
        contributors: list[Contributor],
        once: Once,
        placed: set[str],
        *,
        rebuilt: bool,
    ) -> None:
        name = SECTIONS[at]
        if rebuilt:
            draft.heads[at] = self._replayed(draft, at, contributors)
            draft.waiting = [] if name == "convo" else draft.waiting
            once.sent, once.new = identities(draft.heads), {}
        cursors = {} if rebuilt else self._sent.cursors[at]
        draft.cursors[at] = {s: (s.edits, len(s.entries)) for _, s in contributors}
        batches = [(c, s, s.entries[cursors[s][1] :] if s in cursors else s.entries) for c, s in contributors]
        if rebuilt or len(contributors) > 1 or contributors[0][1].shares:
            known = self._placed_ids() if len(contributors) > 1 and not rebuilt else ids_of(draft)
            batches = [(c, s, not_in(new, known, placed)) for c, s, new in batches]
        shown: list[tuple[str, list[View]]] = [(c, self._read(draft, section, new)) for c, section, new in batches]
        if name == "convo":
            updates: list[View] = [update for _, update in draft.updates]
            shown.append((self._host.name, updates))
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

    def _read(self, draft: State, section: Section, new: list[Entry]) -> list[View]:
        if not section.live:
            return new  # pyright: ignore[reportReturnType]  (without live entries, all of them are their own view)
        shown = [entry.show() for entry in new]
        live = {entry.id: view for entry, view in zip(new, shown, strict=True) if entry.live}
        draft.views = draft.views | live
        return shown

    def _unseen(self, shown: list[View], once: Once, name: SectionName) -> list[View]:
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
        draft: State,
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

    def _replayed(self, draft: State, at: int, contributors: list[Contributor]) -> Run | None:
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

    def _now(self, draft: State, source: View, contributors: list[Contributor]) -> View | None:
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

    def _pinned_edits(self, groups: tuple[list[Contributor], ...]) -> list[tuple[FileEntry, StringEntry]]:
        """Edits of pinned files that were sent and that no window that went out has announced."""
        found: list[tuple[FileEntry, StringEntry]] = []
        for entry in [e for group in groups[:CONVO] for _, section in group for e in section.live]:
            sent = self._sent.views.get(entry.id)
            if isinstance(entry, FileEntry) and entry.pin and isinstance(sent, FileView):
                text = update_text(sent, entry.show())
                last = self._announced.get(entry.id)
                if text != (last.text if last else update_text(sent, sent)):
                    found.append((entry, self._update_entry(entry, text)))
        return found

    def _update_entry(self, entry: FileEntry, text: str) -> StringEntry:
        """The entry that says an update; looking twice gives the same one."""
        drafted = next((u for e, u in self._draft.updates if e is entry and u.text == text), None)
        return drafted or StringEntry(text, role="user")

    def _keep_updates(self, state: State) -> None:
        """The announcements that went out become entries of the conversation, where the window showed them."""
        if state.updates:
            section = self._host.convo
            edits, length = state.cursors[CONVO][section]
            section.splice(length, [update for _, update in state.updates])
            state.cursors[CONVO] = {**state.cursors[CONVO], section: (edits, length + len(state.updates))}
            self._announced.update({entry.id: update for entry, update in state.updates})
            state.updates = []

    def _void_thinking(self, draft: State, contributors: list[Contributor]) -> None:
        """Find the reasoning whose prefix is no longer what the model saw when it produced it."""
        for _, section in contributors:
            if section.thinks:
                break
        else:
            return
        sent = self._sent
        before, now = sent.heads[CONVO], draft.heads[CONVO]
        grown = runs_since(before, now)
        if draft.heads[:CONVO] != sent.heads[:CONVO] or draft.tools != sent.tools:
            draft.void = draft.void | thinking_in(sources_of(before))
        elif grown is None:
            old, new = sources_of(before), sources_of(now)
            edit = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a is not b), len(new))
            draft.void = draft.void | thinking_in(old[edit:])
        elif any(sent.tail):
            draft.void = draft.void | thinking_in([s for run in grown for s in run.sources])

    # -- what changes every time --------------------------------------------------------------------------

    def _volatile(self, name: SectionName, contributors: list[Contributor], once: Once) -> Run | None:
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
            self._placed = ids_of(self._sent)
        return self._placed
