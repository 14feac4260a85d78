"""Records, messages and checkpoints as JSON values and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar, cast

from loom.core.checks import as_utc, check_id
from loom.core.log import (
    FORMAT_VERSION,
    Checkpoint,
    Compaction,
    LogEntry,
    LoggedMessage,
    Recorded,
    Replacement,
    recorded_again,
)
from loom.core.message import JSON, PARTS, Message, Part, TextPart, ToolResultPart, Usage
from loom.core.record import Episode, Fact, Layer, Provenance, Record, Scalar, WorkingBlock
from loom.errors import FormatTooNew, UsageError

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


# Messages, log entries and checkpoints as JSON values and back: what stores keep and export writes.
#
# The names of fields and types are a format that files in the world are written in. A field may be added; none is
# renamed. Reading is strict: what is unknown, missing or of another type is refused, never guessed.

_T = TypeVar("_T")
Data: TypeAlias = dict[str, JSON]

_NAMES = {made: name for name, made in PARTS.items()}
_FIELDS = {name: tuple(f.name for f in fields(made)) for name, made in PARTS.items()}
_ANY_TYPE = frozenset({"input"})
_LOGGED = frozenset({"type", "id", "at", "role", "parts"})
_RECORDED = frozenset({"type", "id", "at", "kind", "body", "base64", "json", "bytes"})
"""`json` and `bytes` are where a store has a body; `body` and `base64` the body itself."""
_STORED, _STORED_BODY = 5, frozenset({"json", "bytes", "body"})
"""How many fields a recorded entry has in a store, and one of them which says what or where its body is."""
_MESSAGE = frozenset({"role", "parts"})
_TYPES: dict[str, type] = {"content": list, "is_error": bool, "body": dict}
"""The JSON type of a part's field; all others are text."""
_USAGE: dict[str, type] = {f.name: int for f in fields(Usage)}
_COMPACTION: dict[str, type] = {
    "id": str, "at": datetime, "strategy": str, "replacements": list, "tokens_before": int, "tokens_after": int,
}  # fmt: skip
_CHECKPOINT: dict[str, type] = {
    "format_version": int, "id": str, "session_id": str, "at": datetime, "position": int, "turn": int,
}  # fmt: skip
_CHECKPOINT_MORE: dict[str, type] = {
    "parent": str, "compactions": tuple, "pins": tuple, "usage": dict, "unfinished": bool, "attributes": dict,
}  # fmt: skip
"""The fields that are left out where they say nothing."""


_AT_A_TIME = 64
"""Values that are read as one document: with more, their bytes leave the processor's cache."""


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_bytes(value: JSON) -> bytes:
    """A JSON value in the bytes that stores keep: short, and every Python text comes back, half surrogates too."""
    return _encoded(value).encode("utf-8", "surrogatepass")


