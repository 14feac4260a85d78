"""A coding agent with its own tools. What the model says is scripted, so that it runs without a key.

It prints:

    run_tests: AssertionError: add is wrong
    run_tests: passed
    Fixed: add() subtracted.
"""

import subprocess
import sys
from pathlib import Path

from loom import Agent, ToolCallPart, ToolError
from loom.testing import ScriptedModel


def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text that occurs once in a file."""
    if (text := Path(path).read_text()).count(old) != 1:
        raise ToolError(f"{old!r} occurs {text.count(old)} times in {path}; give a text that occurs once")
    Path(path).write_text(text.replace(old, new))
    return f"{path} changed"


def run_tests() -> str:
    """Run the tests of the project."""
    done = subprocess.run([sys.executable, "calc.py"], capture_output=True, text=True, check=False)
    print("run_tests:", said := "passed" if done.returncode == 0 else done.stderr.splitlines()[-1])
    return said


Path("calc.py").write_text("def add(a, b):\n    return a - b\n\n\nassert add(2, 2) == 4, 'add is wrong'\n")
edit = ToolCallPart("2", "edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
says = [ToolCallPart("1", "run_tests", {}), edit, ToolCallPart("3", "run_tests", {}), "Fixed: add() subtracted."]
with Agent("You fix code.", model=ScriptedModel(says), tools=[edit_file, run_tests]).blocking as agent:
    print(agent.run("Make the test pass.", user_id="dev"))
