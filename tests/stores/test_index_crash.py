"""A store with an index beside it, whose processes are killed at random moments."""

import json
import subprocess
import sys

import pytest

from tests.stores.engines import needs_package

KILLS = 5


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("chroma", marks=needs_package("chromadb")),
        pytest.param("qdrant", marks=needs_package("qdrant_client")),
        pytest.param("qdrant-edge", marks=needs_package("qdrant_edge")),
    ],
)
def test_killed_processes_lose_nothing_and_the_index_is_repaired(engine, tmp_path):
    command = [sys.executable, "-m", "tests.stores.index_crash", engine, str(tmp_path), str(KILLS), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    bad = ("lost", "back again", "doubled", "not repaired", "wrong answers")
    assert {name: seen[name] for name in bad} == dict.fromkeys(bad, 0)
    assert seen["acknowledged"] >= KILLS
    assert seen.get("left in step", 0) + seen.get("left behind", 0) == KILLS + 1
