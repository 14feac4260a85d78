"""What Loom ships for tests: fakes that keep the contracts."""

from loom.testing.clock import FakeClock

__all__ = ["FakeClock"]
