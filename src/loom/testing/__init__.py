"""Helpers for tests: a scripted model, a fake clock, a run context, real servers, and conformance suites."""

from loom.testing.fakes import FakeClock, ScriptedModel, ScriptFinished, run_context

__all__ = ["FakeClock", "ScriptFinished", "ScriptedModel", "run_context"]
