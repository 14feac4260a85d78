"""What `loom proxy` records: usage, markers and losses of each call, for whom, and never a key."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import pytest

from loom import open_checkpoints, open_memory
from loom.core.clock import SystemClock
from loom.core.message import Usage
from loom.core.scope import Scope
from loom.errors import StoreError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.http.app import create_app
from loom.server.proxy import open_proxy
from loom.server.tokens import TokenFile
from loom.session.journal import RequestRecord, requests_of
from loom.testing.wire import AnthropicWire, ChatWire, Fault, Refused, ResponsesWire, Said, Wire, serve
from tests.commands import LOOM, run_loom

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
RULES = "Answer in one word. " * 700
COUNTS = Usage(input=4_000, output=20, cache_read=0, cache_write=3_900)


class SetClock(SystemClock):
    """A clock that shows what it is set to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 16, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


@dataclass(slots=True)
class Bench:
    """A proxy between a client and a scripted provider."""

    client: httpx.AsyncClient
    store: CheckpointStore
    provider: Any
    clock: SetClock


@asynccontextmanager
async def bench(wire: Wire, store: CheckpointStore, **options: Any) -> AsyncGenerator[Bench]:
    """A proxy that records; all is recorded when it ends."""
    clock = SetClock()
    with serve(wire) as provider:
        upstreams = dict.fromkeys(("anthropic", "openai"), provider.url.removesuffix("/v1"))
        async with open_proxy(upstreams, checkpoints=store, clock=clock, **options) as app:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield Bench(client, store, provider, clock)


async def records(store: CheckpointStore, user: str = "me", namespace: str = "default") -> list[RequestRecord]:
    """All records of a user, oldest first."""
    scope = Scope(namespace, user)
    saved = await store.sessions(scope)
    found = [one for s in saved for one in await requests_of(store, scope.for_session(s.session_id))]
    return sorted(found, key=lambda one: one.id)


def asked(*said: str, system: str = RULES) -> dict[str, Any]:
    """A request of Anthropic's with a marker on the system prompt and on the last message."""
    marker = {"cache_control": {"type": "ephemeral"}}
    messages: list[Any] = []
    for number, text in enumerate(said):
        role = "assistant" if number % 2 else "user"
        last = marker if number == len(said) - 1 else {}
        messages.append({"role": role, "content": [{"type": "text", "text": text, **last}]})
    return {
        "model": "claude-sonnet-5",
        "max_tokens": 99,
        "stream": True,
        "system": [{"type": "text", "text": system, **marker}],
        "messages": messages,
    }


async def test_a_stream_leaves_a_record_with_usage_markers_sections_and_cost() -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        b.provider.script(Said.text("Oslo.", usage=COUNTS, model="claude-sonnet-5"))
        body = asked("Capital of Norway?")
        answer = await b.client.post("/v1/messages", json=body, headers={"x-api-key": KEY})
        assert answer.status_code == 200
    (one,) = await records(store)
    assert (one.provider, one.model, one.turn, one.purpose) == ("anthropic", "claude-sonnet-5", 1, "answer")
    assert one.usage == COUNTS
    assert (one.cache_read, one.cache_write) == (0, 3_900)
    assert [marker.path for marker in one.markers] == ["system[0]", "messages[0].content[0]"]
    assert set(one.sections) == {"foundation", "convo"}
    assert one.sections["foundation"] > 2_000
    assert one.prefix
    assert one.cost is not None
    assert one.cost > 0
    assert one.loss is None
    assert one.error is None
    assert one.at == datetime(2026, 11, 16, tzinfo=UTC)


async def test_the_byte_that_moved_is_recorded_with_what_it_cost() -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        again = Usage(input=4_000, output=20, cache_read=3_900, cache_write=50)
        moved = Usage(input=4_000, output=20, cache_read=0, cache_write=3_900)
        b.provider.script(*(Said.text("Oslo.", usage=usage) for usage in (COUNTS, again, moved)))
        await b.client.post("/v1/messages", json=asked("Capital of Norway?"))
        said = ("Capital of Norway?", "Oslo.", "Of Sweden?")
        await b.client.post("/v1/messages", json=asked(*said))
        await b.client.post("/v1/messages", json=asked(*said, "Stockholm.", "And?", system="X" + RULES))
    first, second, third = await records(store)
    assert first.loss is None
    assert second.loss is None
    assert second.predicted_read is not None
    assert 3_500 < second.predicted_read <= 4_000
    assert third.loss is not None
    assert (third.loss.cause, third.loss.path) == ("block_edited", "system[0]")
    assert third.loss.byte is not None
    assert third.loss.byte < 50
    assert third.loss.tokens > 3_000
    assert [one.turn for one in (first, second, third)] == [1, 2, 3]


