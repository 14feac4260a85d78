"""A bounded memory of counts, so that an unchanged text is counted once."""

from __future__ import annotations

from collections.abc import Callable


class Memo:
    """Counts by text, in two generations: what was not asked for since the last turnover is let go.

    The bounds hold for one generation; both together keep at most twice as much. Safe to share between
    threads without a lock: a lost entry is only counted again.
    """

    __slots__ = ("_chars", "_entries", "_max_chars", "_old", "_young")

    def __init__(self, *, entries: int = 16_384, chars: int = 16_000_000) -> None:
        self._entries, self._chars = entries, 0
        self._max_chars = chars
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def count(self, text: str, measure: Callable[[str], int]) -> int:
        """The count of a text: as remembered, or measured now."""
        found = self._young.get(text)
        if found is None:
            found = self._old.get(text)
            found = measure(text) if found is None else found
            self._put(text, found)
        return found

    def _put(self, text: str, count: int) -> None:
        if len(text) > self._max_chars:
            return
        if len(self._young) >= self._entries or self._chars + len(text) > self._max_chars:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = count
        self._chars += len(text)
