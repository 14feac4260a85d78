"""The registry of stores, models and embedders: the built-in ones, and those that installed packages add.

A package adds one with an entry point in the group `loom.stores` (the scheme of a URL), `loom.models` (a provider) or
`loom.embedders` (a name). A built-in name cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from loom.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

_T = TypeVar("_T")


class Registry(Mapping[str, _T]):
    """The openers of one group by name. Entry points are read only for a name that is not built in."""

    def __init__(self, group: str, built_in: Mapping[str, _T]) -> None:
        self.group = group
        self.built_in = dict(built_in)

    def __getitem__(self, name: str) -> _T:
        if name in self.built_in:
            return self.built_in[name]
        found = self._points.select(name=name)
        if not found:
            raise KeyError(name)
        if len(found) > 1:
            packages = ", ".join(sorted(map(_package, found)))
            raise UsageError(f"several packages register {name!r} in {self.group}: {packages}; uninstall all but one")
        (point,) = found
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"the package {_package(point)} registers {name!r} as {point.value}, which cannot be loaded: {error}"
            ) from error

    def __iter__(self) -> Iterator[str]:
        yield from self.built_in
        yield from self.added

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added

    @property
    def added(self) -> tuple[str, ...]:
        """The names that installed packages add."""
        return tuple(sorted(self._points.names - self.built_in.keys()))

    @property
    def _points(self) -> EntryPoints:
        from importlib.metadata import entry_points  # noqa: PLC0415  (slow to import, and rarely needed)

        return entry_points(group=self.group)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value
