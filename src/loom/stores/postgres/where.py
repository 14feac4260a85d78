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
_MOST_VALUES = 10_000
"""Postgres takes 65,535 values in a statement; a condition with many is left to the filter itself."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is true or false, never NULL.

    If it is not `exact`, it lets too much through and the filter itself must look again.
    """

    sql: str = "true"
    values: tuple[Any, ...] = ()
    exact: bool = True


_VAGUE = Condition(exact=False)
_NEVER = Condition("false")


def condition(where: Filter | None) -> Condition:
    """The filter as a condition on the columns of `records AS r`."""
    made = Condition() if where is None else _compiled(where)
    return made if len(made.values) <= _MOST_VALUES else _VAGUE


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
            return Condition(f"(NOT {inner.sql})", inner.values) if inner.exact else _VAGUE


def _in(name: str, wanted: tuple[Scalar, ...]) -> Condition:
    if not _has_column(name):
        return _VAGUE
    bound = tuple(_bound(value) for value in wanted if value is not None and _fits(name, value))
    parts = [f"r.{name} IS NULL"] if None in wanted else []
    if bound:
        parts.append(f"(r.{name} IN ({', '.join(['%s'] * len(bound))})) IS TRUE")
    return Condition(f"({' OR '.join(parts) or 'false'})", bound)


def _range(where: Range) -> Condition:
    if not _has_column(where.field):
        return _VAGUE
    ends = [(sign, end) for sign, end in ((">=", where.low), ("<", where.high)) if end is not None]
    if not all(_fits(where.field, end) for _, end in ends):
        return _NEVER
    parts = " AND ".join(f"r.{where.field} {sign} %s" for sign, _ in ends)
    return Condition(f"(({parts}) IS TRUE)", tuple(_bound(end) for _, end in ends))


def _all(parts: list[Condition]) -> Condition:
    # A vague part still lets everything through that fits, so the others may narrow.
    sql = f"({' AND '.join(part.sql for part in parts) or 'true'})"
    return Condition(sql, tuple(value for part in parts for value in part.values), all(part.exact for part in parts))


def _any(parts: list[Condition]) -> Condition:
    if not all(part.exact for part in parts):
        return _VAGUE
    values = tuple(value for part in parts for value in part.values)
    return Condition(f"({' OR '.join(part.sql for part in parts) or 'false'})", values)


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
    """The value as Postgres compares it."""
    if isinstance(value, datetime):
        return to_micros(value)
    return int(value) if isinstance(value, int) else value  # layers and booleans are numbers here