async def test_a_cache_that_was_left_to_expire_is_told_from_one_that_was_not() -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        for minutes in (0, 1, 30):
            b.clock.time += timedelta(minutes=minutes)
            b.provider.script(Said.text("Oslo.", usage=COUNTS))
            await b.client.post("/v1/messages", json=asked("Capital of Norway?"))
    losses = [one.loss.cause if one.loss else None for one in await records(store)]
    assert losses == [None, "unexplained", "expired"]


@pytest.mark.parametrize(
    ("wire", "path", "body"),
    [
        (ResponsesWire(), "/v1/responses", {"input": "Hello", "instructions": RULES, "stream": True}),
        (ChatWire(), "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stream": True}),
    ],
)
async def test_openai_is_recorded(wire: Wire, path: str, body: dict[str, Any]) -> None:
    store = open_checkpoints("inmemory")
    async with bench(wire, store) as b:
        b.provider.script(Said.text("Hi.", usage=Usage(input=3_000, output=9, cache_read=2_048)))
        await b.client.post(path, json={"model": "gpt-5.6", **body})
    (one,) = await records(store)
    assert one.usage is not None
    assert (one.usage.input, one.usage.output, one.cache_read) == (3_000, 9, 2_048)
    assert one.provider == "openai"
    assert one.cost is not None


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_an_answer_in_one_piece_is_recorded_compressed_or_not(encoding: str) -> None:
    store = open_checkpoints("inmemory")
    usage = {
        "input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
    }  # fmt: skip
    body = json.dumps({"id": "m", "model": "claude-sonnet-5", "usage": usage}).encode()
    async with bench(AnthropicWire(), store) as b:
        headers = {"content-encoding": encoding} if encoding else {}
        b.provider.script(Refused(200, gzip.compress(body) if encoding else body, headers))
        await b.client.post("/v1/messages", json=asked("Hello"))
    (one,) = await records(store)
    assert one.usage == Usage(input=137, output=3, cache_read=100, cache_write=30)
    assert (one.cache_read, one.cache_write, one.write_5m, one.write_1h) == (100, 30, 10, 20)


async def test_a_small_body_that_would_fill_the_memory_is_passed_on_and_not_read() -> None:
    store = open_checkpoints("inmemory")
    usage = {"input_tokens": 7, "output_tokens": 3}
    body = b" " * 70_000_000 + json.dumps({"model": "claude-sonnet-5", "usage": usage}).encode()
    bomb = gzip.compress(body, 1)
    async with bench(AnthropicWire(), store) as b:
        b.provider.script(Refused(200, bomb, {"content-encoding": "gzip"}))
        async with b.client.stream("POST", "/v1/messages", json=asked("Hello")) as response:
            assert b"".join([piece async for piece in response.aiter_raw()]) == bomb
    (one,) = await records(store)
    assert one.usage is None


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("rate_limited", "status 429: rate_limit_error"),
        ("unauthorized", "status 401: authentication_error"),
        (Refused(401, json.dumps({"error": {"type": f"no {KEY}", "message": KEY}}).encode()), "status 401: an error"),
        (Refused(500, b"<html>"), "status 500"),
        ("dropped", "RemoteProtocolError: anthropic did not answer"),
        ("error_in_stream", "overloaded_error"),
    ],
)
async def test_a_failed_call_is_recorded_by_the_name_of_its_error(line: Fault | Refused, error: str) -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        b.provider.script(line)
        await b.client.post("/v1/messages", json=asked("Hello"), headers={"x-api-key": KEY})
    (one,) = await records(store)
    assert one.error == error


async def test_a_call_without_usage_is_not_reported_and_not_zero() -> None:
    store = open_checkpoints("inmemory")
    async with bench(ChatWire(), store) as b:
        b.provider.script(
            Refused(200, b'data: {"choices": []}\n\ndata: [DONE]\n\n', {"content-type": "text/event-stream"})
        )
        await b.client.post("/v1/chat/completions", json={"model": "gpt-5.6", "messages": []})
        b.provider.script(Refused(400, b"not json"))
        await b.client.post("/v1/chat/completions", content=b"{}")
        b.provider.script(Refused(200, b'{"input_tokens": 3}'))
        await b.client.post("/v1/messages/count_tokens", json=asked("Hello"))  # calls no model: no record
    first, second = await records(store)
    assert (first.usage, first.cache_read, first.error) == (None, None, None)
    assert second.error == "status 400"


