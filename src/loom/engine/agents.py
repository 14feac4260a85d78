"""What an agent is given beside its model: a memory that learns with it, and a place for its sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loom.core.clock import Clock
from loom.engine.checkpoints import open_checkpoints
from loom.engine.open import open_memory
from loom.engine.place_names import written_out
from loom.engine.places import ENGINES, sessions_place
from loom.memory.extract.llm import LlmExtractor
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model
from loom.providers.models.offline import OfflineModel
from loom.session.compaction.config import CompactionConfig
from loom.session.config import SessionConfig
from loom.stores.sqlite.checkpoints import SqliteCheckpointStore
from loom.testing.scripted import ScriptedModel


def agent_memory(
    where: str | Mapping[str, Any] | Memory | None, model: Model, *, namespace: str, clock: Clock | None
) -> tuple[Memory | None, tuple[str, ...]]:
    """The memory of an agent, and what to say about it. A memory that was opened elsewhere is taken as it is."""
    if where is None or isinstance(where, Memory):
        return where, ()
    wanted = where.get("with_facts", True) if isinstance(where, Mapping) else True
    real = not isinstance(model, OfflineModel | ScriptedModel)
    extractor = LlmExtractor(model) if wanted and real else None
    memory = open_memory(where, namespace=namespace, extractor=extractor, clock=clock)
    if not wanted:
        return memory, ("no facts are drawn from what is said: with_facts is off",)
    if not real:
        return memory, (f"facts are drawn by plain rules: {model.name} is no model that could find more",)
    return memory, ()


def agent_checkpoints(
    where: str | CheckpointStore | None, memory: str | Mapping[str, Any] | Memory | None
) -> CheckpointStore:
    """Where an agent saves its sessions: as told, else with the truth of its memory, else in this process."""
    if where is not None:
        return open_checkpoints(where)
    place = written_out(_place_of(memory))
    beside = sessions_place(place)
    if beside is None or beside.endswith(":"):
        return open_checkpoints("inmemory")
    backend, _, path = beside.partition(":")
    if backend != "sqlite":
        return open_checkpoints(beside)
    # The folder of a vector engine is made at its first use, whoever comes first.
    in_folder = place.partition(":")[0] in ENGINES
    return SqliteCheckpointStore(path.removeprefix("//"), small_pages=False, make_folder=in_folder)


def _place_of(memory: str | Mapping[str, Any] | Memory | None) -> str:
    """The URL of a memory, or of its truth; of one that was opened elsewhere nothing is known."""
    place: Any = memory
    if isinstance(memory, Mapping):
        place = memory.get("truth") or memory.get("url") or f"{memory.get('backend')}:{memory.get('path') or ''}"
    return place if isinstance(place, str) else "inmemory"


def agent_config(
    given: SessionConfig | Mapping[str, Any] | None,
    model: Model,
    *,
    compaction: CompactionConfig | Mapping[str, Any] | None,
    cache_ttl: float | None,
    tool_output_limit: int | None,
) -> SessionConfig:
    """How an agent's sessions behave: as told, with what was said beside it."""
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
    return replace(config, **changes)
