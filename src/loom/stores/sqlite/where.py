"""Filters as SQL conditions, as far as columns can tell; every value is bound."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Scalar
from loom.stores.sqlite.codec import TIMES, to_micros

_TEXTS = frozenset(
    ("id", "kind", "session_id", "speaker", "subject", "predicate", "object", "superseded_by", "cardinality", "name")
) | {"origin"}
_NUMBERS = frozenset(("layer", "importance", "accesses", "confidence", "version"))
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is 0 or 1, never NULL. If not `exact` it lets too much through, and the filter must look again."""

    sql: str = "1"
    values: tuple[Any, ...] = ()
    exact: bool = True


_VAGUE = Condition(exact=False)
_NEVER = Condition("0")


def condition(where: Filter | None) -> Condition:
    """The filter as a condition on the columns of `records AS r`."""
    match where:
        case None:
            return Condition()
        case Eq():
            return _in(where.field, (where.value,))
        case In():
            return _in(where.field, where.values)
        case Range():
            return _range(where)
        case And():
            return _all([condition(part) for part in where.filters])
        case Or():
            return _any([condition(part) for part in where.filters])
        case Not():
            inner = condition(where.filter)
            return Condition(f"NOT {inner.sql}", inner.values) if inner.exact else _VAGUE


def _in(name: str, wanted: tuple[Scalar, ...]) -> Condition:
    if not _has_column(name):
        return _VAGUE
    parts = [_same(name, value) for value in wanted]
    return _any(parts)


def _same(name: str, value: Scalar) -> Condition:
    if value is None:
        return Condition(f"(r.{name} IS NULL)")
    if not _fits(name, value):
        return _NEVER
    bound = _bound(value)
    return _VAGUE if bound is None else Condition(f"(r.{name} IS ?)", (bound,))


def _range(where: Range) -> Condition:
    if not _has_column(where.field):
        return _VAGUE
    parts: list[str] = []
    values: list[Any] = []
    for sign, end in ((">=", where.low), ("<", where.high)):
        if end is None:
            continue
        if not _fits(where.field, end) or where.field == "trusted":
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
