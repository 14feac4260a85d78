"""The features of the proxy, with the clients of the providers: what is sent, what comes back, and what is kept."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import anthropic
import anyio
import httpx
import httpx2
import openai
import pytest

from benchmarks.proxy_traces import agent_trace
from loom import Scope, open_checkpoints, open_memory
from loom.core.log import Checkpoint
from loom.core.message import TextPart, ThinkingPart, ToolCallPart
from loom.errors import StoreError
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.proxy import Features, open_proxy
from loom.server.tokens import TokenFile
from loom.session.journal import RequestRecord, requests_of
from loom.testing.wire import AnthropicWire, ChatWire, Refused, ResponsesWire, Said, Wire, WireServer, serve
from tests.commands import LOOM, run_loom
from tests.server.proxying import answer_of, proxied, raw_provider
from tests.timing import until

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
RULES = "Answer in one word. " * 1_500
LONG = "\n".join(f"src/a/{n}.py:{n}: a line that was found" for n in range(400)) + "\nerror: it broke here"
NOTE = "Your memory of this user."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(slots=True)
class Bench:
    """A proxy with features between a client and a scripted provider."""

    http: httpx2.AsyncClient
    provider: WireServer

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The bodies that the provider got."""
        return self.provider.requests


@asynccontextmanager
async def bench(
    store: CheckpointStore, features: Features, wire: Wire | None = None, **more: Any
) -> AsyncGenerator[Bench]:
    """A proxy that runs; what it has to record is recorded when it ends."""
    with serve(wire or AnthropicWire(), default=Said.text("Fine.", model="claude-sonnet-5")) as provider:
        upstreams = dict.fromkeys(("anthropic", "openai"), provider.url.removesuffix("/v1"))
        async with open_proxy(upstreams, checkpoints=store, features=features, **more) as app:
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
                yield Bench(client, provider)


def claude(b: Bench, **headers: str) -> anthropic.AsyncAnthropic:
    """Anthropic's own client, which talks to the proxy."""
    return anthropic.AsyncAnthropic(
        api_key=KEY, base_url="http://localhost", http_client=b.http, max_retries=2, default_headers=headers
    )


async def send(client: anthropic.AsyncAnthropic, body: Any) -> tuple[str, Mapping[str, str]]:
    """The words of the answer, which is a stream, and its headers."""
    async with client.messages.stream(**body) as stream:
        return await stream.get_final_text(), stream.response.headers


def tools(*results: Any) -> Any:
    """A request with a call and its result for each of these."""
    return {**ask(), "messages": tool_turns(*results)}


def ask(*said: Any, **more: Any) -> Any:
    """A request whose messages are these, the user's first."""
    messages = [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(said)]
    return {"model": "claude-sonnet-5", "max_tokens": 99, "system": RULES, "messages": messages, **more}


