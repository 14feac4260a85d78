"""Records as SQL rows, and filters as SQL conditions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loom.core.clock import from_micros, to_micros
from loom.core.codec import KINDS, TIMES, attributes_from_json, attributes_to_json
from loom.core.filter import And, Eq, Filter, In, Not, Or, Range
from loom.core.record import Episode, Fact, Layer, Origin, Provenance, Record, Scalar, WorkingBlock
from loom.core.scope import Scope
from loom.protocols.memory_store import DeadLetter, HitColumns, Job, Query
from loom.stores._record_table import payload_error
from loom.stores.base import reading, unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEAD = ("id", "kind", "text", "origin", "trusted")
_SHARED = ("recorded_at", "sources")
_EPISODE = (
    "at", "layer", "session_id", "speaker", "importance", "accesses", "accessed_at", "archived_at", "attributes",
)  # fmt: skip
_FACT = (
    "subject", "predicate", "object", "valid_from", "valid_until", "superseded_at", "superseded_by", "confidence",
    "cardinality",
)  # fmt: skip
_BLOCK = ("name", "version", "updated_at")

COLUMNS = (*_HEAD, *_SHARED, *_EPISODE, *_FACT, *_BLOCK)
"""What every record has, what episodes and facts have, then what each kind has alone."""
SELECTED = ", ".join(f"r.{name}" for name in COLUMNS)

JOB_STATES = ("due", "leased", "given_up")
"""What the jobs of all users are counted by."""
JOB = "u.namespace, u.user_id, j.session_id, j.id, j.kind, j.key, j.run_at, j.payload, j.attempts, j.number"
"""The columns of job_from_row(), of `jobs AS j` and `users AS u`."""
# What was never accessed counts as accessed when it came, or every new record would be the first to go.
EVICTION_ORDER = "ORDER BY coalesce(r.accessed_at, r.recorded_at), r.recorded_at, r.id"

_FIELDS = {
    "episode": ("id", "text", *_SHARED, *_EPISODE),
    "fact": ("id", *_SHARED, *_FACT),
    "block": ("text", *_BLOCK),
}
_KIND = COLUMNS.index("kind")
_EPISODE_COLUMNS = len((*_HEAD, *_SHARED, *_EPISODE))
_MAYBE_TEXT = {str, type(None)}
_NO_ATTRIBUTES: Mapping[str, Scalar] = MappingProxyType({})
_SHORT = 24
"""Characters of attributes that are read once for all rows that have them: the number of a turn, and little more."""
_LAYERS = {int(layer): layer for layer in Layer}
_NO_SHARED, _NO_EPISODE, _NO_FACT, _NO_BLOCK = ((None,) * len(names) for names in (_SHARED, _EPISODE, _FACT, _BLOCK))

# The slots of an episode, written to directly: a frozen class would have it otherwise, and by name takes longer.
(
    _set_id, _set_text, _set_provenance, _set_recorded_at, _set_sources, _set_at, _set_layer, _set_session_id,
    _set_speaker, _set_importance, _set_accesses, _set_accessed_at, _set_archived_at, _set_attributes,
) = (
    Episode.__dict__[name].__set__
    for name in ("id", "text", "provenance", *_SHARED, *_EPISODE)
)  # fmt: skip

_to_json = json.JSONEncoder(ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode


def _from_json(text: str) -> Any:
    return _decode(text)[0]


def to_row(record: Record) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    # The text of a fact is made of its parts; kept twice it could disagree.
    text = None if isinstance(record, Fact) else record.text
    head = (record.id, record.kind, text, record.provenance.origin, int(record.provenance.trusted))
    if isinstance(record, WorkingBlock):
        own = (record.name, record.version, to_micros(record.updated_at))
        return (*head, *_NO_SHARED, *_NO_EPISODE, *_NO_FACT, *own)
    head = (*head, to_micros(record.recorded_at), _to_json(record.sources) if record.sources else None)
    if isinstance(record, Episode):
        return (*head, *_episode(record), *_NO_FACT, *_NO_BLOCK)
    return (*head, *_NO_EPISODE, *_fact(record), *_NO_BLOCK)


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row that starts with COLUMNS.

    Raises:
        DamagedData: it is not a row of a record.
    """
    try:
        return _episode_of(row) if row[_KIND] == Episode.kind else _other_of(row)
    except Exception as error:
        raise unreadable(f"record {row[0]!r}", error) from error


