"""What tests of stores share."""

import pytest

from loom.stores.sqlite import index


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of 2, 8 and 32 numbers in SQLite's word index, so that a small history fills and joins many."""
    monkeypatch.setattr(index, "RUN", 2)
    monkeypatch.setattr(index, "LARGER_RUNS", (32, 8))
