"""Models that are given by name: opened for a session, and closed by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loom.core.doors import Port
from loom.errors import UsageError
from loom.protocols.model import Model
from loom.session.config import SessionConfig
from loom.telemetry.bill import MeteredModel, metered

OPENER: Port[Callable[[str], Model]] = Port("the way to open a model by its name")
"""Filled by the composition root, which knows the providers."""


def named_model(model: Model | str) -> Model:
    """The model itself, or the one of a name."""
    if isinstance(model, str):
        return OPENER.get()(model)
    if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{model!r} is not a model; give provider:model, or a Model")
    return model


def with_models(config: SessionConfig) -> tuple[SessionConfig, tuple[Model, ...]]:
    """A configuration with its models open, and those that were opened here."""
    name = config.compaction.summary_model
    if not isinstance(name, str):
        return config, ()
    opened = named_model(name)
    return replace(config, compaction=replace(config.compaction, summary_model=opened)), (opened,)


def same_bill(model: Model, before: Model) -> Model:
    """The model, counted on the bill that the one before it was counted on."""
    return metered(model, before.ledger) if isinstance(before, MeteredModel) else model
