"""Putting a session together."""

from __future__ import annotations

from collections.abc import Sequence

from loom.context.context import Context
from loom.context.prompt import Prompt
from loom.context.skills import Skill
from loom.core.clock import Clock
from loom.core.ids import RecordIds
from loom.core.message import Message
from loom.core.scope import Scope
from loom.errors import UsageError
from loom.memory.memory import Memory
from loom.protocols.approve import Approve
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.model import Model
from loom.protocols.tool import Tool
from loom.session.approving import Approving
from loom.session.calling import Caller, Sleep
from loom.session.compacting import Compacting
from loom.session.config import SessionConfig
from loom.session.events import Emitter
from loom.session.history import History
from loom.session.recalling import Remembering
from loom.session.saving import Saver
from loom.session.skills import ActiveSkills
from loom.session.spilling import Spilling
from loom.session.state import State
from loom.session.tools import Toolbox
from loom.telemetry.spans import SessionSpans
from loom.tokens import EstimateCounter


def check_given(model: object, checkpoint: object, memory: object) -> None:
    """Refuse what a session cannot work with, such as the name of a model, before anything is made of it."""
    if model is None:
        raise UsageError("a session needs a model; give model=, or a ScriptedModel of loom.testing to try it out")
    for name, value, kind, opener in (
        ("model", model, Model, "open_model"),
        ("checkpoint", checkpoint, CheckpointStore, "open_checkpoints"),
        ("memory", memory, Memory, "open_memory"),
    ):
        if value is not None and not isinstance(value, kind):
            raise UsageError(
                f"{name} is {value!r}, which is no {kind.__name__}; a session takes what is open already: give "
                f"{name}={opener}(...), with `from loom import {opener}`"
            )


def applied(prompt: object, context: Context) -> None:
    """Make a context show a prompt that was built."""
    if not isinstance(prompt, Prompt):
        raise UsageError(f"prompt is {type(prompt).__name__}; give what PromptBuilder.build() returns")
    prompt.apply(context)


def build_state(
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
) -> State:
    """Everything a session is made of, wired up."""
    assert scope.session_id is not None
    emitter, spans = Emitter(scope.session_id, clock), SessionSpans(scope.session_id)
    emitter.subscribe(spans)
    history = History(context, clock=clock, ids=ids)
    limit = config.tool_output_limit if tools else None
    spilling = Spilling(history, limit, EstimateCounter()) if limit is not None else None
    active = ActiveSkills(skills)
    own = (*((spilling,) if spilling else ()), *active.tools(tools))
    toolbox = Toolbox((*tools, *own), emitter=emitter, clock=clock)
    active.show(context)
    context.tools += [spec for spec in toolbox.specs if spec not in context.tools]
    begun = [Message(entry.show().role or "user", entry.show().parts) for entry in context.convo]
    context.convo.clear()
    for message in begun:
        history.append(message)
    caller = Caller(model, config=config, emitter=emitter, spans=spans, sleep=sleep)
    return State(
        scope=scope,
        config=config,
        context=context,
        history=history,
        begun=tuple(history.log),
        emitter=emitter,
        caller=caller,
        compacting=Compacting(
            config.compaction,
            caller=caller,
            context=context,
            history=history,
            emitter=emitter,
            clock=clock,
            ids=ids,
        ),
        tools=toolbox,
        approving=Approving(approve, emitter=emitter),
        skills=active,
        saver=Saver(store or _in_process(), scope, clock=clock, ids=ids),
        spilling=spilling,
        memory=Remembering(memory, scope, config, clock) if memory else None,
    )


def _in_process() -> CheckpointStore:
    from loom.stores.inmemory.checkpoints import MemoryCheckpointStore  # noqa: PLC0415  (only where no store is given)

    return MemoryCheckpointStore()