def _other_of(row: tuple[Any, ...]) -> Record:
    """A fact or a block."""
    stored: dict[str, Any] = dict(zip(COLUMNS, row, strict=False))
    kind = stored["kind"]
    # What is NULL is left to the default of its field, which is None or empty.
    fields = {name: _in(name, value) for name in _FIELDS[kind] if (value := stored[name]) is not None}
    return KINDS[kind](provenance=_provenance(stored["origin"], stored["trusted"]), **fields)


def _episode_of(row: tuple[Any, ...]) -> Episode:
    """An episode without the checks it passed when it was written: one recall reads hundreds of rows."""
    (
        id, _, text, origin, trusted, recorded_at, sources, at, layer, session_id, speaker, importance, accesses,
        accessed_at, archived_at, attributes,
    ) = row[:_EPISODE_COLUMNS]  # fmt: skip
    if type(id) is not str:  # hits are sorted by id
        raise TypeError(f"the id is {id!r}")
    episode = object.__new__(Episode)
    _set_id(episode, id)
    _set_text(episode, text)
    _set_provenance(episode, _provenance(origin, trusted))
    _set_recorded_at(episode, from_micros(recorded_at))
    _set_sources(episode, () if sources is None else tuple(_from_json(sources)))
    _set_at(episode, from_micros(at))
    _set_layer(episode, _LAYERS[layer])
    _set_session_id(episode, session_id)
    _set_speaker(episode, speaker)
    _set_importance(episode, importance)
    _set_accesses(episode, accesses)
    _set_accessed_at(episode, None if accessed_at is None else from_micros(accessed_at))
    _set_archived_at(episode, None if archived_at is None else from_micros(archived_at))
    _set_attributes(episode, {} if attributes is None else _attributes_of(attributes))
    return episode


def hit_columns(
    rows: Sequence[tuple[Any, ...]], signals: Mapping[str, NDArray[np.float64]], read: Callable[[int], Record]
) -> HitColumns:
    """Rows that start with COLUMNS as the columns of hits; `read` makes the record of a place, and checks its row.

    Raises:
        DamagedData: a row is not one of a record.
    """
    found: Iterable[Sequence[Any]] = islice(zip(*rows, strict=True), _EPISODE_COLUMNS)
    if not rows:
        found = [()] * _EPISODE_COLUMNS
    ids, kinds, stored, origins, _, recorded, sources, times, _, sessions, speakers, _, _, _, _, attributes = found
    others = [place for place, kind in enumerate(kinds) if kind != Episode.kind]
    texts: list[str] = list(stored)
    for place in others:  # the text of a fact is made of its parts
        texts[place] = read(place).text
    is_sound = {*map(type, ids), *map(type, texts)} <= {str} and {*map(type, (*sessions, *speakers))} <= _MAYBE_TEXT
    at, written = times, recorded
    if others:
        turns = sorted({*range(len(rows))}.difference(others))
        at, written = [times[place] for place in turns], [recorded[place] for place in turns]
    are_times = [*map(type, (*at, *written))].count(int) == 2 * len(at)
    if not is_sound or not are_times:
        for place in range(len(rows)):
            read(place)
    return HitColumns(
        ids=ids,
        kinds=kinds,
        texts=texts,
        origins=origins,
        speakers=speakers,
        sessions=sessions,
        times=times,
        recorded=recorded,
        derived=[value is not None for value in sources],
        attributes=[
            _NO_ATTRIBUTES if value is None else _read_attributes(id, value)
            for id, value in zip(ids, attributes, strict=True)
        ],
        signals=signals,
        read=read,
    )


def _nothing(place: int) -> Record:
    raise IndexError(f"there is no hit {place}")


NO_HITS = hit_columns((), {}, _nothing)


