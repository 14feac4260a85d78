"""The log around a request: where its body is, which model its address names, and when it was sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, cast

from loom.context.cache.recorded.fields import JsonObject, maybe_text, refuse, table
from loom.errors import BadRequestFile

_INSIDE: Final = ("request", "body", "json", "params", "content", "input")
"""Where a log keeps a request, in the order in which they are looked into."""
_TIMES: Final = ("at", "timestamp", "time")
_URLS: Final = ("url", "path", "endpoint")
_MODEL_IN_URL: Final = re.compile(r"/(?:models|model|deployments)/([^/:?]+)")
_DEPTH: Final = 4
_MILLISECONDS: Final = 1e11
"""A larger number of seconds lies thousands of years ahead, so it counts milliseconds."""
_MICROSECONDS: Final = 1e14


def read_recorded(obj: Mapping[str, object]) -> tuple[JsonObject, float | None]:
    """The request body in a log record, and when it was sent; a bare body is its own record.

    Understands `{"request": ...}`, `{"body": ...}`, `{"url": ..., "body" | "json" | "content": ...}`, the lines of
    batch files, and any of these inside another. A body may be JSON text.
    """
    record = table(obj, "the record")
    at: float | None = None
    model = ""
    for _ in range(_DEPTH):
        at = _time(record) if at is None else at
        model = model or _model(record)
        if is_body(record):
            break
        inner = _inner(record)
        if inner is None:
            break
        record = inner
    body = {key: value for key, value in record.items() if key not in _TIMES}
    if model and not body.get("model"):
        body["model"] = model
    return body, at


def model_of(obj: Mapping[str, object]) -> str:
    """The model that a record names; empty if it names none."""
    return maybe_text(read_recorded(obj)[0].get("model")).removeprefix("models/")


def is_body(record: JsonObject) -> bool:
    """Whether this is a request itself, and not a log around one."""
    if "contents" in record or isinstance(record.get("messages"), list):
        return True
    return isinstance(record.get("input"), str | list) or "instructions" in record


def _inner(record: JsonObject) -> JsonObject | None:
    for name in _INSIDE:
        value = record.get(name)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise BadRequestFile(
                    f"{name} is text, but not whole JSON ({error}); record the body without cutting it"
                ) from error
        if isinstance(value, Mapping):
            return cast("JsonObject", value)
    return None


def _model(record: JsonObject) -> str:
    named = maybe_text(record.get("model")) or maybe_text(record.get("modelId"))
    if named:
        return named
    found = next((_MODEL_IN_URL.search(maybe_text(record.get(name))) for name in _URLS if record.get(name)), None)
    return found[1] if found else ""


def _time(record: JsonObject) -> float | None:
    for name in _TIMES:
        value = record.get(name)
        if value is not None and not isinstance(value, Mapping | list):
            return _seconds(value, name)
    return None


def _seconds(value: object, name: str) -> float:
    seconds = _number(value.strip()) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        refuse(name, value, "a time, in seconds or as 2026-11-15T08:30:00Z")
    scale = 1e6 if seconds > _MICROSECONDS else 1e3 if seconds > _MILLISECONDS else 1.0
    return seconds / scale


def _number(text: str) -> float | None:
    """Seconds, from a number or a moment written as text; None where it is neither."""
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