def from_bytes(data: bytes) -> JSON:
    """The value of to_bytes()."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def all_from_bytes(pieces: Sequence[bytes]) -> list[JSON]:
    """The values of many to_bytes(), some at a time read as one document: to begin and end one costs more than it."""
    values: list[JSON] = []
    for start in range(0, len(pieces), _AT_A_TIME):
        some = pieces[start : start + _AT_A_TIME]
        found: list[JSON] = []
        with suppress(ValueError):
            found = from_bytes(b"[%b]" % b",".join(some))
        values += found if len(found) == len(some) else [from_bytes(piece) for piece in some]  # says what is wrong
    return values


def part_to_dict(part: Part) -> Data:
    """A part as a JSON object; fields that were not given are left out."""
    kind = _NAMES[type(part)]
    found: Data = {"type": kind}
    for name in _FIELDS[kind]:
        value = getattr(part, name)
        if isinstance(part, ToolResultPart) and name == "content":
            value = [part_to_dict(inner) for inner in part.content]
        if value is not None or name in _ANY_TYPE:
            found[name] = value
    return found


def part_from_dict(data: JSON) -> Part:
    """The part of part_to_dict(); raises UsageError where this is none."""
    given: Any = data
    if type(given) is dict and len(given) == 2 and given.get("type") == "text" and type(given.get("text")) is str:  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return TextPart(given["text"])  # pyright: ignore[reportUnknownArgumentType]  (as most are; others go on)
    kind = _field(data, "type", str, "a part")
    if kind not in PARTS:
        raise UsageError(f"type={kind!r} is not a kind of part; use one of {', '.join(PARTS)}")
    what = f"a part of type {kind}"
    _check_names(data, ("type", *_FIELDS[kind]), what)
    values = {name: _part_field(data, name, what) for name in _FIELDS[kind] if name in data}
    if "content" in values:
        values["content"] = tuple(part_from_dict(inner) for inner in values["content"])
    return _made(lambda: PARTS[kind](**values), what)


def message_to_dict(message: Message, put: Callable[[Part], JSON] = part_to_dict) -> Data:
    """A message as a JSON object; `put` encodes a part, as a reference for example."""
    return {"role": message.role, "parts": [put(part) for part in message.parts]}


def message_from_dict(data: JSON, get: Callable[[JSON], Part] = part_from_dict) -> Message:
    """The message of message_to_dict(); `get` decodes a part."""
    _check_names(data, _MESSAGE, "a message")
    return _message(data, get)


def _message(data: JSON, get: Callable[[JSON], Part]) -> Message:
    what = "a message"
    role, parts = _field(data, "role", str, what), _list(data, "parts", what)
    try:
        return Message(role, tuple(map(get, parts)))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError) as error:
        raise _no(what, error) from error


def body_to_dict(body: JSON | bytes) -> Data:
    """The body of a recorded entry as a field of its JSON object."""
    return {"base64": b64encode(body).decode()} if isinstance(body, bytes) else {"body": body}


def body_from_dict(data: Mapping[str, JSON]) -> JSON | bytes:
    """The body of body_to_dict(); raises UsageError where there is none, or two."""
    if ("body" in data) == ("base64" in data):
        raise UsageError("a recorded entry has a body or base64, and never both")
    if "body" in data:
        return data["body"]
    try:
        return b64decode(_field(data, "base64", str, "a recorded entry"), validate=True)
    except ValueError as error:
        raise _no("a body in base64", error) from error


def entry_to_dict(
    entry: LogEntry,
    put: Callable[[Part], JSON] = part_to_dict,
    put_body: Callable[[JSON | bytes], Data] = body_to_dict,
) -> Data:
    """A log entry as a JSON object; `put` encodes a part, `put_body` the body of a recorded entry."""
    found: Data = {"id": entry.id, "at": entry.at.isoformat()}
    if isinstance(entry, LoggedMessage):
        return {"type": "message", **found, **message_to_dict(entry.message, put)}
    if isinstance(entry, Recorded):
        return {"type": "recorded", **found, "kind": entry.kind, **put_body(entry.body)}
    return {
        "type": "compaction",
        **found,
        "strategy": entry.strategy,
        "replacements": [_replacement_to_dict(one, put) for one in entry.replacements],
        "tokens_before": entry.tokens_before,
        "tokens_after": entry.tokens_after,
    }


def entry_from_dict(
    data: JSON,
    get: Callable[[JSON], Part] = part_from_dict,
    get_body: Callable[[Data], JSON | bytes] = body_from_dict,
) -> LogEntry:
    """The entry of entry_to_dict(); raises UsageError where this is none."""
    try:
        id, at, type_ = data["id"], datetime.fromisoformat(data["at"]), data["type"]
        is_plain = type_ == "message" and data.keys() == _LOGGED
        if is_plain and type(id) is str and type(data["parts"]) is list:
            parts = tuple(map(get, data["parts"]))
            return LoggedMessage(id, at, Message(data["role"], parts))
        if type_ == "recorded" and len(data) == _STORED and not _STORED_BODY.isdisjoint(data) and at.tzinfo is UTC:
            whose = data["kind"]
            if type(id) is type(whose) is str:
                return recorded_again(id, at, whose, get_body(data))
    except (TypeError, ValueError, LookupError):
        pass  # the general way says what is wrong
    kind = _field(data, "type", str, "a log entry")
    if kind == "message":
        _check_names(data, _LOGGED, "a logged message")
        return LoggedMessage(_field(data, "id", str, kind), _time(data, kind), _message(data, get))
    if kind == "recorded":
        _check_names(data, _RECORDED, "a recorded entry")
        id, whose = _field(data, "id", str, "a recorded entry"), _field(data, "kind", str, "a recorded entry")
        check_id(id, "the id of a recorded entry")
        return recorded_again(id, as_utc(_time(data, kind), "the time of a recorded entry"), whose, get_body(data))
    if kind != "compaction":
        raise UsageError(f"type={kind!r} is not a kind of log entry; use message, compaction or recorded")
    values = _fields({name: value for name, value in data.items() if name != "type"}, "a compaction", _COMPACTION)
    replacements = tuple(_replacement_from_dict(one, get) for one in values.pop("replacements"))
    return Compaction(**values, replacements=replacements)


def checkpoint_to_dict(checkpoint: Checkpoint) -> Data:
    """A checkpoint as a JSON object; no parent, what is empty, zeros and what is false are left out."""
    found: Data = {"format_version": checkpoint.format_version, "id": checkpoint.id}
    found |= {"session_id": checkpoint.session_id, "at": checkpoint.at.isoformat()}
    found |= {"position": checkpoint.position, "turn": checkpoint.turn}
    if checkpoint.parent is not None:
        found["parent"] = checkpoint.parent
    found |= {name: list(ids) for name in ("compactions", "pins") if (ids := getattr(checkpoint, name))}
    usage = {name: count for name in _USAGE if (count := getattr(checkpoint.usage, name))}
    found |= {"usage": usage} if usage else {}
    found |= {"attributes": dict(checkpoint.attributes)} if checkpoint.attributes else {}
    return found | ({"unfinished": True} if checkpoint.unfinished else {})


def checkpoint_from_dict(data: JSON) -> Checkpoint:
    """The checkpoint of checkpoint_to_dict(), of this format or an earlier one.

    Raises:
        FormatTooNew: a newer Loom wrote it.
        UsageError: this is not a checkpoint; the message says what is wrong.
    """
    what = "a checkpoint"
    version = _field(data, "format_version", int, what)
    check_format(version, f"checkpoint {data.get('id')!r}")
    values = _fields(data, what, _CHECKPOINT, _CHECKPOINT_MORE)
    usage = Usage(**_fields(values.pop("usage", {}), "usage", {}, _USAGE))
    return Checkpoint(**values, usage=usage)


def log_to_dict(checkpoint: Checkpoint, entries: Sequence[LogEntry]) -> Data:
    """A checkpoint with its whole log, as one document."""
    return {
        "format": FORMAT_VERSION,
        "checkpoint": checkpoint_to_dict(checkpoint),
        "entries": [entry_to_dict(entry) for entry in entries],
    }


def log_from_dict(data: JSON) -> tuple[Checkpoint, tuple[LogEntry, ...]]:
    """The checkpoint and the log of log_to_dict(); raises like checkpoint_from_dict()."""
    what = "a session's log"
    check_format(_field(data, "format", int, what), what)
    _check_names(data, ("format", "checkpoint", "entries"), what)
    entries = tuple(entry_from_dict(entry) for entry in _list(data, "entries", what))
    checkpoint = checkpoint_from_dict(data.get("checkpoint"))
    if checkpoint.position != len(entries):
        raise UsageError(f"checkpoint {checkpoint.id} is at {checkpoint.position}, but {len(entries)} entries came")
    return checkpoint, entries


def check_format(version: int, what: str) -> None:
    """Refuse what a newer Loom wrote."""
    if version > FORMAT_VERSION:
        raise FormatTooNew(f"{what} has format {version}, this Loom reads up to {FORMAT_VERSION}; upgrade Loom")


def _replacement_to_dict(replacement: Replacement, put: Callable[[Part], JSON]) -> Data:
    found: Data = {"covers": list(replacement.covers)}
    return found if replacement.message is None else found | {"message": message_to_dict(replacement.message, put)}


def _replacement_from_dict(data: JSON, get: Callable[[JSON], Part]) -> Replacement:
    what = "a replacement"
    _check_names(data, ("covers", "message"), what)
    message = message_from_dict(data["message"], get) if "message" in data else None
    return Replacement(_texts(data, "covers", what), message)


def _part_field(data: Mapping[str, JSON], name: str, what: str) -> Any:
    if name in _ANY_TYPE:
        return data[name]
    return _field(data, name, cast("type[Any]", _TYPES.get(name, str)), what)


def _fields(
    data: JSON, what: str, required: Mapping[str, type], optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """The fields of an object, each of its type and no others; a tuple is one of texts."""
    kinds = {**required, **(optional or {})}
    _check_names(data, tuple(kinds), what)
    read: dict[type, Callable[[str], Any]] = {
        datetime: lambda _: _time(data, what),
        tuple: lambda name: _texts(data, name, what),
    }
    return {
        name: read[kind](name) if kind in read else _field(data, name, kind, what)
        for name, kind in kinds.items()
        if name in required or name in data
    }


def _field(data: JSON, name: str, kind: type[_T], what: str) -> _T:
    """A field of an object, of exactly this type: true is not a number."""
    if not isinstance(data, dict):
        raise UsageError(f"{what} is a {type(data).__name__}; give a JSON object")
    value: Any = data.get(name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if type(value) is not kind:  # pyright: ignore[reportUnknownArgumentType]
        raise UsageError(f"{what} has {name}={value!r}; give a {kind.__name__}")
    return value


def _list(data: JSON, name: str, what: str) -> list[Any]:
    return cast("list[Any]", _field(data, name, list, what))


def _texts(data: JSON, name: str, what: str) -> tuple[str, ...]:
    found = tuple(_list(data, name, what))
    if not all(isinstance(one, str) for one in found):
        raise UsageError(f"{what} has {name}={found!r}; give a list of texts")
    return found


def _time(data: JSON, what: str) -> datetime:
    text = _field(data, "at", str, what)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _no(f"the time of {what}", error) from error


def _check_names(data: JSON, known: Collection[str], what: str) -> None:
    if not isinstance(data, dict):
        raise UsageError(f"{what} is a {type(data).__name__}; give a JSON object")
    if isinstance(known, frozenset) and data.keys() <= known:  # pyright: ignore[reportUnknownMemberType]
        return
    unknown = [str(name) for name in data if name not in known]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if unknown:
        raise UsageError(f"{what} has no field {', '.join(sorted(unknown))}; it may be of a newer format")


def _made(make: Callable[[], _T], what: str) -> _T:
    """What `make` gives; values that do not fit together are a UsageError."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise _no(what, error) from error


def _no(what: str, error: Exception) -> UsageError:
    return error if isinstance(error, UsageError) else UsageError(f"this is not {what}: {error}")
