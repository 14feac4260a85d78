"""Helpers for tests: a scripted model, a fake clock, a run context, real servers, and conformance suites."""

from loom.testing.clock import FakeClock
from loom.testing.running import run_context
from loom.testing.scripted import ScriptedModel, ScriptFinished

__all__ = ["FakeClock", "ScriptFinished", "ScriptedModel", "run_context"]
