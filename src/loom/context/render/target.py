"""The target of a request: provider, model, and the catalogue's data about it."""

from __future__ import annotations

from dataclasses import dataclass

from loom.catalog import Catalog, ModelInfo, find_model
from loom.catalog.names import KNOWN_AS
from loom.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """A provider and a model, as the caller named them."""

    provider: str
    model: str
    """The model as it is sent; `info.model` is the id the catalogue knows it by."""
    info: ModelInfo


def target_for(provider: str | None, model: str) -> Target:
    """The target of a request; `provider:model` names both at once.

    Raises:
        UsageError: there is no such provider.
    """
    known = (*Catalog.current().providers, *KNOWN_AS)
    head, colon, rest = model.partition(":")
    if colon and head.lower() in known and provider in (None, head.lower()):
        provider, model = head.lower(), rest
    if provider is None:
        info = find_model(model)
        return Target(info.provider, model, info)
    if provider not in known:
        raise UsageError(
            f"there is no provider {provider!r}; the providers are {', '.join(known)}; "
            f"use 'compatible' for a server that speaks the OpenAI Chat form"
        )
    return Target(provider, model, find_model(model, KNOWN_AS.get(provider, provider)))
