"""Filters as SQL conditions, as far as columns can tell; every value is bound."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loom.core.codec import TIMES
from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Scalar
from loom.stores.record_rows import to_micros

_TEXTS = frozenset(
    ("id", "kind", "session_id", "speaker", "subject", "predicate", "object", "superseded_by", "cardinality", "name")
) | {"origin"}
_NUMBERS = frozenset(("layer", "importance", "accesses", "confidence", "version"))
_LARGEST = 2**63 - 1
_LONGEST_SQL = 6_000
"""SQLite refuses expressions that are too deep; a longer condition is left to the filter itself."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is 0 or 1, never NULL.

    If it is not `exact`, it lets too much through and the filter itself must look again.
    """

    sql: str = "1"
    values: tuple[Any, ...] = ()
    exact: bool = True


_VAGUE = Condition(exact=False)
_NEVER = Condition("0")


def condition(where: Filter | None) -> Condition:
    """The filter as a condition on the columns of `records AS r`."""
    if where is None:
        return Condition()
    made = _compiled(where)
    return made if len(made.sql) <= _LONGEST_SQL else _VAGUE


def _compiled(where: Filter) -> Condition:
    match where:
        case Eq():
            return _in(where.field, (where.value,))
        case In():
            return _in(where.field, where.values)
        case Range():
            return _range(where)
        case And():
            return _all([_compiled(part) for part in where.filters])
        case Or():
            return _any([_compiled(part) for part in where.filters])
        case Not():
            inner = _compiled(where.filter)
            return Condition(f"NOT {inner.sql}", inner.values) if inner.exact else _VAGUE


def _in(name: str, wanted: tuple[Scalar, ...]) -> Condition:
    if not _has_column(name):
        return _VAGUE
    bound = [_bound(value) for value in wanted if value is not None and _fits(name, value)]
    if None in bound:
        return _VAGUE
    parts = ["0"]
    if None in wanted:
        parts.append(f"r.{name} IS NULL")
    if bound:
        parts.append(f"(r.{name} IN ({', '.join('?' * len(bound))})) IS TRUE")
    return Condition(f"({' OR '.join(parts)})", tuple(bound))


def _range(where: Range) -> Condition:
    if not _has_column(where.field):
        return _VAGUE
    parts: list[str] = []
    values: list[Any] = []
    for sign, end in ((">=", where.low), ("<", where.high)):
        if end is None:
            continue
        if not _fits(where.field, end):
            return _NEVER
        bound = _bound(end)
        if bound is None:
            return _VAGUE
        parts.append(f"r.{where.field} {sign} ?")
        values.append(bound)
    return Condition(f"(({' AND '.join(parts)}) IS TRUE)", tuple(values))


def _all(parts: list[Condition]) -> Condition:
    # A vague part still lets everything through that fits, so the others may narrow.
    return Condition(
        f"({' AND '.join(part.sql for part in parts) or '1'})",
        tuple(value for part in parts for value in part.values),
        all(part.exact for part in parts),
    )


def _any(parts: list[Condition]) -> Condition:
    if not all(part.exact for part in parts):
        return _VAGUE
    values = tuple(value for part in parts for value in part.values)
    return Condition(f"({' OR '.join(part.sql for part in parts) or '0'})", values)


def _has_column(name: str) -> bool:
    return name in TIMES or name in _TEXTS or name in _NUMBERS or name == "trusted"


def _fits(name: str, value: Scalar) -> bool:
    """Whether the column can hold a value of this type: True is not 1, and text is not a number."""
    if isinstance(value, bool):
        return name == "trusted"
    if isinstance(value, int | float):
        return name in _NUMBERS
    if isinstance(value, datetime):
        return name in TIMES
    return name in _TEXTS


def _bound(value: Scalar) -> Any:
    """The value as SQLite compares it; None where it cannot."""
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, bool):
        return int(value)
    return None if isinstance(value, int) and abs(value) > _LARGEST else value
