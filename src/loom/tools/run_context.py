"""The run that a tool was called in, without passing it through every signature."""

from __future__ import annotations

from loom.core.run import RunContext, current_run
from loom.errors import UsageError


def get_run_context() -> RunContext:
    """The run of the tool that calls this, sync or async, however deep.

    Raises:
        UsageError: it was called outside a run.
    """
    context = current_run()
    if context is None:
        raise UsageError(
            "not inside a run; get_run_context() is for code that a tool runs (in a test: "
            "with loom.testing.run_context(user_id=...))"
        )
    return context


__all__ = ["RunContext", "get_run_context"]