def _read_attributes(id: str, value: str) -> Mapping[str, Scalar]:
    try:
        return _shared_attributes(value) if len(value) <= _SHORT else _attributes_of(value)
    except Exception as error:
        raise unreadable(f"record {id!r}", error) from error


@lru_cache(maxsize=1024)
def _shared_attributes(text: str) -> Mapping[str, Scalar]:
    return MappingProxyType(_attributes_of(text))


def _attributes_of(text: str) -> dict[str, Any]:
    found = _from_json(text)
    return attributes_from_json(found) if text.rfind("{") else found  # only a time is an object within


@cache
def _provenance(origin: Origin, trusted: int) -> Provenance:
    return Provenance(origin, trusted=bool(trusted))


def _episode(episode: Episode) -> tuple[Any, ...]:
    return (
        to_micros(episode.at),
        int(episode.layer),
        episode.session_id,
        episode.speaker,
        episode.importance,
        episode.accesses,
        _micros(episode.accessed_at),
        _micros(episode.archived_at),
        _to_json(attributes_to_json(episode.attributes)) if episode.attributes else None,
    )


def _fact(fact: Fact) -> tuple[Any, ...]:
    return (
        fact.subject,
        fact.predicate,
        fact.object,
        _micros(fact.valid_from),
        _micros(fact.valid_until),
        _micros(fact.superseded_at),
        fact.superseded_by,
        fact.confidence,
        fact.cardinality,
    )


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _in(name: str, value: Any) -> Any:
    if name in TIMES:
        return from_micros(value)
    if name == "sources":
        return tuple(_from_json(value))
    return attributes_from_json(_from_json(value)) if name == "attributes" else value


def job_to_row(job: Job) -> tuple[Any, ...]:
    """The session, id, kind, key, time, payload and attempts of a job."""
    try:
        payload = json.dumps(dict(job.payload), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise payload_error(job, error) from error
    return (job.scope.session_id, job.id, job.kind, job.key, to_micros(job.run_at), payload, job.attempts)


def job_from_row(row: tuple[Any, ...], *, attempts: int | None = None) -> Job:
    """The job of a row that starts with JOB."""
    namespace, user_id, session_id, id, kind, key, run_at, payload, stored, *_ = row
    with reading(f"job {id!r}"):
        return Job(
            id=id,
            scope=Scope(namespace, user_id, session_id),
            kind=kind,
            key=key,
            run_at=from_micros(run_at),
            payload=json.loads(payload),
            attempts=stored if attempts is None else attempts,
        )


def letter_from_row(row: tuple[Any, ...]) -> DeadLetter:
    """The dead letter of a row of JOB, the reason and the time."""
    return DeadLetter(job=job_from_row(row), reason=row[-2], at=from_micros(row[-1]))


def excess_of(amount: int, old: int, keep: int | None) -> int:
    """How many live records are too many, when the old ones are archived anyway."""
    return 0 if keep is None else max(0, amount - old - keep)


def to_archive(found: Iterable[tuple[int, str, bool]], excess: int) -> dict[int, str]:
    """Which rows are archived, with their ids: the old ones and so many others, of rows in EVICTION_ORDER."""
    gone: dict[int, str] = {}
    for row, id, is_old in found:
        if is_old or excess > 0:
            gone[row] = id
            excess -= not is_old
    return gone


# Filters as SQL conditions, as far as columns can tell; every value is bound.

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
                # A vague part still lets everything through that fits, so the others may narrow.
                parts = [self._compiled(part) for part in where.filters]
                return self._joined(parts, " AND ", self.true, exact=all(part.exact for part in parts))
            case Or():
                parts = [self._compiled(part) for part in where.filters]
                is_exact = all(part.exact for part in parts)
                return self._joined(parts, " OR ", self.false) if is_exact else self._vague()
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

    def _joined(self, parts: list[Condition], word: str, nothing: str, *, exact: bool = True) -> Condition:
        values = tuple(value for part in parts for value in part.values)
        return Condition(f"({word.join(part.sql for part in parts) or nothing})", values, exact)

    def _takes(self, value: Scalar) -> bool:
        if self.largest_integer is None or not isinstance(value, int):
            return True
        return abs(value) <= self.largest_integer


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
