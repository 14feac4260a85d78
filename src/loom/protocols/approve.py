"""Deciding whether a tool may run."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from loom.core.message import JSON
from loom.core.run import RunContext

Approval: TypeAlias = bool | str
"""True: the call is made. False, or a text that says why: it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A call that a model asks for, before it is made."""

    name: str
    arguments: Mapping[str, JSON] = field(hash=False)
    call_id: str
    run: RunContext


class Approve(Protocol):
    """Decides about one call; a function, sync or async.

    Laws:
    - the calls of one answer are submitted one after the other, in order, before any of them is made;
    - whatever is not True is a refusal, and so is an error: the model gets the reason, and the turn goes on;
    - a sync function runs in a thread, so it may wait for a person.
    """

    def __call__(self, request: ToolRequest, /) -> Approval | Awaitable[Approval]:
        """Whether the call may be made."""
        ...
