"""Tool calls and their results: the order every provider accepts, kept as a conversation grows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from loom.core.message import Part, Role, TextPart, ToolCallPart, ToolResultPart, plain
from loom.core.window import View

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
