"""Numbers in place of ids, so that what is known of records can lie in arrays."""

from __future__ import annotations


class Numbering:
    """A number for each id, from 0 on. The number of an id that is gone is given to another one."""

    __slots__ = ("_free", "_numbers", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        """The id of each number; empty where a number is free."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        """How many numbers there are, free ones included."""
        return len(self.ids)

    def find(self, id: str) -> int | None:
        """The number of an id, None where it has none."""
        return self._numbers.get(id)

    def give(self, id: str) -> int:
        """The number of an id, a new one where it has none."""
        number = self._numbers.get(id)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
            self.ids[number] = id
        else:
            number = len(self.ids)
            self.ids.append(id)
        self._numbers[id] = number
        return number

    def drop(self, id: str) -> None:
        """Leave nothing of an id."""
        number = self._numbers.pop(id, None)
        if number is not None:
            self.ids[number] = ""
            self._free.append(number)
