"""The catalog of models: context windows, prices and prompt-cache rules, as dated data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from loom.core.message import Usage
from loom.errors import UsageError

# Data about one model: its window, its prices, and the rules of its prompt cache.

Matching: TypeAlias = Literal["lookback", "exact", "grid", "units"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """A provider's prompt cache rules: how a prefix is found again, and what that costs.

    The four ways of matching:
      lookback  written at markers, found up to `lookback` positions behind a marker (Anthropic)
      exact     written at markers, found only at markers that stand in the new request (OpenAI from GPT-5.6)
      grid      longest common token prefix, cut down to a multiple of `grid` (older OpenAI, vLLM, SGLang, Gemini)
      units     whole units that end where an earlier request or answer ended (DeepSeek)
    """

    matching: Matching
    min_prefix: int
    """A shorter prefix is never cached, and no error says so."""
    read: float
    """Price of a cached token, as a share of the plain input price."""
    write: Mapping[str, float] = field(default_factory=dict[str, float])
    """Price of writing a token, by lifetime, as a share of the plain price; empty: no surcharge."""
    ttls: Mapping[str, float] = field(default_factory=dict[str, float])
    """The lifetimes the provider accepts, as it writes them, in seconds; empty: it takes none."""
    default_ttl: str | None = None
    max_markers: int = 0
    """Explicit markers in one request; 0: the provider takes none."""
    lookback: int = 20
    collapse_runs: bool = True
    """A run of consecutive tool calls, or of tool results, counts as one position of the lookback."""
    lookups: int = 80
    """Markers of one request that are looked up (exact matching)."""
    grid: int = 1
    implicit: bool = False
    """The provider places a breakpoint itself, at the end of the newest eligible message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One row of the catalogue. Prices are US dollars per million tokens; None where not established."""

    provider: str
    model: str
    context_window: int
    max_output: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    tokenizer: str = "estimate"
    """`o200k`, `cl100k` or another exact vocabulary, or `estimate`."""
    token_scale: float = 1.0
    """What the estimate is multiplied with for this model."""
    prefill: bool = True
    """A request may end with an assistant message."""
    system_messages: bool = False
    """A system message may stand among the messages."""
    binds_thinking: bool = False
    """Thinking is bound to the exact prefix that produced it; an edit before it invalidates it."""
    cache: CacheRules
    known: bool = True
    """False for a model the catalogue does not list: the values are the provider's safe defaults."""
    as_of: str = ""
    sources: tuple[str, ...] = ()

    def cost(self, usage: Usage) -> float | None:
        """What a usage costs in US dollars; None where a price is not known."""
        if self.input_price is None or self.output_price is None:
            return None
        write = self.cache.write.get(self.cache.default_ttl or "", 1.0)
        prompt = usage.uncached + usage.cache_read * self.cache.read + usage.cache_write * write
        return (prompt * self.input_price + usage.output * self.output_price) / 1e6


# The catalogue's TOML form: reading a file, checking every key, laying one file over another.

TomlTable: TypeAlias = dict[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(item) for item in cast("TomlTable", value).values())


_Kind: TypeAlias = tuple[str, Callable[[object], bool]]
_COUNT: _Kind = ("a whole number, 0 or more", lambda value: isinstance(value, int) and _is_number(value))
_NUMBER: _Kind = ("a number, 0 or more", _is_number)
_TEXT: _Kind = ("a text", _is_text)
_TEXTS: _Kind = (
    "a list of texts",
    lambda value: isinstance(value, list) and all(map(_is_text, cast("list[object]", value))),
)
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


# Model names: taking a gateway's or a cloud's id apart, and matching it to a known one.

KNOWN_AS = {"openai_chat": "openai", "compatible": "generic"}
"""Wires that the catalogue knows by another name."""

_REGION = re.compile(r"^[a-z]{2,6}(?:-[a-z]+)?\.(?=(?:anthropic|openai|deepseek|google|xai)\.)")
_VENDOR = re.compile(r"^(?:anthropic|openai|deepseek|google|xai)\.")
_VERSION = re.compile(r"([a-z-]+)(\d{1,3})(?:\.(\d{1,3}))?(?![0-9a-z])")
_SHORT_NUMBER = re.compile(r"[-_.]\d{1,2}(?![0-9a-z])")
_HARMLESS = frozenset({"latest", "preview", "thinking", "reasoning", "non", "v1", "v2"})


def split_provider(model: str, providers: Iterable[str]) -> tuple[str | None, str]:
    """`"anthropic:claude-x"` as provider and id; a colon that follows no provider's name belongs to the id."""
    head, colon, rest = model.partition(":")
    if colon and rest and head.lower() in providers:
        return head.lower(), rest
    return None, model


def cloud_id(model: str) -> str:
    """The id without a gateway's path and a cloud's region: `us.anthropic.claude-x` is `anthropic.claude-x`."""
    return _REGION.sub("", model.strip().lower().rsplit("/", 1)[-1])


def plain_id(model: str) -> str:
    """The id as its maker writes it."""
    id = _VENDOR.sub("", cloud_id(model))
    return id.replace(".", "-") if id.startswith("claude") else id  # gateways write claude-sonnet-4.5


