"""The parts of an agent beside its model: its memory, and the store of its sessions.

Who opens closes: what was given as an object stays open when the agent is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loom.core.clock import Clock
from loom.engine.open import facts_mode, open_checkpoints, open_memory, open_model, place_of
from loom.engine.urls import ENGINES, STORES, sessions_place, written_out
from loom.errors import UsageError
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory._write.learn_in_background import Facts
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore, KeyValues
from loom.protocols.model import Model, OneAtATime, SaysIfItReads
from loom.providers.models.offline import OfflineModel
from loom.session.config import CompactionConfig, SessionConfig
from loom.stores import sqlite
from loom.telemetry import Ledger, metered


def agent_memory(
    url: str | Mapping[str, Any] | Memory | None,
    model: Model,
    *,
    namespace: str | None = None,
    facts: Facts = "auto",
    clock: Clock | None = None,
) -> tuple[Memory | None, tuple[str, ...], bool]:
    """The memory of an agent, which behaves alike whether it is named by a URL or a mapping, or is open already.

    Returns remarks about it for the user, too, and whether the agent closes it: what was given as an object is not its.
    """
    if url is None:
        if facts not in {"auto", None}:
            raise UsageError(f"facts={facts!r} needs a memory; give memory='sqlite:./bot.db', say")
        return None, (), False
    is_given = isinstance(url, Memory)
    opened = url if isinstance(url, Memory) else open_memory(url, clock=clock)
    real = not isinstance(model, SaysIfItReads) or model.reads_text  # a model that cannot find facts in text says so
    mode = facts_mode(facts, None)
    if mode == "auto":
        mode = opened.facts_mode
    if mode == "auto":
        mode = "model" if real or opened.has_reader else "rules"
    if mode == "model" and isinstance(model, OfflineModel) and not opened.has_reader:
        raise UsageError(f"facts='model' needs a language model, and {model.name} is none; name one with model=")
    name = namespace or opened.namespace
    notes: tuple[str, ...] = ()
    if mode is None:
        notes = ("no facts are extracted from what is said: facts=None",)
    elif mode == "rules" and not real:
        notes = (f"facts are extracted with rules: {model.name} is not a language model",)
    if mode != "model" and name == opened.namespace and (mode is None) == (opened.facts_mode is None):
        return opened, notes, not is_given
    reader = LlmExtractor(model) if mode == "model" and not opened.has_reader else None
    alone = isinstance(model, OneAtATime) and model.one_at_a_time
    view = opened.view(namespace=name, facts=mode, reader=reader, owns_store=not is_given, one_at_a_time=alone)
    return view, notes, True


def agent_checkpoints(
    url: str | CheckpointStore | KeyValues | None, memory: str | Mapping[str, Any] | Memory | None
) -> tuple[CheckpointStore, tuple[str, ...]]:
    """Where an agent saves its sessions, with notes: as given, else with the primary store of its memory."""
    if url is not None:
        return open_checkpoints(url), ()
    place = memory.place if isinstance(memory, Memory) else place_of(memory)
    if place is None:
        note = ("conversations are kept in this process only: it is not known where the memory is; give checkpoints=",)
        return open_checkpoints("inmemory"), note if memory is not None else ()
    place = written_out(place)
    beside = sessions_place(place)
    if beside is None or beside.endswith(":"):
        scheme = place.partition(":")[0]
        note = f"conversations are kept in this process only: {scheme} does not save them; give checkpoints="
        return open_checkpoints("inmemory"), (note,) if scheme in STORES.added else ()
    backend, _, path = beside.partition(":")
    if backend != "sqlite":
        return open_checkpoints(beside), ()
    # The folder of a vector engine is made at its first use, by the memory or by the sessions.
    in_folder = place.partition(":")[0] in ENGINES
    return sqlite.SqliteCheckpointStore(path.removeprefix("//"), small_pages=False, make_folder=in_folder), ()


def agent_config(
    given: SessionConfig | Mapping[str, Any] | None,
    model: Model,
    *,
    compaction: CompactionConfig | Mapping[str, Any] | None,
    cache_ttl: float | None,
    tool_output_limit: int | None,
    ledger: Ledger,
) -> tuple[SessionConfig, tuple[Model, ...]]:
    """The configuration of an agent's sessions, with what was given beside it. A summary model is on the ledger.

    Returns the models that were opened by name, too: the agent closes them.
    """
    config = SessionConfig.of(given)
    changes: dict[str, Any] = {}
    if config.tool_output_limit is None:
        changes["tool_output_limit"] = tool_output_limit
    if compaction is not None:
        changes["compaction"] = CompactionConfig.of(compaction)
    if cache_ttl is not None:
        changes["cache_ttl"] = cache_ttl
    if isinstance(model, OfflineModel):  # what it says is what memory said
        changes["remember_answers"] = False
    compacts = changes.get("compaction", config.compaction)
    opened: tuple[Model, ...] = ()
    if compacts.summary_model is not None:
        writes = open_model(compacts.summary_model)
        opened = (writes,) if isinstance(compacts.summary_model, str) else ()
        changes["compaction"] = replace(compacts, summary_model=metered(writes, ledger))
    return replace(config, **changes), opened
