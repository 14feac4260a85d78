"""The run that code works in: whose it is, without threading that through every signature."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from loom.core.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that a tool was called in."""

    user_id: str
    session_id: str
    namespace: str = "default"
    run_id: str = ""
    """The name of this run; no other run has it."""
    depth: int = 0
    """How many runs stand above this one: 1 for an agent that the tool of another one runs."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the caller of run() gave along."""

    @property
    def scope(self) -> Scope:
        """Whose data it is, for a store."""
        return Scope(self.namespace, self.user_id, self.session_id)


_current: ContextVar[RunContext | None] = ContextVar("loom_run_context", default=None)


def current_run() -> RunContext | None:
    """The run that calls; None where no run does."""
    return _current.get()


@contextmanager
def within_run(context: RunContext) -> Generator[RunContext]:
    """Make a run the current one. Each call of a tool has a task of its own, so runs never see each other."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)
