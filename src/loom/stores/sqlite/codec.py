"""Records as rows and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from loom.core.record import Episode, Fact, Layer, Provenance, Record, Scalar, WorkingBlock

COLUMNS: tuple[str, ...] = (
    "id", "kind", "text", "origin", "trusted", "at", "recorded_at", "layer", "session_id", "speaker", "importance",
    "accesses", "accessed_at", "archived_at", "sources", "attributes", "subject", "predicate", "object",
    "valid_from", "valid_until", "superseded_at", "superseded_by", "confidence", "cardinality", "name", "version",
    "updated_at",
)  # fmt: skip
SELECTED = ", ".join(f"r.{name}" for name in COLUMNS)
TIMES = frozenset(
    ("at", "recorded_at", "accessed_at", "archived_at", "valid_from", "valid_until", "superseded_at", "updated_at")
)
_EPISODE = COLUMNS[5:16]
_FACT = ("recorded_at", "sources", *COLUMNS[16:25])

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(at: datetime) -> int:
    """A time as whole microseconds, exact in both directions."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """The time of to_micros()."""
    return _EPOCH + timedelta(microseconds=value)


def to_row(record: Record) -> tuple[Any, ...]:
    """The values of COLUMNS."""
    values: dict[str, Any] = {
        "id": record.id,
        "kind": record.kind,
        "origin": record.provenance.origin,
        "trusted": int(record.provenance.trusted),
        # The text of a fact is made of its parts; kept twice it could disagree.
        "text": None if isinstance(record, Fact) else record.text,
    }
    for name in COLUMNS:
        if name not in values:
            values[name] = _out(getattr(record, name, None))
    return tuple(values[name] for name in COLUMNS)


def from_row(row: tuple[Any, ...]) -> Record:
    """The record of a row that starts with COLUMNS."""
    values = dict(zip(COLUMNS, row, strict=False))
    provenance = Provenance(values["origin"], trusted=bool(values["trusted"]))
    if values["kind"] == "episode":
        fields = {name: _in(name, values[name]) for name in _EPISODE}
        return Episode(id=values["id"], text=values["text"], provenance=provenance, **fields)
    if values["kind"] == "fact":
        fields = {name: _in(name, values[name]) for name in _FACT}
        return Fact(id=values["id"], provenance=provenance, **fields)
    return WorkingBlock(
        name=values["name"],
        text=values["text"],
        updated_at=from_micros(values["updated_at"]),
        provenance=provenance,
        version=values["version"],
    )


def _out(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return _attributes_out(value)  # pyright: ignore[reportUnknownArgumentType]
    return int(value) if isinstance(value, Layer) else value


def _attributes_out(attributes: Mapping[str, Scalar]) -> str:
    tagged = {k: {"at": to_micros(v)} if isinstance(v, datetime) else v for k, v in attributes.items()}
    return json.dumps(tagged, ensure_ascii=False)


def _in(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in TIMES:
        return from_micros(value)
    if name == "sources":
        return tuple(json.loads(value))
    if name == "attributes":
        found: dict[str, Any] = json.loads(value)
        return {k: from_micros(int(v["at"])) if isinstance(v, dict) else v for k, v in found.items()}  # pyright: ignore[reportUnknownArgumentType]
    return value
