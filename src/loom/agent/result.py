"""Result: what a run of an agent returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loom.core.event import Event, Recovery
from loom.core.message import Usage
from loom.memory.values import Recalled, Remembered
from loom.session.sending import Reply
from loom.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run ended, what it cost, what was recalled and what was remembered."""

    text: str
    stop: str
    user_id: str
    session_id: str
    turn: int
    usage: Usage
    cost: float | None
    """Of this turn, in US dollars; None where the prices of the model are not known."""
    run_id: str = ""
    """The name of this run, as tools see it in get_run_context().run_id."""
    output: Any = None
    """The answer: its text, or a value of the `output_type` that was asked for; None where that run ended early."""
    recalled: Recalled | None
    """What was found in memory, each hit with why."""
    remembered: Remembered | None
    """What was kept of this turn, and what was left out with its reason."""
    notes: tuple[str, ...] = ()
    """What a person should know: what failed or was missing, and what was done instead."""
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def cache_share(self) -> float:
        """The share of the prompt that came from the provider's cache."""
        return self.usage.cache_read / self.usage.input if self.usage.input else 0.0

    def __str__(self) -> str:
        return self.text


def result_of(session: Session, reply: Reply, *, notes: tuple[str, ...], learned: tuple[Event, ...] = ()) -> Result:
    """The result of a turn, with what was learnt in the background since the last one."""
    without = tuple(e.reason for e in reply.events if isinstance(e, Recovery) and e.action == "degrade")
    found = reply.recalled.notes if reply.recalled else ()
    kept = reply.remembered.notes if reply.remembered else ()
    return Result(
        text=reply.text,
        stop=reply.stop,
        user_id=session.scope.user_id,
        session_id=session.id,
        turn=reply.turn,
        usage=reply.usage,
        cost=reply.cost,
        run_id=reply.run_id,
        output=reply.output,
        recalled=reply.recalled,
        remembered=reply.remembered,
        notes=(*notes, *without, *found, *kept),
        events=(*reply.events, *learned),
    )
