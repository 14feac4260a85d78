"""The history of a session: a log that only grows, and what is shown of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import dropwhile, takewhile
from typing import Final

from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.checkpoint import Compaction, LogEntry, LoggedMessage, Replacement, Shown, shown_of
from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.message import Message, TextPart
from loom.errors import NotFound

SPILL: Final = "spill"
"""The strategy of a rewrite that only shortens one message of tool results."""


class History:
    """One session's log and its view, kept in step with the conversation of a context.

    The log is never changed, only added to; a compaction is an entry like a message. What is shown is the
    messages with the compactions in `applied`.
    """

    def __init__(self, context: Context, *, clock: Clock, ids: RecordIds) -> None:
        self._context = context
        self._clock = clock
        self._ids = ids
        self.log: list[LogEntry] = []
        self.applied: tuple[str, ...] = ()
        self.shown: list[Shown] = []
        self._entries: dict[str, MessageEntry] = {}

    def append(self, message: Message) -> LoggedMessage:
        """Add a message at the end."""
        entry = MessageEntry(message)  # first, because it refuses what no provider takes
        logged = LoggedMessage(self._ids.next_id(), self._clock.now(), message)
        self.log.append(logged)
        self.shown.append(Shown(logged.id, message))
        self._entries[logged.id] = entry
        self._context.convo.add(entry)
        return logged

    def withdraw(self, position: int) -> None:
        """Take back the messages that the log gained since it had this length.

        A compaction made since stays, unless it covers one of them.
        """
        gone = {entry.id for entry in self.log[position:] if isinstance(entry, LoggedMessage)}
        made = [entry for entry in self.log[position:] if isinstance(entry, Compaction)]
        kept = list(takewhile(lambda compaction: gone.isdisjoint(compaction.covered), made))
        self.log[position:] = kept
        entries = [self._entries.pop(id) for id in gone]
        if len(kept) < len(made):
            undone = {compaction.id for compaction in made[len(kept) :]}
            self.applied = tuple(id for id in self.applied if id not in undone)
            self._show(shown_of(self.log, self.applied))
            return
        self.shown = [item for item in self.shown if item.id not in gone]
        self._context.convo.drop(entries)

    def apply(self, compaction: Compaction) -> None:
        """Show the history with a compaction more."""
        shown = compaction.apply(self.shown)
        self.log.append(compaction)
        self.applied = (*self.applied, compaction.id)
        self._show(shown)

    def shorten(self, id: str, short: Message, *, before: int, after: int) -> None:
        """Show a message shorter than it is; `before` and `after` are its tokens."""
        self.apply(
            Compaction(
                id=self._ids.next_id(),
                at=self._clock.now(),
                strategy=SPILL,
                replacements=(Replacement((id,), short),),
                tokens_before=before,
                tokens_after=after,
            )
        )

    @property
    def last_compaction(self) -> str | None:
        """The compaction applied last; results that were only shortened do not count."""
        return next((id for id in reversed(self.applied) if self.compaction(id).strategy != SPILL), None)

    def undo(self, handle: str) -> None:
        """Show again what a compaction replaced."""
        if handle not in self.applied:
            known = ", ".join(self.applied) or "none"
            raise NotFound(f"no compaction {handle!r} applies here; those that do: {known}")
        applied = tuple(id for id in self.applied if id != handle)
        shown = shown_of(self.log, applied)
        self.applied = applied
        self._show(shown, void=_behind(self.log, {handle}))

    def load(self, log: Iterable[LogEntry], applied: Sequence[str], *, trust_thinking: bool = True) -> None:
        """Become another history; thinking that is not trusted is void, for a model that binds it to the prompt."""
        log = list(log)
        shown = shown_of(log, applied)  # first, because it refuses what does not fit
        self.log, self.applied = log, tuple(applied)
        self._entries = {}
        undone = {entry.id for entry in log if isinstance(entry, Compaction)} - {*applied}
        self._show(shown, void=_behind(log, undone) if trust_thinking else {item.id for item in shown})

    def entry(self, id: str) -> MessageEntry | None:
        """The entry of the context that shows a message; None where there is nothing to show of it."""
        return self._entries.get(id)

    def compaction(self, handle: str) -> Compaction:
        """The compaction with this id, applied or not."""
        for entry in self.log:
            if isinstance(entry, Compaction) and entry.id == handle:
                return entry
        raise NotFound(f"this session has no compaction {handle!r}")

    def expand(self, id: str) -> tuple[LoggedMessage, ...]:
        """The messages of the log behind something shown: a summary, a message, or a whole compaction."""
        messages = {e.id: e for e in self.log if isinstance(e, LoggedMessage)}
        compactions = {e.id: e for e in self.log if isinstance(e, Compaction)}
        if id in compactions:
            waiting = [covered for r in compactions[id].replacements for covered in r.covers]
        elif id in messages or id.rpartition(".")[0] in compactions:
            waiting = [id]
        else:
            raise NotFound(f"nothing in this session has the id {id!r}; explain() lists what is shown")
        found: list[LoggedMessage] = []
        while waiting:
            next_id = waiting.pop(0)
            if next_id in messages:
                found.append(messages[next_id])
            else:
                handle, _, number = next_id.rpartition(".")
                waiting = [*compactions[handle].replacements[int(number)].covers, *waiting]
        return tuple(found)

    def _show(self, shown: Sequence[Shown], *, void: Collection[str] = ()) -> None:
        self.shown = list(shown)
        # The same message keeps its entry, so that what comes back after an undo is the very same bytes.
        # A message that lost its thinking may hold nothing any more: then there is nothing to show of it.
        said = [s for s in shown if is_sayable(s.message)]
        self._entries |= {s.id: MessageEntry(s.message) for s in said if s.id not in self._entries}
        entries = [self._entries[s.id] for s in said]
        self._context.rewrite(entries, void=[e for s, e in zip(said, entries, strict=True) if s.id in void])


def _behind(log: Sequence[LogEntry], undone: Collection[str]) -> set[str]:
    """The messages whose thinking was done in view of a compaction that applies no more."""
    seen = dropwhile(lambda entry: entry.id not in undone, log)
    return {entry.id for entry in seen if isinstance(entry, LoggedMessage)}


def is_sayable(message: Message) -> bool:
    """Whether a message holds anything a provider takes: text that is only white space is nothing."""
    return any(not isinstance(part, TextPart) or part.text.strip() for part in message.parts)
