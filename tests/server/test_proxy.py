"""`loom proxy`: what goes through it is not changed, with the clients of the providers and byte by byte."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.core.message import TextPart, ThinkingPart, ToolCallPart
from loom.errors import UsageError
from loom.server.proxy import upstreams_of
from loom.server.tokens import TokenFile
from loom.testing.wire import AnthropicWire, ChatWire, Refused, ResponsesWire, Said, WireServer, serve
from tests.server.proxying import RawProvider, answer_of, exchange, proxied, raw_provider

EXAMPLES = int(os.environ.get("LOOM_PROXY_EXAMPLES", "300"))
KEY = "sk-very-secret-0123456789"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
ASK: Any = {
    "model": "claude-sonnet-5",
    "max_tokens": 4000,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [TOOL],
    "messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "Weather here? \u2603"}]}],
}
SAID = Said.calls(
    ThinkingPart("The picture shows Oslo.", "sealed"), TextPart("Let me look."), ToolCallPart("t1", "weather", {})
)


def sent_by(provider: WireServer) -> list[tuple[Any, Any]]:
    """The bodies and headers of all requests, less what names the connection."""
    left_out = {"host", "connection", "x-stainless-retry-count"}
    heads = [{k: v for k, v in head.items() if k not in left_out} for head in provider.headers]
    return [*zip(provider.requests, heads, strict=True)]


# The real clients.


def test_a_stream_of_anthropic_is_the_same_as_without_the_proxy() -> None:
    with serve(AnthropicWire()) as provider, proxied({"anthropic": provider.url}) as address:
        said: list[Any] = []
        for url in (provider.url, address):
            provider.script(SAID)
            with (
                anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client,
                client.messages.stream(**ASK) as stream,
            ):
                events = [event.type for event in stream]
                said.append((events, stream.get_final_message().model_dump()))
        direct, through = said
        assert [block["type"] for block in through[1]["content"]] == ["thinking", "text", "tool_use"]
        assert through == direct
        assert sent_by(provider)[0] == sent_by(provider)[1]
        assert provider.headers[1]["authorization"] == f"Bearer {KEY}"


def test_an_answer_in_one_piece_a_beta_and_a_count_go_through() -> None:
    whole = {
        "id": "m1", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Cold."}], "usage": {"input_tokens": 9, "output_tokens": 2},
    }  # fmt: skip
    with raw_provider() as provider, proxied({"anthropic": provider.url}) as address:
        client = anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)
        kind = [(b"content-type", b"application/json"), (b"request-id", b"req_7")]
        provider.answer = answer_of(200, kind, json.dumps(whole).encode())
        answer = client.messages.with_raw_response.create(**ASK)
        assert answer.request_id == "req_7"
        assert answer.parse().content[0].text == "Cold."
        client.beta.messages.create(**ASK, betas=["one-2026-01-01"], extra_query={"beta": "true"})
        assert provider.line == b"POST /v1/messages?beta=true HTTP/1.1"
        assert (b"anthropic-beta", b"one-2026-01-01") in provider.headers
        provider.answer = answer_of(200, kind, b'{"input_tokens": 41}')
        counted = client.messages.count_tokens(model=ASK["model"], messages=ASK["messages"])
        assert counted.input_tokens == 41
        assert provider.line == b"POST /v1/messages/count_tokens HTTP/1.1"
        client.close()


def test_streams_of_openai_are_the_same_as_without_the_proxy() -> None:
    with serve(ResponsesWire()) as provider, proxied({"openai": provider.url}) as address:
        found: list[Any] = []
        for url in (provider.url, f"{address}/v1"):
            provider.script(Said.calls(TextPart("Looking."), ToolCallPart("t1", "weather", {"city": "Oslo"})))
            with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                stream = client.responses.create(model="gpt-5.6", input="Weather?", stream=True)
                found.append([event.model_dump() for event in stream])
        assert found[0] == found[1]
        assert found[1][-1]["type"] == "response.completed"
        assert sent_by(provider)[0] == sent_by(provider)[1]
        assert provider.headers[1]["authorization"] == f"Bearer {KEY}"
    with serve(ChatWire()) as provider, proxied({"openai": provider.url}) as address:
        found = []
        for url in (provider.url, f"{address}/v1"):
            provider.script(Said.text("Cold."))
            with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
                said: Any = [{"role": "user", "content": "Weather?"}]
                stream = client.chat.completions.create(model="gpt-5.6", messages=said, stream=True)
                found.append([chunk.model_dump() for chunk in stream])
        assert found[0] == found[1]
        assert sent_by(provider)[0] == sent_by(provider)[1]


def test_an_error_arrives_as_it_was_said_and_nothing_is_tried_again() -> None:
    with serve(AnthropicWire()) as provider, proxied({"anthropic": provider.url}) as address:
        client = anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)
        provider.script("rate_limited")
        with pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(**ASK)
        assert limited.value.response.headers["retry-after"] == "7"
        assert limited.value.body == json.loads(AnthropicWire().refused("rate_limited").body)
        provider.script("overloaded")
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            client.messages.create(**ASK)
        assert overloaded.value.status_code == 529
        assert len(provider.requests) == 2
        provider.script(Refused(500, b"<html>"), Refused(200, b'{"id": "m"}'))
        client.with_options(max_retries=1).messages.create(**ASK)
        assert len(provider.requests) == 4  # the client's own second try
        client.close()


def test_half_an_answer_does_not_look_like_a_whole_one() -> None:
    with serve(AnthropicWire()) as provider, proxied({"anthropic": provider.url}) as address:
        client = httpx.Client(base_url=address)
        provider.script("cut", "dropped", "ended_early")
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/v1/messages", json=ASK)
        dropped = client.post("/v1/messages", json=ASK)
        assert (dropped.status_code, dropped.json()["error"]) == (502, "no_upstream")
        assert client.post("/v1/messages", json=ASK).status_code == 200  # this provider says that it is whole
        assert len(provider.requests) == 3
        client.close()


def test_a_provider_that_is_not_there_is_a_502() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with proxied({"anthropic": nowhere}) as address:
        assert httpx.post(f"{address}/v1/messages", json=ASK).status_code == 502


def test_a_client_that_hangs_up_ends_the_call_to_the_provider() -> None:
    with serve(AnthropicWire()) as provider, proxied({"anthropic": provider.url}) as address:
        provider.script("stalled")
        client = anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)
        with client.messages.stream(**ASK) as stream:
            next(iter(stream))
            assert not provider.hung_up.is_set()
        client.close()
        assert provider.hung_up.wait(60)


def test_a_client_that_hangs_up_before_the_answer_begins_ends_the_call_too() -> None:
    with raw_provider() as provider, proxied({"openai": provider.url}) as address:
        provider.answer = None
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
            assert provider.arrived.wait(60)
        assert provider.hung_up.wait(60)


def test_an_answer_is_passed_on_as_it_comes_and_not_at_its_end() -> None:
    with serve(AnthropicWire()) as provider, proxied({"anthropic": provider.url}) as address:
        provider.script("stalled")  # half an answer, and the other half never
        with httpx.Client(timeout=60) as client, client.stream("POST", f"{address}/v1/messages", json=ASK) as stream:
            assert b"message_start" in next(stream.iter_raw())


# Byte by byte.

_TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789!#$%&'*+-.^_`|~", min_size=1, max_size=20)
_TAKEN = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host", "expect", "content-length", "origin"),
}
_NAMES = st.one_of(
    _TOKEN.filter(lambda name: name.lower() not in _TAKEN and not name.lower().startswith("x-loom-")),
    st.sampled_from(["authorization", "anthropic-beta", "Accept-Encoding", "cookie", "set-cookie", "x-api-key", "via"]),
)
_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40).map(
    lambda text: text.encode("latin-1").strip(b" \t")
)
_HEADERS = st.lists(st.tuples(_NAMES.map(str.encode), _VALUES), max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)
_BODIES = st.one_of(
    st.binary(max_size=2_000),
    _JSON.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")),
    st.fixed_dictionaries({"model": st.text(max_size=20), "messages": _JSON, "new_field": _JSON}).map(
        lambda value: json.dumps(value).encode()
    ),
)
_TARGETS = st.sampled_from(
    (
        *(b"/v1/messages", b"/v1/messages?beta=true&x=%7B%22a%22%7D&q=[1]", b"/v1/messages/count_tokens"),
        *(b"/v1/responses", b"/v1/chat/completions?api-version=2026-01-01"),
        *(b"/other/v1/messages", b"/other/v1/responses?a=b%2Fc"),
    )
)


@pytest.fixture(scope="module")
def raw() -> Generator[tuple[RawProvider, str]]:
    with raw_provider() as provider:
        upstreams = dict.fromkeys(("anthropic", "openai", "other"), provider.url)
        with proxied(upstreams) as address:
            yield provider, address


@settings(max_examples=EXAMPLES)
@given(
    target=_TARGETS,
    headers=_HEADERS,
    body=_BODIES,
    status=st.sampled_from([200, 201, 202, 400, 401, 403, 404, 409, 413, 418, 422, 429, 500, 503, 529, 599]),
    answered=_HEADERS,
    answer=st.binary(max_size=3_000),
    chunks=st.integers(0, 5),
)
def test_every_byte_goes_through(
    raw: tuple[RawProvider, str],
    *,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    status: int,
    answered: list[tuple[bytes, bytes]],
    answer: bytes,
    chunks: int,
) -> None:
    provider, address = raw
    provider.answer = answer_of(status, answered, answer, chunks=chunks)
    sent = [*headers, (b"content-length", b"%d" % len(body))]
    got = exchange(address, target, sent, body)
    assert provider.line == b"POST " + target.removeprefix(b"/other") + b" HTTP/1.1"
    assert [pair for pair in lowered(provider.headers) if pair[0] != b"host"] == lowered(sent)
    assert provider.body == body
    length = [] if chunks else [(b"content-length", b"%d" % len(answer))]
    assert got[0] == status
    assert [pair for pair in lowered(got[1]) if pair[0] != b"transfer-encoding"] == lowered([*answered, *length])
    assert got[2] == answer


def lowered(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers]


def test_headers_of_one_connection_and_those_for_the_proxy_end_there(raw: tuple[RawProvider, str]) -> None:
    provider, address = raw
    hop = [(b"keep-alive", b"timeout=5"), (b"x-mine", b"1"), (b"connection", b"keep-alive, X-Mine")]
    provider.answer = answer_of(200, [*hop, (b"x-yours", b"2")], b"ok")
    own = [(b"x-loom-user", b"ann"), (b"x-loom-anything", b"1"), (b"te", b"trailers"), (b"x-kept", b"3")]
    _, headers, body = exchange(address, b"/v1/messages", [*hop, *own, (b"content-length", b"2")], b"{}")
    names = {name.lower() for name, _ in provider.headers}
    assert names == {b"host", b"x-kept", b"content-length"}
    assert (b"host", provider.url.removeprefix("http://").encode()) in lowered(provider.headers)
    assert lowered(headers) == [(b"x-yours", b"2"), (b"content-length", b"2")]
    assert body == b"ok"


# Who may call, and where a call may go.


def test_no_request_can_choose_where_it_goes(raw: tuple[RawProvider, str]) -> None:
    provider, address = raw
    provider.arrived.clear()
    length = (b"content-length", b"2")
    for target in (b"/elsewhere/v1/messages", b"/v1/models", b"/v1/messages/", b"/v1/messages/../../admin", b"/"):
        assert exchange(address, target, [length], b"{}")[0] == 404, target
    with httpx.Client(base_url=address) as client:
        wrong = [client.get("/v1/messages"), client.delete("/v1/messages"), client.post("/loom/results/x")]
        assert [(one.status_code, one.headers["allow"]) for one in wrong] == [
            (405, "POST"),
            (405, "POST"),
            (405, "GET"),
        ]
        assert all(set(one.json()) == {"error", "message", "advice"} for one in wrong)
        assert client.post("/v1/messages", headers={"host": "evil.example"}).status_code == 421
        assert client.post("/v1/messages", headers={"origin": "https://evil.example"}).status_code == 403
    assert not provider.arrived.is_set()


def test_a_redirect_is_an_answer_like_any_other(raw: tuple[RawProvider, str]) -> None:
    provider, address = raw
    provider.answer = answer_of(307, [(b"location", b"http://169.254.169.254/"), (b"set-cookie", b"a=b")], b"")
    status, headers, _ = exchange(address, b"/v1/messages", [(b"content-length", b"2")], b"{}")
    assert status == 307
    assert (b"location", b"http://169.254.169.254/") in headers
    exchange(address, b"/v1/messages", [(b"content-length", b"2")], b"{}")
    assert b"cookie" not in {name.lower() for name, _ in provider.headers}


def test_with_tokens_a_call_needs_one_that_may_write_for_its_user(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    ann, two = tokens.add("ann", users=["ann"]), tokens.add("two", users=["ann", "bob"])
    reads = tokens.add("reads", rights=["read"])
    with raw_provider() as provider, proxied({"anthropic": provider.url}, tokens=tokens) as address:
        provider.answer = answer_of(200, [], b"{}")

        def status(**headers: str) -> int:
            named = {f"x-loom-{name}": value for name, value in headers.items()}
            return httpx.post(f"{address}/v1/messages", json=ASK, headers=named).status_code

        assert status() == status(token="loom_wrong") == 401
        assert status(token=ann) == status(token=ann, user="ann") == status(token=two, user="bob") == 200
        assert b"x-loom-token" not in {name.lower() for name, _ in provider.headers}
        assert status(token=ann, user="bob") == status(token=two) == status(token=reads) == 403
        assert status(token=ann, session="") == status(token=ann, session="x" * 600) == 422


def test_upstreams_are_names_and_addresses() -> None:
    found = upstreams_of(["openrouter=https://openrouter.ai/api/v1/", "openai=http://localhost:11434/v1"])
    assert found["openrouter"] == "https://openrouter.ai/api"
    assert found["openai"] == "http://localhost:11434"
    assert found["anthropic"] == "https://api.anthropic.com"
    for wrong in ("x", "x=", "x=ftp://a", "=https://a", "v1=https://a", "a/b=https://a", "x=https://key@a", "x=//a"):
        with pytest.raises(UsageError):
            upstreams_of([wrong])
