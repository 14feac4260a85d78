"""Compile: a context, its visitors and its files become one window; what was sent keeps its place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import is_
from typing import Protocol

from loom.context.entry import Entry, StringEntry, identity
from loom.context.file_entry import FileEntry, FileView
from loom.context.pairing import pair
from loom.context.section import Section
from loom.context.sent import (
    CONVO,
    NOTHING_SENT,
    STABLE,
    CompileState,
    Contributor,
    KnownContent,
    KnownIds,
    check_id,
    identities,
    ids_after,
    ids_of,
    ordered_tools,
    paired_runs,
    runs_since,
    sources_of,
    thinking_in,
    update_text,
    with_runs,
)
from loom.core.message import ToolSpec
from loom.core.section import DEDUPED, SECTIONS, STATIC, SectionName, section_name
from loom.core.window import Notice, Past, Run, View, Window
from loom.errors import UsageError

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
        """The window, if nothing happened since the last but that the conversation grew by plain entries.

        That is the common case by far, and this makes it cost the same however long the conversation is.
        """
        host, sent = self._host, self._sent
        convo, cursors = host.sections[CONVO], sent.cursors[CONVO]
        # Each condition below names something that reaches beyond the new entries: other sections, visitors, files,
        # edits, the pairing of tool calls, void thinking, dedup across sections, the order of tools.
        if host.dirty != 1 << CONVO or host.watchful or sent.graph != host.graph_revision() or convo not in cursors:
            return None
        edits, start = cursors[convo]
        if edits != convo.edits or convo.uses_tools or convo.thinks or host.shares or host.tools or sent.tools:
            return None
        if host.sections[CONVO + 1].entries or host.sections[CONVO + 2].entries:
            return None
        sources = tuple(convo.entries[start:])
        head = Run(sent.heads[CONVO], "convo", host.name, sources, sources)  # pyright: ignore[reportArgumentType]
        heads, all_cursors = sent.heads.copy(), sent.cursors.copy()
        heads[CONVO], all_cursors[CONVO] = head, {convo: (edits, start + len(sources))}
        draft = CompileState(heads, all_cursors, sent.views, (), (), sent.void, sent.graph, sent.hidden)
        draft.revision, draft.number = host.revision, sent.number
        return Window(host.name, (*heads, None, None), past=sent.past, void=sent.void, draft=draft)

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
        now.past = (*before.past[1 - _REMEMBERED :], Past((*now.heads, *now.tail), now.tools, now.void))
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
        """What stands in the place of something that was sent."""
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
