"""What tests of stores share."""

import pytest

from loom.stores import _search


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of 2, 8 and 32 numbers in a word index, so that a small history fills and joins many."""
    monkeypatch.setattr(_search, "RUN", 2)
    monkeypatch.setattr(_search, "LARGER_RUNS", (32, 8))
