"""Filters as data: conditions over named fields that every store can translate, and what they mean.

A field is one of FIELDS, or `meta.NAME` for an attribute of a record. What they mean:
- a field that a record does not have is None;
- a field with several values (`sources`) fits when one of them does;
- values of different types never fit: True is not 1, and text is not a number; 1 and 1.0 are the same;
- Range is half-open: from `low`, up to but not including `high`;
- And() of nothing fits everything, Or() of nothing fits nothing.

Where a filter is taken, a mapping is taken too: as_filter() says what it means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, cast

from loom.core.record import Scalar, checked_scalar
from loom.errors import UsageError

ATTRIBUTE = "meta."
_SHARED = ("id", "kind", "text", "sources", "recorded_at")
_EPISODE = ("at", "layer", "session_id", "speaker", "importance", "accesses", "accessed_at", "archived_at")
_FACT = ("subject", "predicate", "object", "valid_from", "valid_until", "superseded_at", "superseded_by")
_REST = ("confidence", "cardinality", "name", "version", "updated_at", "document_id", "source")
_PROVENANCE = ("origin", "trusted")
FIELDS: tuple[str, ...] = _SHARED + _EPISODE + _FACT + _REST + _PROVENANCE
"""The fields that can be asked about; no other name ever reaches a record or a query."""


@dataclass(frozen=True, slots=True)
class Eq:
    """The field has this value."""

    field: str
    value: Scalar

    def __post_init__(self) -> None:
        _check_field(self.field)
        object.__setattr__(self, "value", checked_scalar(self.value, f"the value for {self.field}"))

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return any(_same(self.value, value) for value in _values(record, self.field))


@dataclass(frozen=True, slots=True)
class In:
    """The field has one of these values."""

    field: str
    values: tuple[Scalar, ...]
    _wanted: frozenset[tuple[type, Scalar]] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_field(self.field)
        if isinstance(self.values, str):
            raise UsageError(f"In({self.field!r}, {self.values!r}) was given one text; give a tuple of values")
        values = tuple(checked_scalar(value, f"a value for {self.field}") for value in self.values)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "_wanted", frozenset((_sort(value), value) for value in values))

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return any((_sort(value), value) in self._wanted for value in _values(record, self.field))


@dataclass(frozen=True, slots=True)
class Range:
    """The field lies from `low` up to, and not including, `high`; None leaves an end open."""

    field: str
    low: str | float | datetime | None = None
    high: str | float | datetime | None = None

    def __post_init__(self) -> None:
        _check_field(self.field)
        for end in ("low", "high"):
            value = checked_scalar(getattr(self, end), f"{end} of the range of {self.field}")
            if isinstance(value, bool):
                raise UsageError(f"{end} of the range of {self.field} is {value}; a range needs an order")
            object.__setattr__(self, end, value)
        if self.low is None and self.high is None:
            raise UsageError(f"the range of {self.field} has no end; give low, high or both")
        if self.low is not None and self.high is not None and _sort(self.low) is not _sort(self.high):
            raise UsageError(f"the range of {self.field} runs from {self.low!r} to {self.high!r}; use one type")

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return any(self._holds(value) for value in _values(record, self.field))

    def _holds(self, value: Scalar) -> bool:
        ends = (self.low, self.high)
        if any(end is not None and _sort(end) is not _sort(value) for end in ends):
            return False
        low, high, found = cast("tuple[float, float, float]", (*ends, value))  # one type, just checked
        return (self.low is None or low <= found) and (self.high is None or found < high)


@dataclass(frozen=True, slots=True)
class _Several:
    filters: tuple[Filter, ...]

    def __init__(self, *filters: Filter) -> None:
        object.__setattr__(self, "filters", _checked(filters))


class And(_Several):
    """All of these fit."""

    __slots__ = ()

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return all(f.matches(record) for f in self.filters)


class Or(_Several):
    """One of these fits."""

    __slots__ = ()

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return any(f.matches(record) for f in self.filters)


@dataclass(frozen=True, slots=True)
class Not:
    """This does not fit."""

    filter: Filter

    def __post_init__(self) -> None:
        _checked((self.filter,))

    def matches(self, record: object) -> bool:
        """Whether `record` fits."""
        return not self.filter.matches(record)


Filter: TypeAlias = Eq | In | Range | And | Or | Not

Where: TypeAlias = Filter | Mapping[str, Scalar | Sequence[Scalar] | AbstractSet[Scalar]]
"""A filter, or a mapping that as_filter() makes one of."""


def as_filter(where: Where | None) -> Filter | None:
    """A filter as it is; of a mapping, the filter that all of its values fit.

    A name is one of FIELDS or `meta.NAME`; any other name is that of an attribute. A list, a tuple or a set means one
    of its values. `{"topic": "drinks", "layer": [1, 2]}` is `And(Eq("meta.topic", "drinks"), In("layer", (1, 2)))`.
    """
    if where is None:
        return None
    if isinstance(where, Mapping):
        parts = [_condition(name, value) for name, value in where.items()]
        return parts[0] if len(parts) == 1 else And(*parts)
    (checked,) = _checked((where,))
    return checked


def _condition(name: str, value: Scalar | Sequence[Scalar] | AbstractSet[Scalar]) -> Eq | In:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name!r} is not the name of a field; give text")
    if isinstance(value, Mapping):
        raise UsageError(f"the value for {name!r} is a mapping; give a value or a list, or build Range, Or and Not")
    field = name if name in FIELDS or name.startswith(ATTRIBUTE) else f"{ATTRIBUTE}{name}"
    if isinstance(value, list | tuple | AbstractSet):
        return In(field, tuple(cast("Sequence[Scalar]", value)))
    return Eq(field, cast("Scalar", value))


def _check_field(name: str) -> None:
    if name not in FIELDS and not (name.startswith(ATTRIBUTE) and len(name) > len(ATTRIBUTE)):
        raise UsageError(
            f"there is no field {name!r}; an attribute is spelled 'meta.NAME', the fields are {', '.join(FIELDS)}"
        )


def _checked(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    for f in filters:
        if not isinstance(f, Eq | In | Range | And | Or | Not):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{f!r} is not a filter; build it from Eq, In, Range, And, Or and Not")
    return filters


def _values(record: object, name: str) -> tuple[Scalar, ...]:
    value: Scalar | tuple[Scalar, ...]
    if name.startswith(ATTRIBUTE):
        value = getattr(record, "attributes", {}).get(name[len(ATTRIBUTE) :])
    elif name in _PROVENANCE:
        value = getattr(getattr(record, "provenance", None), name, None)
    else:
        value = getattr(record, name, None)
    if isinstance(value, tuple):
        return value or (None,)
    return (value,)


def _sort(value: Scalar) -> type:
    """The kind of value that it can be compared with."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return type(value)


def _same(one: Scalar, other: Scalar) -> bool:
    return _sort(one) is _sort(other) and one == other
