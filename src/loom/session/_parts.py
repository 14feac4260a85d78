"""The parts of a session, and putting them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loom.context.context import Context
from loom.context.skills import Skill
from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model
from loom.protocols.tool import Approve, Tool
from loom.session.checkpoints import Saver
from loom.session.compaction.driver import CompactionDriver
from loom.session.config import SessionConfig
from loom.session.events import Emitter
from loom.session.history import History
from loom.session.memory import SessionMemory
from loom.session.model_call import ModelCaller, Sleep
from loom.session.tools import ActiveSkills, LongResults, Toolbox
from loom.telemetry import SessionSpans
from loom.text.tokens import EstimateCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a session, as a turn uses them."""

    config: SessionConfig
    context: Context
    history: History
    emitter: Emitter
    model: ModelCaller
    compaction: CompactionDriver
    tools: Toolbox
    skills: ActiveSkills
    long_results: LongResults | None
    saver: Saver
    memory: SessionMemory | None

    @property
    def keeps_recall(self) -> bool:
        """Whether recalled memory stays in the conversation."""
        place = self.config.recall_place
        return place == "kept" or (place == "auto" and self.model.binds_thinking and bool(self.tools.specs))


def check_given(model: object, checkpoints: object, memory: object) -> None:
    """Refuse what a session cannot work with, such as the name of a model."""
    if model is None:
        raise UsageError("a session needs a model; give model=, or a ScriptedModel of loom.testing to try it out")
    for name, value, kind, opener in (
        ("model", model, Model, "open_model"),
        ("checkpoints", checkpoints, CheckpointStore, "open_checkpoints"),
        ("memory", memory, Memory, "open_memory"),
    ):
        if value is not None and not isinstance(value, kind):
            raise UsageError(
                f"{name} is {value!r}, which is not a {kind.__name__}; a session takes what is open already: give "
                f"{name}={opener}(...), with `from loom import {opener}`"
            )


def build_parts(
    *,
    scope: Scope,
    context: Context,
    store: CheckpointStore | None,
    ids: RecordIds,
    model: Model,
    config: SessionConfig,
    tools: Sequence[Tool],
    skills: Sequence[Skill],
    memory: Memory | None,
    approve: Approve | None,
    clock: Clock,
    sleep: Sleep,
) -> Parts:
    """All parts of a session, connected."""
    assert scope.session_id is not None
    emitter, spans = Emitter(scope.session_id, clock), SessionSpans(scope.session_id)
    emitter.subscribe(spans)
    history = History(context, clock=clock, ids=ids)
    limit = config.tool_output_limit if tools else None
    long_results = LongResults(history, limit, EstimateCounter()) if limit is not None else None
    active = ActiveSkills(skills)
    own = (*((long_results,) if long_results else ()), *active.tools(tools))
    toolbox = Toolbox((*tools, *own), approve=approve, emitter=emitter, clock=clock)
    active.show(context)
    context.tools += [spec for spec in toolbox.specs if spec not in context.tools]
    caller = ModelCaller(model, config=config, emitter=emitter, spans=spans, sleep=sleep)
    return Parts(
        config=config,
        context=context,
        history=history,
        emitter=emitter,
        model=caller,
        compaction=CompactionDriver(
            config.compaction, caller=caller, context=context, history=history, emitter=emitter
        ),
        tools=toolbox,
        skills=active,
        long_results=long_results,
        saver=Saver(store or _in_process(), scope, clock=clock, ids=ids),
        memory=SessionMemory(memory, scope, config, clock) if memory else None,
    )


def _in_process() -> CheckpointStore:
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore  # noqa: PLC0415  (only where no store is given)

    return MemoryCheckpointStore()
