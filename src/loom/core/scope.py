"""Scope: whose data it is; and the run that code works in."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from loom.core.checks import check_id
from loom.errors import ScopeRequired


@dataclass(frozen=True, slots=True)
class Scope:
    """One user of one namespace, or one session of that user. There is no scope for all users.

    Ids are kept exactly as given: no trimming, no case folding, no Unicode normalisation, and no
    character has a meaning. Each takes at most 512 bytes of UTF-8.
    """

    namespace: str = "default"
    user_id: str = ""
    session_id: str | None = None

    def __post_init__(self) -> None:
        _check("namespace", self.namespace)
        _check("user_id", self.user_id)
        if self.session_id is not None:
            _check("session_id", self.session_id)

    def for_session(self, session_id: str) -> Scope:
        """The same user, narrowed to one session."""
        return replace(self, session_id=session_id)

    def for_user(self) -> Scope:
        """The same user, all sessions."""
        if self.session_id is None:
            return self
        user = object.__new__(Scope)  # its ids were checked when this scope was made, and a turn asks often
        object.__setattr__(user, "namespace", self.namespace)
        object.__setattr__(user, "user_id", self.user_id)
        object.__setattr__(user, "session_id", None)
        return user

    def covers(self, other: Scope) -> bool:
        """Whether `other` lies inside this scope: the same user, and the same session if this one names one."""
        if (self.namespace, self.user_id) != (other.namespace, other.user_id):
            return False
        return self.session_id is None or self.session_id == other.session_id

    def key(self) -> str:
        """This scope as one text. Different scopes give different keys, and none is the start of another."""
        # Each part carries its length, so no character inside a part can move a boundary.
        session = "-" if self.session_id is None else f"{len(self.session_id)}:{self.session_id}"
        return f"{len(self.namespace)}:{self.namespace}{len(self.user_id)}:{self.user_id}{session}"


_EXAMPLES = {"namespace": "default", "user_id": "alice", "session_id": "monday"}


def _check(name: str, value: str | None) -> None:
    if value is None or value == "" or (isinstance(value, str) and value.isspace()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScopeRequired(
            f"{name} is {value!r}; name it, so that it is clear whose data it is: {name}={_EXAMPLES[name]!r}"
        )
    check_id(value, name)


# The run that code works in: whose it is, without threading that through every signature.


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
