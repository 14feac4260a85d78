"""What a new process loads before it does its work: counted in modules, which no other process on the machine changes."""

import subprocess
import sys

import pytest
import typer

from loom.cli.app import COMMANDS, app

AGENT = "from loom import Agent"
COMMAND = """
import sys
from loom.cli import main
sys.argv = {words!r}
try:
    main()
except SystemExit as end:
    assert not end.code
"""
HELP = COMMAND.format(words=["loom", "--help"])
MEMORY_HELP = COMMAND.format(words=["loom", "memory", "--help"])
TURN = """
from loom import Agent
from loom.testing import ScriptedModel
agent = Agent("Be brief.", model=ScriptedModel(["Hello."]), memory="sqlite:memory.db")
agent.run_sync("I live in Lisbon.", user_id="ann")
agent.close()
"""
SHARED = {"anyio", "sniffio", "typing_extensions", "idna"}
"""Packages that every use of Loom needs."""
SHOWN = {"typer", "shellingham", "rich", "pygments", "markdown_it", "mdurl", "colorama", "attr", "attrs"}
"""Packages that show the help of a command; `attr` is loaded by rich where it is installed."""
HEAVY = {
    "asyncio",
    "numpy",
    "pydantic",
    "apsw",
    "ssl",
    "http",
    "email",
    "urllib.request",
    "tempfile",
    "importlib.metadata",
}


def loaded(program, folder):
    """The names of all modules that a process has loaded at its end."""
    program += "\nimport sys\nsys.stderr.write(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder)
    return set(done.stderr.split("\n"))


def packages(modules):
    """The packages among them that do not come with Python, Loom aside."""
    tops = {name.partition(".")[0] for name in modules}
    return {name for name in tops if not name.startswith("_")} - sys.stdlib_module_names - {"loom", "sitecustomize"}


def test_an_agent_is_imported_without_what_its_first_turn_needs(tmp_path):
    modules = loaded(AGENT, tmp_path)
    assert packages(modules) <= SHARED
    assert not HEAVY & modules
    assert len({name for name in modules if name.startswith("loom")}) <= 125
    assert len(modules) <= 275


@pytest.mark.parametrize(("program", "most"), [(HELP, 10), (MEMORY_HELP, 14)], ids=["loom", "loom memory"])
def test_help_is_shown_without_what_the_commands_need(tmp_path, program, most):
    modules = loaded(program, tmp_path)
    assert packages(modules) <= SHARED | SHOWN
    assert not HEAVY & modules
    assert len({name for name in modules if name.startswith("loom")}) <= most


def test_a_turn_loads_no_part_that_it_does_not_use(tmp_path):
    modules = loaded(TURN, tmp_path)
    assert packages(modules) <= SHARED | {"apsw", "numpy", "opentelemetry"}
    assert not {"pydantic", "numpy.ma", "http.client", "urllib.request", "importlib.metadata", "tomllib"} & modules
    unused = {"loom.providers.models.openai", "loom.providers.models.local", "loom.stores.files.checkpoints"}
    assert not unused & modules


def test_the_list_of_commands_shows_what_each_command_says_of_itself():
    listed = typer.main.get_command(app).commands
    assert list(listed) == list(COMMANDS)
    for name, command in listed.items():
        assert command.help == command.command.help.partition("\n\n")[0], name
        assert command.command.name == name
