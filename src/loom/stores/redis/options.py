"""Options in a Redis URL: `?durable=true&ttl=30d&ttl_l1=1h`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from loom.core.record import Layer
from loom.errors import UsageError

Ttl: TypeAlias = timedelta | Mapping[Layer | None, timedelta]
"""How long episodes are kept: all of them, or those of each layer; None names those that no layer names."""

LAYERS = {layer.label.lower(): layer for layer in Layer}
REST = "rest"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PERIOD = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([smhdw]?)", re.ASCII)
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Options(NamedTuple):
    """Options of a store: whether to refuse a server that may lose acknowledged writes, and how long episodes stay."""

    durable: bool = False
    ttl: Mapping[Layer | None, timedelta] = {}


def period(value: object, what: str) -> timedelta:
    """A period: a timedelta, seconds, or a number with a unit, such as `90s`, `1h`, `7d` and `2w`."""
    if isinstance(value, timedelta):
        found = value
    else:
        match = None if isinstance(value, bool) else _PERIOD.fullmatch(str(value).strip().lower())
        if match is None:
            raise UsageError(f"{what}={value!r} is not a period; give seconds, or a number with s, m, h, d or w: 7d")
        found = _seconds(float(match[1]) * _UNITS[match[2]])
    if found <= timedelta(0):
        raise UsageError(f"with {what}={value!r} everything is over at once; give more, or none")
    return found


def _seconds(amount: float) -> timedelta:
    try:
        return timedelta(seconds=amount)
    except OverflowError:
        return timedelta.max


def periods(value: object) -> dict[Layer | None, timedelta]:
    """How long episodes of each layer are kept, as `ttl` of a mapping says it: one period, or one for each layer."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {None: period(value, "ttl")}
    given: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
    return {_layer(name): period(value, f"ttl of {name}") for name, value in given.items()}


def _layer(name: object) -> Layer | None:
    if name is None or str(name).lower() == REST:
        return None
    if isinstance(name, Layer) or str(name).lower() in LAYERS:
        return name if isinstance(name, Layer) else LAYERS[str(name).lower()]
    raise UsageError(f"ttl names {name!r}, which is not a layer; the names are {', '.join(LAYERS)} and {REST}")


def split(url: str) -> tuple[str, Options]:
    """A URL as the driver reads it, and what it says to Loom."""
    parts = urlsplit(url)
    if not parts.query:
        return url, Options()
    mine, others = dict[str, str](), list[tuple[str, str]]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in {"durable", "ttl", *(f"ttl_{layer}" for layer in LAYERS)}:
            mine[name] = value
        else:
            others.append((name, value))
    if not mine:
        return url, Options()
    ttl: dict[Layer | None, timedelta] = {}
    for name, value in mine.items():
        if name != "durable":
            ttl[LAYERS.get(name.removeprefix("ttl_"))] = period(value, name)
    return parts._replace(query=urlencode(others)).geturl(), Options(_durable(mine.get("durable", "no")), ttl)


def with_options(url: str, *, durable: object = None, ttl: object = None) -> str:
    """A URL that says what stood beside it in a mapping, which counts more than what it says itself."""
    address, options = split(url)
    ends = {**options.ttl, **periods(ttl)}
    more = {"ttl" if layer is None else f"ttl_{layer.label.lower()}": _period_text(end) for layer, end in ends.items()}
    if options.durable if durable is None else _durable(durable):
        more["durable"] = "true"
    if not more:
        return address
    return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(more)}"


def _durable(value: object) -> bool:
    if str(value).lower() not in _YES_NO:
        raise UsageError(f"durable={value!r} is neither true nor false; give one of them")
    return _YES_NO[str(value).lower()]


def _period_text(period: timedelta) -> str:
    return f"{period.total_seconds():.6f}".rstrip("0").rstrip(".")
