"""What Loom ships for tests: fakes that keep the contracts."""

from loom.testing.clock import FakeClock
from loom.testing.running import run_context
from loom.testing.scripted import ScriptedModel, ScriptFinished

__all__ = ["FakeClock", "ScriptFinished", "ScriptedModel", "run_context"]
