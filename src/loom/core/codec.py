"""Records as JSON objects and back: what export writes and import reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from loom.core.record import Episode, Fact, Layer, Provenance, Record, Scalar, WorkingBlock
from loom.errors import UsageError

FORMAT = 1
KINDS: dict[str, type[Episode | Fact | WorkingBlock]] = {"episode": Episode, "fact": Fact, "block": WorkingBlock}
TIMES = frozenset(
    {
        *("at", "recorded_at", "accessed_at", "archived_at", "valid_from", "valid_until"),
        *("superseded_at", "updated_at"),
    }
)
"""The fields of records that are times."""


def record_to_dict(record: Record) -> dict[str, Any]:
    """A record as a JSON object; fields that are None are left out."""
    found = {f.name: _out(getattr(record, f.name)) for f in fields(record) if getattr(record, f.name) is not None}
    return {"kind": record.kind, **found}


def record_from_dict(data: Mapping[str, Any]) -> Record:
    """The record that record_to_dict() wrote.

    Raises:
        UsageError: this is not a record; the message says what is wrong.
    """
    made = KINDS.get(str(data.get("kind")))
    if made is None:
        raise UsageError(f"kind={data.get('kind')!r} is not a kind of record; use one of {', '.join(KINDS)}")
    known = {f.name for f in fields(made)}
    unknown = set(data) - known - {"kind"}
    if unknown:
        raise UsageError(f"a {data['kind']} has no field {', '.join(sorted(unknown))}; it may be of a newer format")
    try:
        return made(**{name: _in(name, value) for name, value in data.items() if name != "kind"})
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(f"this is not a valid {data['kind']}: {error}") from error


def attributes_to_json(attributes: Mapping[str, Scalar]) -> dict[str, Any]:
    """Attributes as a JSON object; a time is marked, so that text that looks like one stays text."""
    return {k: {"at": v.isoformat()} if isinstance(v, datetime) else v for k, v in attributes.items()}


def attributes_from_json(data: Mapping[str, Any]) -> dict[str, Scalar]:
    """The attributes that attributes_to_json() wrote."""
    return {k: datetime.fromisoformat(str(v["at"])) if isinstance(v, dict) else v for k, v in data.items()}  # pyright: ignore[reportUnknownArgumentType]


def _out(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Provenance):
        return {"origin": value.origin, "trusted": value.trusted}
    if isinstance(value, Layer):
        return int(value)
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, Mapping):
        return attributes_to_json(value)  # pyright: ignore[reportUnknownArgumentType]
    return value


_KINDS_OF_VALUE: dict[str, type] = {"sources": list, "attributes": dict, "provenance": dict} | dict.fromkeys(
    ("layer", "accesses", "version"), int
)


def _in(name: str, value: Any) -> Any:
    wanted = _KINDS_OF_VALUE.get(name)
    if wanted is not None and type(value) is not wanted:
        raise TypeError(f"{name} is a {type(value).__name__}, not a {wanted.__name__}")
    if name in TIMES:
        return datetime.fromisoformat(value)
    if name == "provenance":
        if not isinstance(value.get("trusted", False), bool):
            raise TypeError("trusted is neither true nor false")
        return Provenance(**value)
    if name == "sources":
        return tuple(value)
    if name == "attributes":
        return attributes_from_json(value)
    return value
