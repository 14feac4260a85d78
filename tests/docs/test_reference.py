"""The reference pages name everything there is, and the page of the command line is its own help.

`LOOM_REWRITE_DOCS=1 pytest tests/docs` writes the page of the command line anew.
"""

import inspect
import os
import re
from dataclasses import fields
from typing import get_args

import loom
from loom import Agent, errors, open_memory
from loom.agent.agent import Result
from loom.api import AgentConfig, LoomApp
from loom.catalog import CACHE_FIELDS, INFO_FIELDS
from loom.context.cache.explain import MoveCause
from loom.context.cache.repair import FIXES
from loom.context.cache.simulate import FindingCause
from loom.core.scope import RunContext
from loom.tools.files import memory_files
from loom.tools.memory import memory_tools
from tests.docs.pages import REWRITE, ROOT, run_loom, shown

REFERENCE = ROOT / "docs/reference"
GROUPS = {
    "cache": ("audit", "plan", "explain", "simulate"),
    "memory": (
        *(
            "add",
            "search",
            "facts",
            "show",
            "standing",
            "history",
            "confirm",
            "reject",
            "stats",
            "forget",
            "export",
            "import",
        ),
        *("reembed", "work"),
    ),
    "store": ("init", "sweep", "verify", "copy"),
    "session": ("list", "show", "requests", "restore", "fork", "export", "compact"),
    "hook": ("install", "run"),
    "mcp": ("install",),
    "proxy": ("read",),
    "serve": ("token",),
}
COMMANDS = (
    *("", "chat", "demo", "doctor", "forget", "inspect"),
    *("serve token add", "serve token list", "serve token revoke"),
    *(line for group, names in GROUPS.items() for line in (group, *(f"{group} {name}" for name in names))),
)
OPENING = """# The command line

This page is the output of `--help`. The how-tos on the [cache bill](../how-to/cut-your-cache-bill.md), on
[remembering](../how-to/remember-and-recall.md) and on [sessions](../how-to/run-a-session.md) show the commands in use.
Every command that prints text for people prints the same as data with `--json`.

The exit code is 0 if a command succeeds, and 2, with a message, if the call or the file is wrong. `store` and `doctor` exit
with 1 if a store is damaged, incomplete or does not answer, or if LOOM_MODEL names a model that cannot be used. Progress and
errors go to the error stream, so the output can be piped.

Stored text, names and answers are printed as plain text, without characters that control a terminal or hide or reorder text.
`--json` writes such characters as escapes, and an export to a file keeps them.
"""


def named_in(page):
    return set(re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text(encoding="utf-8")))


def words_of(*pages):
    return {word for page in pages for name in named_in(page) for word in re.findall(r"\w+", name)}


def test_the_page_of_the_command_line_is_current(tmp_path):
    parts = [OPENING]
    for command in COMMANDS:
        line = f"loom {command}".strip()
        parts.append(f"## {line}\n\n```text\n{shown(run_loom(f'{line} --help', tmp_path)).strip(chr(10))}\n```\n")
    page, now = REFERENCE / "cli.md", "\n".join(parts)
    if os.environ.get(REWRITE):
        page.write_text(now, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == now


def test_every_command_is_on_the_page(tmp_path):
    def listed(command):
        _, _, commands = run_loom(f"loom {command} --help", tmp_path).partition("Commands:\n")
        return re.findall(r"^  (\w+) ", commands, re.MULTILINE)

    assert sorted(listed("")) == sorted(["chat", "demo", "doctor", "forget", "inspect", *GROUPS])
    for group, names in GROUPS.items():
        assert sorted(listed(group)) == sorted(names)


def test_every_public_name_is_explained():
    pages = [page.name for page in REFERENCE.glob("*.md")]
    assert set(loom.__all__) - words_of(*pages) == set()


def test_everything_of_an_agent_is_explained():
    values = (Result, RunContext, AgentConfig)
    fields_of = {field.name for value in values for field in fields(value)}
    arguments = {name for kind in (Agent, LoomApp) for name in inspect.signature(kind).parameters}
    members = {name for kind in (Agent, LoomApp, *values) for name in vars(kind) if not name.startswith("_")}
    tools = {tool.spec.name for tool in (*memory_tools(open_memory()), memory_files(open_memory()))}
    assert len(members) > 20
    assert {*fields_of, *arguments, *members, *tools} - words_of("agent.md") == set()


def test_every_error_is_explained():
    raised = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert len(raised) > 20
    assert raised - words_of("errors.md") == set()


def test_every_code_of_a_warning_is_explained():
    folder = ROOT / "src/loom/context"
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    warnings = set(re.findall(r'PlanWarning\("(\w+)"', source)) | set(re.findall(r'append\(\s*\("(\w+)"', source))
    notices = set(re.findall(r'Notice\("(\w+)"', source))
    assert {"ttl_snapped", "below_minimum"} <= warnings
    assert {"file", "duplicate"} <= notices
    assert warnings - named_in("cache.md") == set()
    assert notices - named_in("context.md") == set()


def test_every_cause_and_fix_is_explained():
    known = {*get_args(MoveCause), *get_args(FindingCause), *FIXES}
    assert known - named_in("cache.md") == set()


def test_every_field_of_model_data_is_explained():
    assert {*CACHE_FIELDS, *INFO_FIELDS} - named_in("model-data.md") == set()