def continues(id: str, pattern: str) -> bool:
    """Whether an id is the pattern, or the pattern with a date or a variant behind it.

    A short number behind it is another version, so claude-opus-5-9 is not a claude-opus-5, nor gpt-5.7 a gpt-5.
    """
    if not id.startswith(pattern):
        return False
    rest = id[len(pattern) :]
    return not rest or (rest[0] in "-_:@" and not _SHORT_NUMBER.match(rest))


def is_variant(id: str, pattern: str) -> bool:
    """Whether the id names something of its own (`-mini`, `-fast`) and not just a date or a stage."""
    words = re.split(r"[-_:@]", id[len(pattern) :])
    return any(word and not word.isdigit() and word not in _HARMLESS for word in words)


def family_version(id: str) -> tuple[str, int, int] | None:
    """The family and the version an id begins with: ("gpt-", 5, 6) for gpt-5.6-mini."""
    found = _VERSION.match(id)
    return (found[1], int(found[2]), int(found[3] or 0)) if found else None


def reaches(id: str, since: str) -> bool:
    """Whether an id is of the same family as `since`, and of that version or a later one."""
    this, first = family_version(id), family_version(since)
    return this is not None and first is not None and this[0] == first[0] and this >= first


# The catalogue: which model is meant, and what is known of it.

