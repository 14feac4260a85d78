"""Doors, late modules, and ports.

A door has names that live in other modules and load at first use. A late module is imported at its first use. A port is
filled by the composition root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from loom.core.checks import did_you_mean
from loom.errors import UsageError

_T = TypeVar("_T")


def door(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module, given the home of each of its names."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: sorted(homes)


def missing_attribute(owner: object, name: str, words: Mapping[str, str]) -> AttributeError:
    """The error for a name that an object does not have: with Loom's word for what others call so, or one close to it.

    A class raises it in `__getattr__`, which type checkers do not see: to them every name would be right.
    """
    kind = type(owner).__name__
    hint = f"; in Loom it is {words[name]}" if name in words else ""
    public = (known for known in dir(type(owner)) if not known.startswith("_"))
    return AttributeError(f"{kind!r} object has no attribute {name!r}{hint or did_you_mean(name, public)}")


class Late:
    """A large module of others, imported when one of its names is first used: numpy alone takes as long as all of Loom.

    A type checker sees the plain import:

        if TYPE_CHECKING:
            import numpy as np
        else:
            np = Late("numpy")
    """

    def __init__(self, module: str) -> None:
        """Name the module; nothing is imported yet."""
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)  # the next use finds it here
        return value


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
