"""A turn that was cut off: what began it, and what is missing in it."""

from __future__ import annotations

from loom.core.checkpoint import LoggedMessage
from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart
from loom.errors import UsageError
from loom.session.history import History
from loom.session.state import State

_INTERRUPTED = "the run was interrupted before this call answered; whether it had an effect is not known"
NOT_USABLE = "This is not a usable answer: "
"""How a message begins that asks a model for its answer once more."""


def cut_turn(state: State) -> LoggedMessage:
    """The message that began the turn which a session was cut off in.

    Raises:
        UsageError: the last turn is complete, or there is none.
    """
    messages = [entry for entry in state.history.log if isinstance(entry, LoggedMessage)]
    began = next((entry for entry in reversed(messages) if _is_request(entry.message)), None)
    waits = bool(messages) and any(isinstance(p, ToolResultPart) for p in messages[-1].message.parts)
    if began is None or not (state.unfinished or waits or interrupted(state.history)):
        raise UsageError(
            f"session {state.scope.session_id!r} has nothing to resume: "
            + ("its last turn is complete; give it a message" if began else "nothing was said in it yet")
        )
    return began


def interrupted(history: History) -> list[Message]:
    """Results for the calls of the last message that have none."""
    last = history.shown[-1].message if history.shown else None
    calls = [part for part in last.parts if isinstance(part, ToolCallPart)] if last else []
    results = tuple(ToolResultPart(call.id, (TextPart(_INTERRUPTED),), is_error=True) for call in calls)
    return [Message("user", results)] if results else []


def _is_request(message: Message) -> bool:
    """Whether a user said it: not the result of a tool, and not a demand for an answer of another form."""
    if message.role != "user" or message.text.startswith(NOT_USABLE):
        return False
    return not any(isinstance(part, ToolResultPart) for part in message.parts)