OVERRIDE_VARIABLE = "LOOM_MODELS"
_GENERIC = "generic"
_SHIPPED = "models.toml"
_MOST_FOUND = 256


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models, providers and cache rules, as of one day. Made by `Catalog.load`."""

    _tables: TomlTable
    _file: str = _SHIPPED
    _found: dict[tuple[str, str | None], ModelInfo] = field(
        default_factory=dict[tuple[str, str | None], ModelInfo], compare=False, repr=False
    )
    """What was asked for before: every turn asks for its model."""

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Catalog:
        """The shipped catalogue, with a file of the same form laid over it where one is given."""
        if path is None:
            return _shipped()
        return cls(overlay(_shipped_tables(), read_tables(Path(path))), str(path))

    @classmethod
    def current(cls) -> Catalog:
        """The catalogue in use: the shipped one, under the file that LOOM_MODELS names, if it names one."""
        return _default_catalog(os.environ.get(OVERRIDE_VARIABLE))

    def __post_init__(self) -> None:
        self._check_every_row()

    @property
    def as_of(self) -> str:
        """The day the data was last checked."""
        return str(self._tables["as_of"])

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the data comes from."""
        return tuple(self._tables["sources"])

    @property
    def providers(self) -> tuple[str, ...]:
        """The names `find` takes as a provider."""
        return tuple(self._tables["providers"])

    @property
    def models(self) -> tuple[str, ...]:
        """The ids that are listed; any id that continues one of them is known too."""
        return tuple(self._tables["models"])

    def find(self, model: str, provider: str | None = None) -> ModelInfo:
        """What is known of a model; the provider's safe default, marked `known=False`, where it is not listed."""
        found = self._found.get((model, provider))
        if found is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            found = self._found[model, provider] = self._look_up(model, provider)
        return found

    def _look_up(self, model: str, provider: str | None) -> ModelInfo:
        named, id = split_provider(model, self.providers)
        provider = provider.lower() if provider else named
        if provider is not None and provider not in self.providers:
            return self._default(_GENERIC, plain_id(id), known_as=provider)
        if provider is None:
            provider = self._infer_provider(id)
        id = plain_id(id)
        pattern = self._longest_pattern(id, provider)
        if pattern is None:
            return self._default(provider or _GENERIC, id)
        row = self._row(pattern)
        if is_variant(id, pattern):  # it shares the rules of its family, but has a price of its own
            row = {key: value for key, value in row.items() if not key.endswith("_price")}
        return self._info(provider or row["provider"], id, row, known=True)

    def _infer_provider(self, model: str) -> str | None:
        id = cloud_id(model)
        names = [(name, provider) for provider in self.providers for name in self._provider(provider)["names"]]
        fitting = [pair for pair in names if id.startswith(pair[0])]
        if not fitting or self._longest_pattern(id, _GENERIC):
            return None
        return max(fitting, key=lambda pair: len(pair[0]))[1]

    def _longest_pattern(self, id: str, provider: str | None) -> str | None:
        shared = {provider, self._tables["providers"].get(provider, {}).get("like")}
        best: str | None = None
        for name, row in self._tables["models"].items():
            if provider is not None and row["provider"] not in shared:
                continue
            for pattern in (name, *row.get("also", ())):
                if continues(id, pattern) and (best is None or len(pattern) > len(best)):
                    best = pattern
        return best

    def _row(self, pattern: str) -> TomlTable:
        models: dict[str, TomlTable] = self._tables["models"]
        return models.get(pattern) or next(row for row in models.values() if pattern in row.get("also", ()))

    def _provider(self, name: str) -> TomlTable:
        """A provider's table, on top of the one it is like; its names and versions are its own."""
        own: TomlTable = self._tables["providers"][name]
        like: TomlTable = self._tables["providers"].get(own.get("like"), {})
        return {**like, "names": [], "since": {}, **own}

    def _default(self, provider: str, id: str, *, known_as: str | None = None) -> ModelInfo:
        since: TomlTable = self._provider(provider)["since"]
        newer = since and reaches(id, since["version"])
        return self._info(provider, id, since if newer else {}, known=False, called=known_as)

    def _info(self, provider: str, id: str, row: TomlTable, *, known: bool, called: str | None = None) -> ModelInfo:
        table = self._provider(provider)
        fields = {key: value for key, value in {**table, **row}.items() if key in INFO_FIELDS}
        fields["sources"] = tuple(fields.get("sources", self.sources))
        fields.setdefault("as_of", self.as_of)
        rules = self._rules(row.get("rules") or table["rules"], row.get("cache", {}))
        return ModelInfo(provider=called or provider, model=id, cache=rules, known=known, **fields)

    def _rules(self, family: str, changes: TomlTable) -> CacheRules:
        fields = self._rule_fields(family, changes)
        return CacheRules(**{key: value for key, value in fields.items() if key in CACHE_FIELDS})

    def _rule_fields(self, family: str, changes: TomlTable) -> TomlTable:
        """A family's rules, on top of those it is like, under changes of one model."""
        own: TomlTable = self._tables["cache"][family]
        return {**self._tables["cache"].get(own.get("like"), {}), **own, **changes}

    def _check_every_row(self) -> None:
        """Build everything once, so that a file that contradicts itself is refused when it is read."""
        for name in self.providers:
            self._check_row(f"providers.{name}", name, {})
            since = self._provider(name)["since"]
            if since:
                self._check_row(f"providers.{name}.since", name, {"version": "", **since})
        for name in self.models:
            row = self._row(name)
            if "provider" not in row:
                raise UsageError(f"{self._file}: models.{name} names no provider; add provider = ...")
            self._check_row(f"models.{name}", row["provider"], row)

    def _check_row(self, key: str, provider: str, row: TomlTable) -> None:
        self._check_named(f"{key}.provider", provider, "providers")
        like = self._tables["providers"][provider].get("like")
        if like is not None:
            self._check_named(f"providers.{provider}.like", like, "providers")
        table = self._provider(provider)
        if "context_window" not in {**table, **row} or "rules" not in {**table, **row}:
            raise UsageError(f"{self._file}: {key} needs both context_window and rules; add what is missing")
        if "version" in row and family_version(row["version"]) is None:
            raise UsageError(f'{self._file}: {key}.version names no version; write it as version = "gpt-5.6"')
        family = str(row.get("rules") or table["rules"])
        self._check_named(f"{key}.rules", family, "cache")
        self._check_rules(key, family, row.get("cache", {}))

    def _check_rules(self, key: str, family: str, changes: TomlTable) -> None:
        like = self._tables["cache"][family].get("like")
        if like is not None:
            self._check_named(f"cache.{family}.like", like, "cache")
        fields = self._rule_fields(family, changes)
        missing = [name for name in ("matching", "min_prefix", "read") if name not in fields]
        if missing:
            raise UsageError(f"{self._file}: cache.{family}.{missing[0]} is missing; add it")
        rules = self._rules(family, changes)
        where = key if changes else f"cache.{family}"
        if rules.default_ttl not in (rules.ttls or {None}):
            raise UsageError(
                f"{self._file}: {where}.default_ttl is {rules.default_ttl!r}, but the lifetimes are "
                f"{', '.join(rules.ttls) or 'none'}; name one of them"
            )
        if rules.write and set(rules.write) != set(rules.ttls):
            raise UsageError(
                f"{self._file}: {where}.write prices {', '.join(rules.write)}, but the lifetimes are "
                f"{', '.join(rules.ttls) or 'none'}; price each lifetime once"
            )

    def _check_named(self, key: str, name: str, section: str) -> None:
        known = cast("TomlTable", self._tables[section])
        if name not in known:
            raise UsageError(
                f"{self._file}: {key} is {name!r}, which is not a table of [{section}]; use one of {', '.join(known)}"
            )


def find_model(model: str, provider: str | None = None, *, catalog: Catalog | None = None) -> ModelInfo:
    """What is known of a model, by its id (`claude-sonnet-5`, `openai/gpt-5.6`) or `provider:id`.

    Without a catalogue the shipped one is used, under the file that LOOM_MODELS names, if it names one.
    """
    return (catalog or Catalog.current()).find(model, provider)


@lru_cache(maxsize=4)
def _default_catalog(override: str | None) -> Catalog:
    return Catalog.load(override or None)


@lru_cache(maxsize=1)
def _shipped() -> Catalog:
    return Catalog(_shipped_tables())


def _shipped_tables() -> TomlTable:
    from importlib.resources import files  # noqa: PLC0415  slow to import, and not needed until the first question

    return parse_tables(files("loom.catalog").joinpath(_SHIPPED).read_text(encoding="utf-8"), _SHIPPED)


__all__ = ["CacheRules", "Catalog", "ModelInfo", "find_model"]
