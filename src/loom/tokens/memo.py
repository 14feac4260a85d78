"""A bounded memory of counts, so that an unchanged text is counted once."""

from __future__ import annotations


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

    def get(self, text: str) -> int | None:
        """The count of a text, if it is remembered."""
        found = self._young.get(text)
        if found is None:
            found = self._old.get(text)
            if found is not None:
                self.put(text, found)
        return found

    def put(self, text: str, count: int) -> None:
        """Remember the count of a text."""
        if len(text) > self._max_chars:
            return
        if len(self._young) >= self._entries or self._chars + len(text) > self._max_chars:
            self._old, self._young, self._chars = self._young, {}, 0
        self._young[text] = count
        self._chars += len(text)
