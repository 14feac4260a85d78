"""How full the window is: the size that the last response reported, and an estimate of what was added since."""

from __future__ import annotations

from loom.core.heavy import off_loop
from loom.core.section import SECTIONS
from loom.core.window import View, Window
from loom.protocols.token_counter import TokenCounter
from loom.tokens import CalibratedCounter, count_tool
from loom.tokens.parts import MESSAGE_OVERHEAD

_FASTER = 8
"""off_loop() knows how long splitting a text into words takes; counting its tokens takes this many times less."""


class Meter:
    """Counts windows for one model, and learns from every response.

    A window has the size of the last measured one plus the counted difference. So a history that shrinks counts less at
    once, and errors of the counter about the unchanged part do not matter.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = CalibratedCounter(counter)
        self._base = counter
        self._measured: tuple[int, int] | None = None
        self._known: dict[tuple[str, int], int] = {}

    def tokens(self, window: Window) -> int:
        """The tokens of a window, system, tools and tail included."""
        counted = self._count(window)
        if self._measured is None:
            return round(counted * self.counter.scale)
        actual, then = self._measured
        return max(0, actual + round((counted - then) * self.counter.scale))

    def observe(self, window: Window, tokens: int) -> None:
        """Learn from a response that reported the tokens of this window."""
        if tokens > 0:
            counted = self._count(window)
            self.counter.observe(counted, tokens, scale=1.0)
            self._measured = (tokens, counted)

    async def count_ahead(self, window: Window) -> None:
        """Count the new items of a window: in a thread, where that is much work."""
        items = (item for section in SECTIONS for _, item in window.items(section))
        new = [item for item in items if _key(item) not in self._known]
        counts = await off_loop(sum(len(item.text) for item in new) // _FASTER, lambda: list(map(self._item, new)))
        self._known.update(zip(map(_key, new), counts, strict=True))

    def forget(self) -> None:
        """Drop the last measurement: the next window is of another history."""
        self._measured = None

    def sections(self, window: Window) -> dict[str, int]:
        """The tokens of each section and of the tools, by estimate."""
        counts = {section: round(self._section(window, section) * self.counter.scale) for section in SECTIONS}
        return {"tools": round(self._tools(window) * self.counter.scale), **counts}

    def _count(self, window: Window) -> int:
        return self._tools(window) + sum(self._section(window, section) for section in SECTIONS)

    def _tools(self, window: Window) -> int:
        return sum(count_tool(tool, self._base) for tool in window.tools)

    def _section(self, window: Window, section: str) -> int:
        total = 0
        for _, item in window.items(section):  # pyright: ignore[reportArgumentType]
            key = _key(item)
            if key not in self._known:
                self._known[key] = self._item(item)
            total += self._known[key]
        return total

    def _item(self, item: View) -> int:
        return sum(self._base.count_part(part) for part in item.parts) + MESSAGE_OVERHEAD


def _key(item: View) -> tuple[str, int]:
    return (item.id, len(item.text))
