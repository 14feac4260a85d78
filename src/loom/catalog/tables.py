"""The catalogue's TOML form: reading a file, checking every key, laying one file over another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from loom.catalog.model import Matching
from loom.errors import UsageError

TomlTable: TypeAlias = dict[str, Any]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(_is_text(item) for item in cast("list[object]", value))


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(item) for item in cast("TomlTable", value).values())


_Kind: TypeAlias = tuple[str, Callable[[object], bool]]
_COUNT: _Kind = ("a whole number, 0 or more", _is_count)
_NUMBER: _Kind = ("a number, 0 or more", _is_number)
_TEXT: _Kind = ("a text", _is_text)
_TEXTS: _Kind = ("a list of texts", _is_texts)
_FLAG: _Kind = ("true or false", lambda value: isinstance(value, bool))
_NUMBERS: _Kind = ('a table of numbers by lifetime, such as { "5m" = 300 }', _is_numbers)
_MATCHING: _Kind = (f"one of {', '.join(get_args(Matching))}", lambda value: value in get_args(Matching))

CACHE_FIELDS: Mapping[str, _Kind] = {
    "matching": _MATCHING, "min_prefix": _COUNT, "read": _NUMBER, "write": _NUMBERS, "ttls": _NUMBERS,
    "default_ttl": _TEXT, "max_markers": _COUNT, "lookback": _COUNT, "collapse_runs": _FLAG, "lookups": _COUNT,
    "grid": _COUNT, "implicit": _FLAG,
}  # fmt: skip
INFO_FIELDS: Mapping[str, _Kind] = {
    "context_window": _COUNT, "max_output": _COUNT, "input_price": _NUMBER, "output_price": _NUMBER,
    "tokenizer": _TEXT, "token_scale": _NUMBER, "prefill": _FLAG, "system_messages": _FLAG, "binds_thinking": _FLAG,
    "as_of": _TEXT, "sources": _TEXTS,
}  # fmt: skip
_PROVIDER_FIELDS = {**INFO_FIELDS, "like": _TEXT, "names": _TEXTS, "rules": _TEXT}
_SINCE_FIELDS = {**INFO_FIELDS, "version": _TEXT, "rules": _TEXT}
_MODEL_FIELDS = {**INFO_FIELDS, "provider": _TEXT, "also": _TEXTS, "rules": _TEXT}
_TOP = {"as_of": _TEXT, "sources": _TEXTS}
_SECTIONS = ("cache", "providers", "models")


def read_tables(path: Path) -> TomlTable:
    """Read one catalogue file and check the form of every key in it."""
    try:
        return parse_tables(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UsageError(f"the model file {path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the model file {path} is not UTF-8 text: {error}; save it as UTF-8") from error


def parse_tables(text: str, file: str) -> TomlTable:
    """Read catalogue text and check the form of every key in it."""
    import tomllib  # noqa: PLC0415  importing the catalogue must not cost a parser

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the model file {file} is not TOML: {error}; correct that place") from error
    check_tables(data, file)
    return data


def check_tables(data: TomlTable, file: str) -> None:
    """Check the form of one file; the message names the file and the key."""
    for key, value in data.items():
        if key not in _SECTIONS:
            _check_field(value, key, _TOP.get(key), file, (*_TOP, *_SECTIONS))
    for name, table in _tables(data, "cache", file):
        _check_fields(table, f"cache.{name}", {**CACHE_FIELDS, "like": _TEXT}, file)
    for name, table in _tables(data, "providers", file):
        since = table.get("since", {})
        _check_fields(_as_table(since, f"providers.{name}.since", file), f"providers.{name}.since", _SINCE_FIELDS, file)
        rest = {key: value for key, value in table.items() if key != "since"}
        _check_fields(rest, f"providers.{name}", _PROVIDER_FIELDS, file)
    for name, table in _tables(data, "models", file):
        cache = _as_table(table.get("cache", {}), f"models.{name}.cache", file)
        _check_fields(cache, f"models.{name}.cache", CACHE_FIELDS, file)
        rest = {key: value for key, value in table.items() if key != "cache"}
        _check_fields(rest, f"models.{name}", _MODEL_FIELDS, file)


def overlay(under: TomlTable, over: TomlTable) -> TomlTable:
    """Lay one set of tables over another: tables merge key by key, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and key not in {"write", "ttls"}:
            merged[key] = overlay(cast("TomlTable", below), cast("TomlTable", value))
        else:
            merged[key] = value
    return merged


def _tables(data: TomlTable, section: str, file: str) -> list[tuple[str, TomlTable]]:
    table = _as_table(data.get(section, {}), section, file)
    return [(name, _as_table(value, f"{section}.{name}", file)) for name, value in table.items()]


def _as_table(value: object, key: str, file: str) -> TomlTable:
    if not isinstance(value, dict):
        raise UsageError(f"{file}: {key} is {value!r}, but must be a table; write it as [{key}]")
    return cast("TomlTable", value)


def _check_fields(table: TomlTable, key: str, fields: Mapping[str, _Kind], file: str) -> None:
    for name, value in table.items():
        _check_field(value, f"{key}.{name}", fields.get(name), file, tuple(fields))


def _check_field(value: object, key: str, kind: _Kind | None, file: str, known: tuple[str, ...]) -> None:
    if kind is None:
        raise UsageError(f"{file}: {key} is not a key of this file; the keys here are {', '.join(sorted(known))}")
    says, holds = kind
    if not holds(value):
        raise UsageError(f"{file}: {key} is {value!r}, but must be {says}; correct it or remove the line")
