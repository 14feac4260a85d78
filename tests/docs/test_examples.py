"""Every example runs in an empty folder, without a key, and prints what its docstring says; twice."""

import ast
import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.docs.pages import REWRITE, ROOT, shown

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_OUTPUT = re.compile(r"(?<=It prints:\n\n)(?: {4}.*\n|\n(?= ))+")


def expected(source):
    found = _OUTPUT.search(ast.get_docstring(ast.parse(source), clean=False) or "")
    assert found, "the docstring does not say what is printed"
    return textwrap.dedent(found[0])


def run(example, folder):
    keys = {name for name in os.environ if name.endswith("_API_KEY") or name.startswith("LOOM_")}
    env = {name: value for name, value in os.environ.items() if name not in keys}
    paths = [str(ROOT / "src"), env.get("PYTHONPATH", "")]
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1", "HOME": str(folder)}
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=folder, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(example, tmp_path):
    source = example.read_text(encoding="utf-8")
    printed = shown(run(example, tmp_path))
    if os.environ.get(REWRITE):
        new = textwrap.indent(printed, "    ")
        example.write_text(source.replace(textwrap.indent(expected(source), "    "), new, 1), encoding="utf-8")
        return
    assert printed == expected(source)
    assert shown(run(example, tmp_path)) == printed, "what the first run left behind changes the second"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_is_short_and_on_the_page_of_examples(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
    assert f"({example.name})" in (ROOT / "examples/README.md").read_text("utf-8")


def test_there_are_five():
    assert len(EXAMPLES) == 5