def tool_turns(*results: Any) -> list[dict[str, Any]]:
    """A question, and a call with its result for each of these."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find it."}]
    for n, result in enumerate(results):
        call = {"type": "tool_use", "id": f"t{n}", "name": "bash", "input": {"command": "grep"}}
        messages.append({"role": "assistant", "content": [call]})
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": result}]}
        )
    return messages


async def records(store: CheckpointStore, user: str = "me") -> list[RequestRecord]:
    """All records of a user, oldest first."""
    scope = Scope("default", user)
    saved = await store.sessions(scope)
    found = [one for s in saved for one in await requests_of(store, scope.for_session(s.session_id))]
    return sorted(found, key=lambda one: one.id)


# Memory.


async def test_memory_is_added_behind_the_message_and_comes_again_byte_by_byte() -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    async with memory:
        await memory.remember("I keep my bicycle in the harbour.", user_id="ann")
        async with bench(store, Features(memory=memory)) as b:
            client = claude(b, **{"x-loom-user": "ann"})
            await send(client, ask("Where is my bicycle?"))
            await send(client, ask("Where is my bicycle?", "Fine.", "And the key of it?"))
            said, _ = await send(client, ask("Where is my bicycle?", "Fine.", "And the key of it?"))
            assert said == "Fine."
        first, second, again = (body["messages"] for body in b.sent)
        question, added = first[0]["content"]
        assert question == {"type": "text", "text": "Where is my bicycle?"}
        assert added["text"].startswith(NOTE)
        assert "harbour" in added["text"]
        assert second[0] == first[0]
        assert "harbour" not in json.dumps(second[2])  # it is shown already
        assert again == second
        one, two, _ = await records(store, "ann")
        assert one.proxy["added"] > 20
        assert two.proxy["added"] >= one.proxy["added"]
        kept = [record.text async for record in memory.list(user_id="ann")]
        assert "Where is my bicycle?" in kept  # the turn was remembered
        assert not any(NOTE in text for text in kept)
    await store.aclose()


async def test_a_turn_with_tools_is_remembered_once_with_its_last_answer() -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    async with memory:
        async with bench(store, Features(memory=memory)) as b:
            b.provider.script(
                Said.calls(TextPart("Looking."), ToolCallPart("t0", "bash", {})), Said.text("It is in the attic.")
            )
            client = claude(b)
            for body in (tools(), tools("nothing here")):
                await send(client, body)
        kept = [record.text async for record in memory.list(user_id="me")]
        assert sorted(kept) == ["Find it.", "It is in the attic."]
    await store.aclose()


@pytest.mark.parametrize("name", ["responses", "chat"])
async def test_memory_works_for_the_clients_of_openai(name: str) -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    wire = ResponsesWire() if name == "responses" else ChatWire()
    async with memory:
        await memory.remember("I keep my bicycle in the harbour.", user_id="me")
        async with bench(store, Features(memory=memory, markers=True, shorten_tools=True), wire) as b:
            client = openai.AsyncOpenAI(api_key=KEY, base_url="http://localhost/v1", http_client=b.http)
            said: Any = [{"role": "user", "content": "Where is my bicycle?"}]
            more: Any = [*said, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Thanks!"}]
            for messages in (said, more):
                if name == "responses":
                    stream = await client.responses.create(model="gpt-5.6", input=messages, stream=True)
                else:
                    stream = await client.chat.completions.create(model="gpt-5.6", messages=messages, stream=True)
                assert [event async for event in stream]
        field = "input" if name == "responses" else "messages"
        first, second = (body[field] for body in b.sent)
        assert "harbour" in first[0]["content"][1]["text"]
        assert second[0] == first[0]
        assert "prompt_cache_key" not in b.sent[0]
        assert "Where is my bicycle?" in [record.text async for record in memory.list(user_id="me")]
    await store.aclose()


async def test_memory_keeps_to_its_budget_and_to_its_user() -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    async with memory:
        for n in range(60):
            await memory.remember(f"Note {n} on the harbour: {'it is wide and deep. ' * 9}", user_id="ann")
        async with bench(store, Features(memory=memory, memory_budget=300)) as b:
            await send(claude(b, **{"x-loom-user": "ann"}), ask("What of the harbour?"))
            await send(claude(b, **{"x-loom-user": "bob"}), ask("What of the harbour?"))
        (one,) = await records(store, "ann")
        assert 0 < one.proxy["added"] <= 600
        assert "Note" not in json.dumps(b.sent[1])
    await store.aclose()


# Long tool results.


async def test_a_long_result_is_shortened_once_and_read_back_over_http_and_on_the_command_line(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'bot.db'}"
    store = open_checkpoints(url)
    async with bench(store, Features(shorten_tools=True)) as b:
        client = claude(b)
        for messages in (tool_turns(LONG), tool_turns(LONG, "ok")):
            await send(client, {**ask(), "messages": messages})
        first, second = (body["messages"] for body in b.sent)
        short = first[2]["content"][0]["content"]
        assert len(short) < len(LONG) / 4
        assert short.startswith("src/a/0.py:0: a line")
        assert "error: it broke here" in short
        assert second[:3] == first
        command, _, place = short.rpartition("curl -s ")[2].partition("http://localhost/loom/results/")
        assert command == "'"
        id = place.partition("?")[0]
        answer = await b.http.get(f"/loom/results/{id}")
        assert (answer.status_code, answer.text) == (200, LONG)
        assert (await b.http.get(f"/loom/results/{id}?lines=2-3")).text.splitlines() == LONG.split("\n")[1:3]
        assert (await b.http.get(f"/loom/results/{id}", headers={"x-loom-user": "bob"})).status_code == 404
        assert (await b.http.get("/loom/results/nothing")).status_code == 404
        assert (await b.http.get(f"/loom/results/{id}?lines=x")).status_code == 422
    one, _ = await records(store)
    assert (one.proxy["shortened"], one.proxy["saved"] > 1_000) == (1, True)
    await store.aclose()
    done = run_loom([LOOM, "proxy", "read", id, "--url", url, "--lines", "1-2"])
    assert (done.returncode, done.stdout.splitlines()) == (0, LONG.split("\n")[:2])
    assert run_loom([LOOM, "proxy", "read", "0" * 18, "--url", url]).returncode == 2
    assert KEY.encode() not in (tmp_path / "bot.db").read_bytes()


async def test_a_tool_of_a_program_reads_a_result_back_and_that_is_not_shortened() -> None:
    """A program without a shell gives its model a tool of a few lines, which asks the proxy."""
    store = open_checkpoints("inmemory")
    async with bench(store, Features(shorten_tools=True)) as b:
        client = claude(b)
        messages: Any = tool_turns(LONG)
        await send(client, {**ask(), "messages": messages})
        id = b.sent[0]["messages"][2]["content"][0]["content"].rpartition("/loom/results/")[2].partition("?")[0]
        whole = (await b.http.get(f"/loom/results/{id}")).text
        call = {"type": "tool_use", "id": "r1", "name": "read_result", "input": {"path": f"/loom/results/{id}"}}
        messages = [
            *messages,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "r1", "content": whole}]},
        ]
        await send(client, {**ask(), "messages": messages})
        assert b.sent[1]["messages"][4]["content"][0]["content"] == LONG
        assert b.sent[1]["messages"][2] == b.sent[0]["messages"][2]
    await store.aclose()


async def test_with_tokens_a_result_is_read_with_one_and_no_token_is_in_the_text(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    ann, bob = tokens.add("ann", users=["ann"]), tokens.add("bob", users=["bob"])
    store = open_checkpoints("inmemory")
    async with bench(store, Features(shorten_tools=True), tokens=tokens) as b:
        await send(claude(b, **{"x-loom-token": ann}), tools(LONG))
        short = b.sent[0]["messages"][2]["content"][0]["content"]
        id = short.rpartition("loom proxy read ")[2].split()[0]
        assert ann not in short
        statuses = [
            (await b.http.get(f"/loom/results/{id}", headers=headers)).status_code
            for headers in ({}, {"x-loom-token": ann}, {"x-loom-token": bob})
        ]
        assert statuses == [401, 200, 404]
    await store.aclose()


# Compaction.


async def test_a_compaction_says_so_stays_the_same_and_leaves_the_originals_readable() -> None:
    store = open_checkpoints("inmemory")
    said: list[str] = []
    for n in range(12):
        said += [f"Question {n}: " + "why is the harbour so deep? " * 120, f"Answer {n}: " + "it was dug. " * 250]
    async with bench(store, Features(compact=8_000)) as b:
        client = claude(b)
        _, small = await send(client, ask("Hello"))
        assert "x-loom-compacted" not in small
        _, first = await send(client, ask(*said, "And now?"))
        _, second = await send(client, ask(*said, "And now?", "Fine.", "Then?"))
        count, _, id = first["x-loom-compacted"].partition(" messages; id=")
        assert second["x-loom-compacted"] == first["x-loom-compacted"]
        one, two = (body["messages"] for body in b.sent[1:])
        assert len(one) < len(said)
        assert "no longer shown" in one[0]["content"][0]["text"]
        assert one[-1] == {"role": "user", "content": "And now?"}
        assert two[: len(one)] == one
        whole = (await b.http.get(f"/loom/results/{id}")).text
        assert [json.loads(line)["content"] for line in whole.split("\n")] == said[: int(count)]
    kept = await records(store)
    assert kept[1].proxy["compacted"] == {"id": id, "messages": int(count)}
    assert kept[1].proxy["saved"] > 3_000
    await store.aclose()


# Everything at once, and what goes wrong.


async def test_thinking_images_and_blocks_that_nobody_knows_go_through_with_all_features_on() -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    blocks: Any = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1=="},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x", "n": 1.0}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "e=="}]},
        {"type": "brand_new_block", "deep": {"list": [1, 2.50, None]}},
        {"type": "text", "text": "So."},
    ]
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}, "new": 1}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "And this?"},
    ]
    async with memory:
        await memory.remember("I like pictures of this kind.", user_id="me")
        features = Features(memory=memory, markers=True, shorten_tools=True, compact=100_000, advance=9_000)
        async with bench(store, features) as b:
            said = Said.calls(ThinkingPart("I see.", "sealed"), TextPart("Yes."), ToolCallPart("t1", "bash", {"a": 1}))
            b.provider.script(said, said)
            body = {**ask(), "messages": messages, "x_new": {"kept": [1.50]}, "thinking": {"type": "adaptive"}}
            raw = json.dumps(body, indent=1).encode()
            for _ in range(2):
                answer = await b.http.post("/v1/messages", content=raw, headers={"x-api-key": KEY})
                assert b'"thinking_delta"' in answer.content
        for sent in b.sent:
            assert sent["messages"][1] == messages[1]
            assert sent["messages"][0]["content"][:2] == messages[0]["content"]
            assert sent["x_new"] == body["x_new"]
        assert b.sent[1]["messages"][2]["content"][-1]["text"].startswith(NOTE)
        assert json.dumps(b.sent[1]).count("cache_control") == 1  # the second request, with an advance
        assert "cache_control" not in json.dumps(b.sent[1]["messages"][2]["content"][-1])  # not on what was added
    await store.aclose()


async def test_an_error_is_passed_on_and_a_retry_sends_the_same_bytes() -> None:
    store, memory = open_checkpoints("inmemory"), open_memory("inmemory")
    async with memory:
        await memory.remember("The harbour is deep.", user_id="me")
        async with bench(store, Features(memory=memory, shorten_tools=True, markers=True)) as b:
            b.provider.script("overloaded", Refused(500, b"{}"), Said.text("Deep."))
            answer, _ = await send(claude(b), ask("How is the harbour?"))
            assert answer == "Deep."
            assert b.sent[0] == b.sent[1] == b.sent[2]
            b.provider.script("rate_limited")
            with pytest.raises(anthropic.RateLimitError):
                await send(claude(b).with_options(max_retries=0), ask("How is the harbour?"))
        kept = await records(store)
        assert [one.error is None for one in kept] == [False, False, True, False]
    await store.aclose()


def test_a_client_that_hangs_up_ends_the_call_with_features_on_too() -> None:
    store = open_checkpoints("inmemory")
    features = Features(markers=True, shorten_tools=True, compact=9_000)
    with (
        serve(AnthropicWire()) as provider,
        proxied({"anthropic": provider.url}, checkpoints=store, features=features) as at,
    ):
        provider.script("stalled")
        client = anthropic.Anthropic(base_url=at, api_key=KEY, max_retries=0)
        with client.messages.stream(**ask("Hello")) as stream:
            next(iter(stream))
        client.close()
        assert provider.hung_up.wait(60)


async def test_another_process_and_one_after_a_restart_send_the_same_bytes(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'bot.db'}"
    sent: list[Any] = []
    for n in range(2):
        store, memory = open_checkpoints(url), open_memory(url)
        async with memory:
            await memory.remember(f"Fact {n}: the harbour was dug in {1900 + n}.", user_id="me")
            async with bench(store, Features(memory=memory, shorten_tools=True)) as b:
                other_store = open_checkpoints(url)
                async with bench(other_store, Features(memory=memory, shorten_tools=True)) as other:
                    messages: Any = tool_turns(*[LONG, *["ok", LONG][: 2 * n]])
                    messages[0]["content"] = "When was the harbour dug?"
                    await send(claude(b), {**ask(), "messages": messages[:1] if not n else messages})
                    await send(claude(other), {**ask(), "messages": messages})
                    sent += [b.sent[0]["messages"], other.sent[0]["messages"]]
                await other_store.aclose()
        await store.aclose()
    first, second, third, fourth = sent
    assert NOTE in json.dumps(first[0])
    assert "[loom:" in json.dumps(second[2])
    assert second[:1] == first
    assert third[:3] == second
    assert fourth == third
    assert "[loom:" in json.dumps(third[6])


async def test_a_body_that_is_not_a_request_goes_on_as_it_is() -> None:
    store = open_checkpoints("inmemory")
    async with bench(store, Features(shorten_tools=True)) as b:
        bodies = [b'{"model": "x"}', b'{"model":"a","model":"b","messages":[]}']
        for body in bodies:
            await b.http.post("/v1/messages", content=body)
        assert b.sent == [json.loads(body) for body in bodies]
    left = [one.proxy["left_out"]["all"] for one in await records(store)]
    assert left == ["it is not a request that holds its whole prompt"] * 2
    await store.aclose()


def test_a_body_that_is_encoded_goes_on_byte_by_byte() -> None:
    packed = gzip.compress(json.dumps({**ask(), "messages": tool_turns(LONG)}).encode())
    store = open_checkpoints("inmemory")
    with raw_provider() as provider:
        provider.answer = answer_of(200, [], b"{}")
        with proxied({"anthropic": provider.url}, checkpoints=store, features=Features(shorten_tools=True)) as address:
            assert httpx.post(f"{address}/v1/messages", content=packed, headers={"content-encoding": "gzip"}).is_success
        assert provider.body == packed


class BrokenStore:
    """A store that takes no more entries."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, *_: Any, **__: Any) -> Checkpoint:
        raise StoreError("the disk is full")


