"""Asking whether tools may run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from inspect import isawaitable, iscoroutinefunction
from logging import getLogger
from typing import Any

from anyio import to_thread

from loom.core.event import Event, ToolRefused
from loom.core.limits import MAX_VALUE, shortened
from loom.core.message import ToolCallPart
from loom.core.run import RunContext, within_run
from loom.protocols.approve import Approve, ToolRequest
from loom.session.events import Emitter

_log = getLogger(__name__)


class Approving:
    """Asks a hook about each call of an answer."""

    def __init__(self, approve: Approve | None, *, emitter: Emitter) -> None:
        self._approve = approve
        self._emitter = emitter

    async def ask(
        self, calls: Sequence[ToolCallPart], refused: dict[str, str], run: RunContext
    ) -> AsyncGenerator[Event]:
        """Add the calls that are refused to `refused`, by id, with the reason; those in it are not asked about."""
        for call in calls:
            if self._approve is None or call.id in refused:
                continue
            request = ToolRequest(name=call.name, arguments=call.arguments, call_id=call.id, run=run)
            reason = await _refusal(self._approve, request)
            if reason is not None:
                refused[call.id] = f"the call was refused, and not made: {reason}"
                yield self._emitter.emit(ToolRefused, call_id=call.id, name=call.name, reason=reason)


async def _refusal(approve: Approve, request: ToolRequest) -> str | None:
    """Why a call is refused; None where it may be made."""
    try:
        with within_run(request.run):
            answer = await _answer(approve, request)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a guard that cannot decide must not let anything through)
        _log.exception("the approval of %s failed", request.name)
        return f"its approval failed ({type(error).__name__})"
    if answer is True:
        return None
    if isinstance(answer, str) and answer.strip():
        return shortened(answer, MAX_VALUE)
    return "it was not approved"


async def _answer(approve: Approve, request: ToolRequest) -> Any:
    if iscoroutinefunction(approve) or iscoroutinefunction(getattr(approve, "__call__", None)):  # noqa: B004
        return await approve(request)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    answer = await to_thread.run_sync(approve, request, abandon_on_cancel=True)
    return await answer if isawaitable(answer) else answer