async def test_conversations_are_told_apart_by_header_or_by_their_first_message() -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        calls: list[tuple[dict[str, Any], dict[str, str]]] = [
            (asked("Hello"), {}),
            (asked("Hello", "Hi.", "More"), {}),
            ({**asked("Hello"), "messages": [{"role": "user", "content": "Hello"}]}, {}),
            (asked("Another"), {}),
            (asked("Hello"), {"x-loom-session": "s1"}),
            (asked("Other words"), {"x-loom-session": "s1"}),
            (asked("Hello"), {"x-loom-user": "ann"}),
        ]
        for body, headers in calls:
            b.provider.script(Said.text("Hi."))
            await b.client.post("/v1/messages", json=body, headers=headers)
    saved = await store.sessions(Scope("default", "me"))
    counts = {s.session_id: len(await requests_of(store, Scope("default", "me", s.session_id))) for s in saved}
    assert counts.pop("s1") == 2
    assert sorted(counts.values()) == [1, 3]
    assert all(name.startswith("proxy-") for name in counts)
    assert len(await records(store, "ann")) == 1


@pytest.mark.parametrize(
    "user_id", ['{{"device_id": "d", "session_id": "{0}"}}', "user_5f_account__session_{0}"], ids=["new", "old"]
)
async def test_claude_code_tells_its_conversations_apart_that_begin_with_the_same_words(user_id: str) -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        for session in (1, 2, 1):
            b.provider.script(Said.text("Hi."))
            metadata = {"user_id": user_id.format(f"0000000{session}-0000-4000-8000-000000000000")}
            await b.client.post("/v1/messages", json={**asked("Hello"), "metadata": metadata})
    saved = await store.sessions(Scope("default", "me"))
    counts = [len(await requests_of(store, Scope("default", "me", one.session_id))) for one in saved]
    assert sorted(counts) == [1, 2]


async def test_a_token_says_whose_record_it_is(tmp_path: Path) -> None:
    store, tokens = open_checkpoints("inmemory"), TokenFile(tmp_path / "tokens.json")
    secret = tokens.add("shop", namespace="shop", users=["bob"])
    async with bench(AnthropicWire(), store, tokens=tokens) as b:
        b.provider.script(Said.text("Hi."))
        await b.client.post("/v1/messages", json=asked("Hello"), headers={"x-loom-token": secret})
        refused = await b.client.post("/v1/messages", json=asked("Hello"))
        assert refused.status_code == 401
    assert len(await records(store, "bob", "shop")) == 1
    assert await records(store) == []


def files_with(word: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


async def test_no_key_is_stored_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="loom")
    store = open_checkpoints(f"sqlite:{tmp_path}/bot.db")
    async with bench(AnthropicWire(), store) as b:
        b.provider.script(Said.text("Hi."), "unauthorized", "dropped", "error_in_stream")
        for header in ("x-api-key", "authorization", "api-key", "cookie"):
            await b.client.post("/v1/messages", json=asked("Hello"), headers={header: f"Bearer {KEY}"})
            assert b.provider.headers[-1][header] == f"Bearer {KEY}"
    assert len(await records(store)) == 4
    await store.aclose()
    assert KEY not in caplog.text
    assert files_with(KEY.encode(), tmp_path) == []


async def test_a_store_that_fails_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __init__(self, store: CheckpointStore) -> None:
            self._store, self.fails = store, True

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def append(self, *given: Any, **options: Any) -> Any:
            if self.fails:
                self.fails = False
                raise StoreError("the disk is full; make room")
            return await self._store.append(*given, **options)

    store: Any = Broken(open_checkpoints("inmemory"))
    async with bench(AnthropicWire(), store) as b:
        for _ in range(2):
            b.provider.script(Said.text("Hi."))
            answer = await b.client.post("/v1/messages", json=asked("Hello"))
            assert answer.status_code == 200
    assert len(await records(store)) == 1
    assert "could not be recorded: the disk is full" in caplog.text


