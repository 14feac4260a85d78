"""What a new process loads before it does its work: counted in modules, which no other process on the machine changes."""

import subprocess
import sys

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
SHOWN = {"typer", "shellingham", "annotated_doc", "rich", "pygments", "markdown_it", "mdurl", "attr", "attrs"}
"""Packages that show the help of a command; rich loads `attr` where that is installed."""
READ = {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
"""Packages with which typer reads the values of options."""
HEAVY = {"asyncio", "numpy", "apsw", "ssl", "http", "email", "urllib.request", "tempfile"}


def loaded(program, folder):
    """The names of all modules that a process has loaded at its end."""
    program += "\nimport sys\nsys.stderr.write(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder)
    return set(done.stderr.split("\n"))


def packages(modules):
    """The packages among them that do not come with Python, Loom aside."""
    tops = {name.partition(".")[0] for name in modules}
    return {name for name in tops if not name.startswith("_")} - sys.stdlib_module_names - {"loom", "sitecustomize"}


def ours(modules):
    """The modules of Loom among them, without those that only hold others."""
    return {name for name in modules if name.partition(".")[0] == "loom"} - {"loom.text", "loom.core", "loom.memory"}


def test_an_agent_is_imported_without_what_its_first_turn_needs(tmp_path):
    modules = loaded(AGENT, tmp_path)
    assert packages(modules) <= SHARED
    assert not {*HEAVY, *READ, "importlib.metadata"} & modules
    assert len(ours(modules)) <= 125
    assert len(modules) <= 275


def test_a_memory_is_opened_without_sessions_and_the_context_engine(tmp_path):
    modules = loaded("from loom import open_memory, open_memory_sync", tmp_path)
    assert packages(modules) <= SHARED
    assert not {*HEAVY, *READ, "importlib.metadata"} & modules
    assert not {
        name for name in modules if name.startswith(("loom.context", "loom.session.", "loom.agent", "loom.traces"))
    }
    assert len(modules) <= 225


def test_the_list_of_commands_is_shown_without_what_they_need(tmp_path):
    modules = loaded(HELP, tmp_path)
    assert packages(modules) <= SHOWN
    assert not {*HEAVY, *READ, "importlib.metadata"} & modules
    assert ours(modules) <= {"loom", "loom.cli", "loom.cli.app", "loom.cli.output", "loom.errors", "loom.text.fence"}
    assert len(modules) <= 340


def test_the_help_of_a_command_is_shown_without_what_it_needs(tmp_path):
    modules = loaded(MEMORY_HELP, tmp_path)
    assert packages(modules) <= SHARED | SHOWN | READ
    assert not {"asyncio", "numpy", "apsw"} & modules
    assert ours(modules) <= {
        "loom",
        "loom.cli",
        "loom.cli.app",
        "loom.cli.memory",
        "loom.cli.output",
        "loom.errors",
        "loom.text.fence",
    }


def test_a_turn_loads_no_part_that_it_does_not_use(tmp_path):
    modules = loaded(TURN, tmp_path)
    assert packages(modules) <= SHARED | {"apsw", "numpy"}
    assert not {*READ, "http", "email", "urllib.request", "importlib.metadata"} & modules
    unused = {"loom.providers.models.openai", "loom.providers.models.local", "loom.stores.files.checkpoints"}
    assert not unused & modules


def test_the_list_of_commands_shows_what_each_command_says_of_itself():
    listed = typer.main.get_command(app).commands
    assert list(listed) == list(COMMANDS)
    for name, command in listed.items():
        assert command.help == command.command.help.partition("\n\n")[0], name
        assert command.command.name == name


def test_a_late_module_is_imported_when_one_of_its_names_is_used(tmp_path):
    program = """
import sys
from loom.core.doors import Late
csv = Late("csv")
assert "csv" not in sys.modules
assert csv.QUOTE_ALL == 1 and "csv" in sys.modules
assert vars(csv)["QUOTE_ALL"] == 1, "the next use asks nobody"
try:
    csv.nothing
except AttributeError as error:
    assert "csv" in str(error)
"""
    assert "csv" in loaded(program, tmp_path)
