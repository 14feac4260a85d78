"""What a terminal cannot show."""

import os
import subprocess
import sys
from pathlib import Path

LOOM = Path(sys.executable).parent / "loom"


def test_a_terminal_that_cannot_show_a_character_gets_another(tmp_path):
    db = f"sqlite:{tmp_path}/m.db"
    for words in (["add", "I live in Z\u00fcrich \U0001f3d4"], ["search", "Z\u00fcrich"]):
        done = subprocess.run(
            [LOOM, "memory", *words, "--url", db],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            check=False,
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert b"Z?rich ?" in done.stdout