async def test_a_store_that_fails_costs_the_feature_and_not_the_answer() -> None:
    store: Any = BrokenStore(open_checkpoints("inmemory"))
    async with bench(store, Features(shorten_tools=True)) as b:
        answer, _ = await send(claude(b), tools(LONG))
        assert answer == "Fine."
        assert b.sent[0]["messages"] == tool_turns(LONG)
        await send(claude(b), tools(LONG))
        assert b.sent[1]["messages"] == tool_turns(LONG)  # and it stays whole


async def test_counting_tokens_is_passed_on_as_it_is() -> None:
    store = open_checkpoints("inmemory")
    async with bench(store, Features(shorten_tools=True, markers=True)) as b:
        b.provider.script(Refused(200, b'{"input_tokens": 41}'))
        counted = await claude(b).messages.count_tokens(model="claude-sonnet-5", messages=tool_turns(LONG))  # type: ignore[arg-type]
        assert counted.input_tokens == 41
        assert b.sent[0]["messages"] == tool_turns(LONG)
    await store.aclose()


async def test_no_key_reaches_the_store(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'bot.db'}"
    store = open_checkpoints(url)
    async with bench(store, Features(shorten_tools=True, markers=True, compact=4_000, advance=9_000)) as b:
        for body in agent_trace(requests=6):
            await send(claude(b), body)
    scope = Scope("default", "me")
    kept = [await store.recorded(scope.for_session(one.session_id)) for one in await store.sessions(scope)]
    assert "loom.proxy.result" in repr(kept)
    assert KEY not in repr(kept)
    await store.aclose()
    assert KEY.encode() not in (tmp_path / "bot.db").read_bytes()


async def test_other_calls_are_answered_while_a_large_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = Event(), Event()
    answered: list[str] = []

    class Held(json.JSONDecoder):
        """Reads, but a large body only when it may; never in the thread of the event loop."""

        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            if len(s) > 1_000_000:
                with pytest.raises(RuntimeError):
                    asyncio.get_running_loop()
                begun.set()
                may_go_on.wait()
            return super().raw_decode(s, idx)

    monkeypatch.setattr("loom.server.proxy.edits._DECODER", Held())
    async with bench(open_checkpoints("inmemory"), Features(shorten_tools=True)) as b:

        async def call(name: str, body: Any) -> None:
            assert (await send(claude(b), body))[0] == "Fine."
            answered.append(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "large", ask("Hello. " * 300_000))
            await until(begun.is_set)
            await call("small", ask("Hello."))
            may_go_on.set()
    assert answered == ["small", "large"]


def test_features_that_keep_something_need_a_store() -> None:
    done = run_loom([LOOM, "proxy", "--no-journal", "--shorten-tools"])
    assert done.returncode == 2
    assert "--no-journal" in done.stderr
