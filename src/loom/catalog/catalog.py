"""The catalogue: which model is meant, and what is known of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

from loom.catalog.model import CacheRules, ModelInfo
from loom.catalog.names import cloud_id, continues, family_version, is_variant, plain_id, reaches, split_provider
from loom.catalog.tables import CACHE_FIELDS, INFO_FIELDS, TomlTable, overlay, parse_tables, read_tables
from loom.errors import UsageError

OVERRIDE_VARIABLE = "LOOM_MODELS"
_GENERIC = "generic"
_SHIPPED = "models.toml"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Models, providers and cache rules, as of one day. Made by `Catalog.load`."""

    _tables: TomlTable
    _file: str = _SHIPPED

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
