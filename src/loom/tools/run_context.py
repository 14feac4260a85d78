"""Who a tool works for: the scope of the run, without threading it through every signature."""

from __future__ import annotations

from loom.core.run import RunContext, current_run
from loom.errors import UsageError


def get_run_context() -> RunContext:
    """The run that calls; inside any tool, sync or async, however deep.

    Raises:
        UsageError: no run calls.
    """
    context = current_run()
    if context is None:
        raise UsageError(
            "there is no run here; get_run_context() is for code that a tool runs (in a test: "
            "with loom.testing.run_context(user_id=...))"
        )
    return context


__all__ = ["RunContext", "get_run_context"]
