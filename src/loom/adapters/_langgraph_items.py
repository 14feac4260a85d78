"""Pure parts of the LangGraph adapters: the form of an item, and which values and namespaces fit what is asked."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, cast

from loom.core.filter import And, Eq, Filter
from loom.core.record import Episode, Layer, Provenance, Scalar
from loom.errors import MissingExtra, UsageError

try:
    from langgraph.store import base as lg
    from langgraph.store.base.embed import get_text_at_path, tokenize_path
except ImportError as error:
    raise MissingExtra("loom.adapters.langgraph", "langgraph") from error

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


def item_id(namespace: tuple[str, ...], key: str) -> str:
    """The id of the record of an item."""
    return sha256("\0".join((*namespace, key)).encode("utf-8", "surrogatepass")).hexdigest()[:40]


def vector_ids(record: Episode | None) -> list[str]:
    """The ids of the records that have the vectors of an item."""
    return [f"{record.id}.{n}" for n in range(cast("int", record.attributes["vectors"]))] if record else []


def prefixes(namespace: tuple[str, ...]) -> dict[str, Scalar]:
    """Every prefix of a namespace, which is how a search finds it; no label holds a period."""
    return {f"under{n}": ".".join(namespace[:n]) for n in range(1, len(namespace) + 1)}


def items_under(kind: str, prefix: tuple[str, ...]) -> Filter:
    """The records of a kind, `item` or `vector`, whose namespace begins so."""
    return And(Eq("meta.kind", kind), *(Eq(f"meta.{name}", text) for name, text in [*prefixes(prefix).items()][-1:]))


def texts_of(op: lg.PutOp, index: lg.IndexConfig | None) -> list[str]:
    """The texts of an item that are embedded, each once."""
    if op.value is None or op.index is False or not index:
        return []
    paths = op.index if op.index is not None else index.get("fields") or ["$"]
    found = [get_text_at_path(op.value, path if path == "$" else tokenize_path(path)) for path in paths]
    return list(dict.fromkeys(text for texts in found for text in texts))


def name_of(embed: object) -> str:
    """What an embedder is called in a store: a name stays, and so should the class or the model of an object."""
    return embed if isinstance(embed, str) else str(getattr(embed, "model", None) or type(embed).__name__)


def records_of(
    op: lg.PutOp, parts: Iterable[str], *, created_at: datetime, now: datetime, made: str
) -> tuple[Episode, ...]:
    """The record of an item, then one for each of its vectors; `made` tells this writing of it from others."""
    id = item_id(op.namespace, op.key)
    try:
        text = json.dumps([op.namespace, op.key, op.value], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the value of {op.key!r} in {op.namespace!r} cannot be kept as JSON: {error}") from error
    vectors = tuple(parts)
    about = {"made": made, "vectors": len(vectors), **prefixes(op.namespace)}
    item = Episode(
        id=id, text=text, at=now, recorded_at=created_at, provenance=Provenance("import"), layer=Layer.SEMANTIC,
        attributes={"kind": "item", **about},
    )  # fmt: skip
    beside = [
        replace(item, id=part, text="vector", sources=(id,), attributes={"kind": "vector", **about}) for part in vectors
    ]
    return expiring(item, op.ttl, now), *beside


def expiring(record: Episode, minutes: float | None, now: datetime) -> Episode:
    """A record that expires so many minutes from now; None is never."""
    if minutes is None:
        return record
    try:
        expires: dict[str, Scalar] = {"minutes": minutes, "expires": now + timedelta(minutes=minutes)}
    except (OverflowError, ValueError) as error:
        raise UsageError(f"ttl={minutes!r} minutes end at no date ({error}); None is for ever") from error
    return replace(record, attributes={**record.attributes, **expires})


def item_of(made: Callable[..., Any], record: Episode, **more: Any) -> Any:
    """The item of a record, as LangGraph has it."""
    namespace, key, value = json.loads(record.text)
    about = {"created_at": record.recorded_at, "updated_at": record.at, **more}
    return made(namespace=tuple(namespace), key=key, value=value, **about)


def is_expired(record: Episode, now: datetime) -> bool:
    """Whether the time of an item is over."""
    expires = record.attributes.get("expires")
    return isinstance(expires, datetime) and expires <= now


def matches(condition: lg.MatchCondition, path: tuple[str, ...]) -> bool:
    """Whether a namespace begins or ends as asked; `*` is any label."""
    wanted, size = condition.path, len(condition.path)
    end = path[:size] if condition.match_type == "prefix" else path[len(path) - size :]
    return len(path) >= size and all(label in {"*", found} for label, found in zip(wanted, end, strict=True))


def fits(record: Episode, filter: Mapping[str, Any] | None) -> bool:
    """Whether the value of an item fits a filter of LangGraph; None fits everything."""
    return not filter or _equals(json.loads(record.text)[2], filter)


def _equals(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        asked = cast("Mapping[str, Any]", wanted)
        if any(name.startswith("$") for name in asked):
            return all(_compares(value, name, other) for name, other in asked.items())
        held = cast("dict[str, Any]", value) if isinstance(value, dict) else None
        return held is not None and all(_equals(held.get(name), other) for name, other in asked.items())
    return bool(value == (list(cast("tuple[Any, ...]", wanted)) if isinstance(wanted, tuple) else wanted))


def _compares(value: Any, name: str, other: Any) -> bool:
    if name in {"$eq", "$ne"}:
        return (value == other) is (name == "$eq")
    if name not in _ORDERS:
        raise UsageError(f"{name!r} is not an operator of a filter; use $eq, $ne, {', '.join(_ORDERS)}")
    try:
        return _ORDERS[name](value, other) if isinstance(value, str) is isinstance(other, str) else False
    except TypeError:
        return False