class Stuck:
    """A store that writes nothing until it is let go."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.free = store, anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, *given: Any, **options: Any) -> Any:
        await self.free.wait()
        return await self._store.append(*given, **options)


async def test_a_store_that_does_not_answer_delays_no_answer() -> None:
    store: Any = Stuck(open_checkpoints("inmemory"))
    async with bench(AnthropicWire(), store) as b:
        for _ in range(3):
            b.provider.script(Said.text("Hi."))
            assert (await b.client.post("/v1/messages", json=asked("Hello"))).status_code == 200
        assert await records(store) == []
        store.free.set()
    assert len(await records(store)) == 3


async def test_ctrl_c_loses_no_record() -> None:
    store: Any = Stuck(open_checkpoints("inmemory"))

    async def interrupted() -> None:
        async with bench(AnthropicWire(), store) as b:
            for _ in range(3):
                b.provider.script(Said.text("Hi."))
                await b.client.post("/v1/messages", json=asked("Hello"))
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # as asyncio does
            asyncio.get_running_loop().call_soon(store.free.set)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(interrupted())
    assert len(await records(store)) == 3


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"messages": 3}', b'{"messages": [1, null, "x"], "model": 7}', b"", b"[" * 9_999]
)
async def test_a_body_that_is_not_a_request_is_passed_on_and_recorded(body: bytes) -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        await b.client.post("/v1/messages", content=body)
    (one,) = await records(store)
    assert one.error


async def test_a_client_that_hangs_up_leaves_a_record_with_what_was_told_until_then() -> None:
    store = open_checkpoints("inmemory")
    with serve(AnthropicWire()) as provider:
        provider.script("stalled")
        async with open_proxy({"anthropic": provider.url}, checkpoints=store) as app:
            gone, body = anyio.Event(), json.dumps(asked("Hello")).encode()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive() -> Any:
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                if message.get("body"):
                    gone.set()

            headers = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
            scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers}
            await app(scope, receive, send)
            assert provider.hung_up.wait(60)
    (one,) = await records(store)
    assert one.error == "given up in the middle of the answer"
    assert one.usage is not None
    assert one.usage.input > 0


async def test_the_pages_show_what_was_recorded() -> None:
    store = open_checkpoints("inmemory")
    async with bench(AnthropicWire(), store) as b:
        b.provider.script(Said.text("Oslo.", usage=COUNTS), Said.text("Oslo.", usage=COUNTS), "overloaded")
        await b.client.post("/v1/messages", json=asked("Hello"))
        await b.client.post("/v1/messages", json=asked("Hello", system="X" + RULES))
        await b.client.post("/v1/messages", json=asked("Hello"))
    async with open_memory("inmemory") as memory:
        transport = httpx.ASGITransport(app=create_app(memory, store))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            page = (await client.get("/inspect/u/me/requests")).text
            assert "block edited" in page
            assert "system[0]" in page
            assert "failed: status 529: overloaded_error" in page
            one = (await records(store))[1]
            session = (await store.sessions(Scope("default", "me")))[0].session_id
            for path in (f"sessions/{session}", f"sessions/{session}/requests/{one.id}", "sessions"):
                assert (await client.get(f"/inspect/u/me/{path}")).status_code == 200, path


def test_the_command_passes_calls_on_and_records_them(tmp_path: Path) -> None:
    with serve(AnthropicWire()) as provider:
        provider.script(Said.text("Oslo.", usage=COUNTS))
        url = f"sqlite:{tmp_path}/bot.db"
        options = ["--upstream", f"anthropic={provider.url}", "--port", "0", "--json"]
        tokens = ["--tokens", str(tmp_path / "none.json")]
        command = [str(LOOM), "proxy", url, *options, *tokens]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as started:
            assert started.stdout is not None
            told = json.loads(started.stdout.readline())
            with anthropic.Anthropic(base_url=told["address"], api_key=KEY, max_retries=0) as client:
                messages: Any = [{"role": "user", "content": "Capital of Norway?"}]
                with client.messages.stream(model="claude-sonnet-5", max_tokens=9, messages=messages) as stream:
                    assert stream.get_final_text() == "Oslo."
            started.send_signal(signal.SIGINT)
        assert started.returncode in {0, 130}
        assert told["upstreams"]["anthropic"] == provider.url
    (one,) = anyio.run(_kept, url)
    assert one.usage == COUNTS


async def _kept(url: str) -> list[RequestRecord]:
    store = open_checkpoints(url)
    found = await records(store)
    await store.aclose()
    return found


def test_the_command_without_a_journal_makes_no_file(tmp_path: Path) -> None:
    command = [str(LOOM), "proxy", f"sqlite:{tmp_path}/bot.db", "--no-journal", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as started:
        assert started.stdout is not None
        assert "to anthropic, openai; nothing is recorded" in started.stdout.readline()
        started.send_signal(signal.SIGINT)
    assert started.returncode in {0, 130}
    assert [*tmp_path.iterdir()] == []


def test_the_command_refuses_other_machines_without_tokens(tmp_path: Path) -> None:
    tokens = str(tmp_path / "none.json")
    done = run_loom([LOOM, "proxy", "inmemory", "--host", "0.0.0.0", "--tokens", tokens])
    assert done.returncode == 2
    assert "there are no tokens" in done.stderr
    done = run_loom([LOOM, "proxy", "inmemory", "--upstream", "x", "--tokens", tokens])
    assert done.returncode == 2
    assert "NAME=URL" in done.stderr
