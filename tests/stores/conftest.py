"""What tests of stores share."""

import pytest

from loom.stores import _search
from loom.stores.sqlite import index


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of 2, 8 and 32 numbers in a word index, so that a small history fills and joins many.

    SQLite indexes three numbers at a time, and keeps five in a block.
    """
    monkeypatch.setattr(index, "TAIL", 3)
    monkeypatch.setattr(index, "BLOCK", 5)
    monkeypatch.setattr(index, "SKETCHES", (index.SKETCH_WORDS * 8 + 1) * 5)
    monkeypatch.setattr(_search, "RUN", 2)
    monkeypatch.setattr(_search, "LARGER_RUNS", (32, 8))
