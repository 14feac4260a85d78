"""A run context for tests of tools."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from loom.core.run import RunContext, within_run


@contextmanager
def run_context(
    *,
    user_id: str = "default",
    session_id: str = "test-session",
    namespace: str = "default",
    run_id: str = "test-run",
    metadata: Mapping[str, Any] | None = None,
) -> Generator[RunContext]:
    """Run the block as a tool of an agent: get_run_context() returns this run, in sync and async code."""
    run = RunContext(
        user_id=user_id, session_id=session_id, namespace=namespace, run_id=run_id, metadata=dict(metadata or {})
    )
    with within_run(run):
        yield run
