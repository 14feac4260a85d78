"""How full the window is: what the last response measured, and an estimate of what was added since."""

from __future__ import annotations

from loom.core.section import SECTIONS
from loom.core.window import Window
from loom.protocols.token_counter import TokenCounter
from loom.tokens import CalibratedCounter, count_tool
from loom.tokens.parts import MESSAGE_OVERHEAD


class Meter:
    """Counts windows for one model, and learns from every response.

    A window counts as the last measured one plus the difference between the two as counted, so a history that
    shrinks counts less at once, and whatever the counter gets wrong of the unchanged part does not matter.
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

    def measured(self, window: Window, tokens: int) -> None:
        """A response said how many tokens this window had."""
        if tokens > 0:
            counted = self._count(window)
            self.counter.observe(counted, tokens, scale=1.0)
            self._measured = (tokens, counted)

    def forget(self) -> None:
        """The next window has nothing to do with the measured one."""
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
            key = (item.id, len(item.text))
            if key not in self._known:
                parts = sum(self._base.count_part(part) for part in item.parts)
                self._known[key] = parts + MESSAGE_OVERHEAD
            total += self._known[key]
        return total
