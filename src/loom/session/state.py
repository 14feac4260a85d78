"""Everything one session is made of, shared by the modules that run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loom.context.context import Context
from loom.core.checkpoint import Checkpoint, LogEntry
from loom.core.message import Usage
from loom.core.scope import Scope
from loom.protocols.model import Model
from loom.session.approving import Approving
from loom.session.calling import Caller
from loom.session.compacting import Compacting
from loom.session.config import SessionConfig
from loom.session.events import Emitter
from loom.session.history import History
from loom.session.recalling import Remembering
from loom.session.saving import Saver
from loom.session.skills import ActiveSkills
from loom.session.spilling import Spilling
from loom.session.tools import Toolbox


@dataclass(slots=True, kw_only=True)
class State:
    """The parts of a session, and what it counts."""

    scope: Scope
    config: SessionConfig
    context: Context
    history: History
    emitter: Emitter
    caller: Caller
    compacting: Compacting
    tools: Toolbox
    approving: Approving
    skills: ActiveSkills
    saver: Saver
    memory: Remembering | None
    spilling: Spilling | None = None
    turn: int = 0
    """Finished turns."""
    usage: Usage = field(default_factory=Usage)
    """Of all calls, compactions included."""
    unfinished: bool = False
    """Whether the log ends inside a turn."""
    begun: tuple[LogEntry, ...] = ()
    """What the log held before the first turn."""

    @property
    def keeps_recall(self) -> bool:
        """Whether what is recalled stays in the conversation."""
        place = self.config.recall_place
        return place == "kept" or (place == "auto" and self.caller.binds_thinking and bool(self.tools.specs))

    @property
    def is_saved(self) -> bool:
        """Whether everything is durable."""
        return self.saver.is_saved(self.history, usage=self.usage, pins=tuple(self.compacting.pins))

    def is_durable(self, position: int) -> bool:
        """Whether the log is saved beyond a position."""
        return self.saver.last is not None and self.saver.last.position > position

    def become(self, checkpoint: Checkpoint | None, log: Sequence[LogEntry]) -> None:
        """Take on what a checkpoint says; None is the very beginning."""
        # What stood behind the conversation while the model thought is not in the log, so the thinking fits no more.
        tail = self.memory is not None and not self.keeps_recall
        self.history.load(log, checkpoint.compactions if checkpoint else (), trust_thinking=not tail)
        self.turn = checkpoint.turn if checkpoint else 0
        self.usage = checkpoint.usage if checkpoint else Usage()
        self.unfinished = checkpoint.unfinished if checkpoint else False
        self.compacting.pins = dict.fromkeys(checkpoint.pins if checkpoint else ())
        self.compacting.forget()
        self.caller.meter.forget()

    def use(self, model: Model) -> None:
        """Go on with another model: the same history, and everything that depends on the model made anew."""
        self.caller.use(model)
        self.history.load(self.history.log, self.history.applied, trust_thinking=False)
        self.compacting.rebuild()

    def clear(self) -> None:
        """Hold nothing of the conversation any more."""
        self.history.load((), ())
        self.compacting.forget()
        self.caller.meter.forget()

    def follow(self, other: State) -> None:
        """Take on what another session holds, which began with the same log."""
        self.history.load(other.history.log, other.history.applied)
        self.turn, self.usage, self.unfinished = other.turn, other.usage, other.unfinished
        self.compacting.pins = dict(other.compacting.pins)

    async def save(self) -> Checkpoint:
        """Make everything so far durable."""
        pins = tuple(self.compacting.pins)
        return await self.saver.save(
            self.history, turn=self.turn, usage=self.usage, pins=pins, unfinished=self.unfinished
        )
