"""Claude Code through the proxy: the program that comes with `claude-agent-sdk`, as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import claude_agent_sdk
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, TextBlock, query

from loom import open_checkpoints, open_memory
from loom.core.message import TextPart, ToolCallPart
from loom.server.proxy import Features
from loom.testing.wire import AnthropicWire, Refused, Said, WireServer, serve
from tests.server.proxying import proxied

KEY = "sk-test-secret-0123456789"
PROGRAM = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
COUNT = ToolCallPart("toolu_1", "Bash", {"command": "seq 1 3000; echo error: it broke", "description": "Count"})


def run(address: str, folder: Path, prompt: str, **options: Any) -> list[Any]:
    """Ask Claude Code something; what it says, message by message."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    env = {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": KEY,
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }

    async def ask() -> list[Any]:
        chosen = ClaudeAgentOptions(
            env=env, cwd=folder, model="claude-sonnet-5", allowed_tools=["Bash"], setting_sources=[], **options
        )
        return [message async for message in query(prompt=prompt, options=chosen)]

    return anyio.run(ask)


def words(messages: list[Any]) -> list[str]:
    """The texts of the model."""
    blocks = [block for message in messages if isinstance(message, AssistantMessage) for block in message.content]
    return [block.text for block in blocks if isinstance(block, TextBlock)]


def through(check: Callable[[WireServer, str], None], **options: Any) -> None:
    """A scripted provider behind a proxy."""
    done = Said.text("Done.", model="claude-sonnet-5")
    with (
        serve(AnthropicWire(), default=done) as provider,
        proxied({"anthropic": provider.url}, **options) as address,
    ):
        check(provider, address)


def test_the_program_is_in_the_package() -> None:
    assert PROGRAM.exists(), "claude-agent-sdk comes with the program; install the wheel of this platform"


def test_claude_code_calls_a_tool_and_gets_over_an_error(tmp_path: Path) -> None:
    def check(provider: WireServer, address: str) -> None:
        provider.script(Refused(529, b"{}"), Said.calls(TextPart("Looking."), COUNT))
        messages = run(address, tmp_path, "Count.")
        assert words(messages) == ["Looking.", "Done."]
        assert isinstance(messages[-1], ResultMessage)
        assert not messages[-1].is_error
        first, again, second = provider.requests
        assert first["messages"] == again["messages"]
        assert second["messages"][: len(first["messages"]) - 1] == first["messages"][:-1]
        assert "error: it broke" in json.dumps(second)
        assert "[loom:" not in json.dumps(second)

    through(check)


def test_claude_code_gets_memory_and_short_results_and_can_read_them_back(tmp_path: Path) -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    anyio.run(_remember, memory)

    def check(provider: WireServer, address: str) -> None:
        provider.script(Said.calls(TextPart("Looking."), COUNT))
        assert words(run(address, tmp_path, "Where is the red bicycle? Count to find it.")) == ["Looking.", "Done."]
        first, second = provider.requests
        assert "harbour" in json.dumps(first["messages"][0])
        assert second["messages"][0] == first["messages"][0]
        short = next(b for m in second["messages"] for b in m["content"] if "tool_use_id" in b)["content"]
        assert "error: it broke" in short
        assert "1500" not in short
        command = short.rpartition("Read more: `")[2].removesuffix("`]").replace("1-200", "1500-1501")
        provider.script(Said.calls(ToolCallPart("toolu_2", "Bash", {"command": command, "description": "Read"})))
        run(address, tmp_path, "Read the rest of it.")
        read = next(b for m in provider.requests[-1]["messages"] for b in m["content"] if "tool_use_id" in b)
        assert read["content"] == "1500\n1501"

    through(check, checkpoints=store, features=Features(memory=memory, shorten_tools=True, markers=True))


async def _remember(memory: Any) -> None:
    await memory.remember("The red bicycle is in the harbour.", user_id="me")
