"""Google's ADK needs another google-genai than Loom's `gemini` extra, so its tests run in an environment of their own.

The environment is made once, under `.adk` in the root of the project: `uv` takes the packages from its cache or from
the network. Where neither has them the tests are skipped; in CI they fail.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".adk"


def environment() -> Path | str:
    """The Python of the environment; a text that says why there is none."""
    python = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["adk"], "pytest>=9.0"]
    stamp = FOLDER / "made-of"
    if stamp.is_file() and stamp.read_text("utf-8") == "\n".join(wanted):
        return python
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        return "uv is not installed, so that no environment with google-adk can be made"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for command in (
        ["venv", "--quiet", "--clear", "--python", version, str(FOLDER)],
        ["pip", "install", "--quiet", "--python", str(python), *wanted],
    ):
        made = subprocess.run([uv, *command], capture_output=True, text=True, check=False)
        if made.returncode:
            return f"an environment with google-adk cannot be made: {made.stderr.strip()}"
    stamp.write_text("\n".join(wanted), "utf-8")
    return python


def test_the_services_of_adk_in_an_environment_of_their_own():
    python = environment()
    if isinstance(python, str):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(python)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    options = ["-q", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [str(python), "-m", "pytest", *options, str(ROOT / "tests/adapters/in_adk.py")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
