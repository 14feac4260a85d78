"""Filters as SQL conditions, as far as columns can tell; every value is bound."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loom.core.codec import TIMES
from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Scalar
from loom.protocols.memory_store import Query
from loom.stores.record_rows import to_micros

_TEXTS = frozenset(
    ("id", "kind", "session_id", "speaker", "subject", "predicate", "object", "superseded_by", "cardinality", "name")
) | {"origin"}
_EVERY_RECORD_HAS = frozenset(("id", "kind"))
_NUMBERS = frozenset(("layer", "importance", "accesses", "confidence", "version"))


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that is true or false, never NULL.

    If it is not `exact`, it lets too much through and the filter itself must look again.
    """

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database spells a condition on the columns of `records AS r`, and what it cannot take.

    `mark` stands for a value. A condition of more than `most_values` values or `longest_sql` characters is left to the
    filter itself, as is an integer beyond `largest_integer`; None means no limit.
    """

    true: str
    false: str
    mark: str
    most_values: int | None = None
    longest_sql: int | None = None
    largest_integer: int | None = None

    def condition(self, where: Filter | None) -> Condition:
        """The filter as a condition."""
        if where is None:
            return Condition(self.true)
        made = self._compiled(where)
        too_many = self.most_values is not None and len(made.values) > self.most_values
        too_long = self.longest_sql is not None and len(made.sql) > self.longest_sql
        return self._vague() if too_many or too_long else made

    def shown(self, seen: Condition, query: Query, now: datetime) -> Condition:
        """The condition for the records that a query may return, but for its filter; `seen` is that of its scope."""
        parts, values = [seen.sql], seen.values
        if not query.archived:
            parts.append("r.archived_at IS NULL")
        if not query.history:
            current = (
                "(r.kind <> 'fact' OR ((r.valid_from IS NULL OR r.valid_from <= ?) "
                "AND (r.valid_until IS NULL OR r.valid_until > ?) AND r.recorded_at <= ? "
                "AND (r.superseded_at IS NULL OR r.superseded_at > ?)))"
            )
            parts.append(current.replace("?", self.mark))
            at, known_at = to_micros(query.at or now), to_micros(query.known_at or now)
            values = (*values, at, at, known_at, known_at)
        return Condition(" AND ".join(parts), values)

    def _vague(self) -> Condition:
        return Condition(self.true, exact=False)

    def _compiled(self, where: Filter) -> Condition:
        match where:
            case Eq():
                return self._in(where.field, (where.value,))
            case In():
                return self._in(where.field, where.values)
            case Range():
                return self._range(where)
            case And():
                return self._all([self._compiled(part) for part in where.filters])
            case Or():
                return self._any([self._compiled(part) for part in where.filters])
            case Not():
                inner = self._compiled(where.filter)
                return Condition(f"(NOT {inner.sql})", inner.values) if inner.exact else self._vague()

    def _in(self, name: str, wanted: tuple[Scalar, ...]) -> Condition:
        values = [value for value in wanted if value is not None and _fits(name, value)]
        if not _has_column(name) or not all(self._takes(value) for value in values):
            return self._vague()
        parts = [f"r.{name} IS NULL"] if None in wanted else []
        if values:
            found = f"(r.{name} IN ({', '.join([self.mark] * len(values))}))"
            # As it is, an index of the table can answer it; a column that may be NULL needs more than that.
            parts.append(found if name in _EVERY_RECORD_HAS else f"{found} IS TRUE")
        return Condition(f"({' OR '.join(parts) or self.false})", tuple(_bound(value) for value in values))

    def _range(self, where: Range) -> Condition:
        if not _has_column(where.field):
            return self._vague()
        ends = [(sign, end) for sign, end in ((">=", where.low), ("<", where.high)) if end is not None]
        if not all(_fits(where.field, end) for _, end in ends):
            return Condition(self.false)
        if not all(self._takes(end) for _, end in ends):
            return self._vague()
        parts = " AND ".join(f"r.{where.field} {sign} {self.mark}" for sign, _ in ends)
        return Condition(f"(({parts}) IS TRUE)", tuple(_bound(end) for _, end in ends))

    def _all(self, parts: list[Condition]) -> Condition:
        # A vague part still lets everything through that fits, so the others may narrow.
        sql = f"({' AND '.join(part.sql for part in parts) or self.true})"
        return Condition(sql, _values(parts), all(part.exact for part in parts))

    def _any(self, parts: list[Condition]) -> Condition:
        if not all(part.exact for part in parts):
            return self._vague()
        return Condition(f"({' OR '.join(part.sql for part in parts) or self.false})", _values(parts))

    def _takes(self, value: Scalar) -> bool:
        if self.largest_integer is None or not isinstance(value, int):
            return True
        return abs(value) <= self.largest_integer


def _values(parts: list[Condition]) -> tuple[Any, ...]:
    return tuple(value for part in parts for value in part.values)


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
    """The value as columns hold it: times are microseconds, layers and booleans are numbers."""
    if isinstance(value, datetime):
        return to_micros(value)
    return int(value) if isinstance(value, int) else value
