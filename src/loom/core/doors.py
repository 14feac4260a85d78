"""Doors, whose names live in other modules and load at first use; and ports, which the composition root fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from loom.errors import UsageError

_T = TypeVar("_T")


def door(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module, given the home of each of its names."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: sorted(homes)


class Port(Generic[_T]):
    """Something that a layer needs from the composition root, which imports that layer and not the other way round."""

    def __init__(self, what: str) -> None:
        """Make an empty port; `what` is what errors call it."""
        self._what = what
        self._value: _T | None = None

    def fill(self, value: _T) -> None:
        """Give what is needed; `loom.engine.open` does."""
        self._value = value

    def get(self) -> _T:
        """What was given."""
        if self._value is None:
            raise UsageError(f"{self._what} is missing; import the class from `loom`, or import loom.engine.open")
        return self._value
