"""Callers that mean harm: made-up headers, broken files of tokens, questions without words, names from browsers."""

from __future__ import annotations

import gc
import json
import socket
import tracemalloc
from collections.abc import AsyncGenerator, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loom import Agent, open_checkpoints, open_memory
from loom.cli.serve import listening
from loom.core.checks import MAX_ATTRIBUTES, MAX_TEXT
from loom.core.scope import Scope
from loom.engine.urls import without_secrets
from loom.errors import StoreError
from loom.server.http.app import create_app
from loom.server.http.guard import LONGEST_NUMBER, Counts, Gate, Limits, _ValueCount
from loom.server.http.listen import TimedProtocol, http_server
from loom.server.http.shapes import DocumentsIn, MemoriesIn, RecallIn
from loom.server.mcp import MemoryTools
from loom.server.tokens import TokenFile
from tests.server.test_http import ADD, bearer, every_route, ok, refused, serving, started
from tests.timing import LONG

pytestmark = pytest.mark.anyio


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


# -- tokens


@pytest.mark.parametrize("end", ["revoked", "deleted"])
async def test_a_server_that_had_tokens_is_not_opened_by_losing_them(tokens: TokenFile, end: str) -> None:
    async with serving(tokens=tokens) as client:
        await ok(client, "GET", "/v1/users/ann/facts")
        secret = tokens.add("only")
        await ok(client, "GET", "/v1/users/ann/facts", headers=bearer(secret))
        if end == "revoked":
            tokens.revoke("only")
        else:
            tokens.path.unlink()
        await refused(client, 401, "GET", "/v1/users/ann/facts")
        await refused(client, 401, "GET", "/v1/users/ann/facts", headers=bearer(secret))
    if end == "revoked":  # also after a restart
        async with serving(tokens=TokenFile(tokens.path)) as client:
            await refused(client, 401, "DELETE", "/v1/users/ann")


_ROW = {"name": "a", "digest": "0" * 64, "rights": ["read"]}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"tokens": {}},
        {"tokens": None},
        {"tokens": [5]},
        {"tokens": [{**_ROW, "digest": 5}]},
        {"tokens": [{**_ROW, "digest": "\N{LATIN SMALL LETTER E WITH ACUTE}"}]},
        {"tokens": [{**_ROW, "users": "ann"}]},
        {"tokens": [{**_ROW, "users": [5]}]},
        {"tokens": [{**_ROW, "rights": None}]},
        {"tokens": [{**_ROW, "rights": ["everything"]}]},
        {"tokens": [{"name": "a", "digest": "0" * 64}]},
        {"tokens": [{**_ROW, "namespace": 5}]},
    ],
)
async def test_a_damaged_file_of_tokens_lets_nobody_in(tokens: TokenFile, content: object) -> None:
    tokens.path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be read"):
        tokens.tokens()
    async with serving(tokens=tokens) as client:
        await refused(client, 503, "GET", "/v1/users/ann/facts", headers=bearer("x"))


def test_tokens_that_are_made_and_revoked_at_once_do_not_undo_each_other(tokens: TokenFile) -> None:
    for number in range(8):
        tokens.add(f"old {number}")

    def change(number: int) -> None:
        own = TokenFile(tokens.path)
        own.add(f"new {number}")
        own.revoke(f"old {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(8)))
    assert sorted(token.name for token in tokens.tokens()) == [f"new {number}" for number in range(8)]
    assert sorted(path.name for path in tokens.path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


async def test_who_may_not_forget_cannot_drop_a_wish_on_a_page(tokens: TokenFile) -> None:
    writer = bearer(tokens.add("writer", users=["ann"], rights=["read", "write"]))
    async with serving(tokens=tokens) as client:
        wish = {"text": "Always answer in German."}
        made = await ok(client, "POST", "/v1/users/ann/standing", json=wish, headers=writer)
        id = made["items"][0]["id"]
        await refused(client, 403, "DELETE", f"/v1/users/ann/standing/{id}", headers=writer)
        page = await client.post(f"/inspect/u/ann/standing/{id}/reject", headers=writer)
        assert page.status_code == 403
        assert len((await ok(client, "GET", "/v1/users/ann/standing", headers=writer))["items"]) == 1


# -- forgetting


async def test_a_receipt_does_not_name_conversations_that_were_just_removed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    async with Agent(memory=url) as agent:
        for id in ("one", "two"):
            await agent.run("I live in Madrid.", user_id="ann", session_id=id)
    async with serving(url) as client:
        await ok(client, "DELETE", "/v1/users/ann/sessions/one")
        erased = await ok(client, "DELETE", "/v1/users/ann/sessions/two")
        assert [store["pending"] for store in erased["stores"]] == [[], []]
    async with Agent(memory=url) as agent:
        await agent.run("I live in Madrid.", user_id="ann", session_id="three")
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as checkpoints:
        done = await MemoryTools(memory, checkpoints, user_id="ann").call("forget", {"confirm": "ann"})
        assert done.notes == []
        assert await checkpoints.sessions(Scope("default", "ann")) == ()


# -- requests


async def test_an_origin_and_a_length_that_cannot_be_read_are_refused() -> None:
    async with serving() as client:
        await refused(client, 403, "GET", "/healthz", headers={"Origin": "http://["})
        await refused(client, 413, "GET", "/healthz", headers={"Content-Length": "9" * 5_000})
        assert (await client.get("/healthz", headers={"X-Long": "x" * 70_000})).status_code == 431


_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize("path", ["/v1/users/ann/memories", "/v1/users/ann/recall", "/v1/knowledge/search", "/mcp"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[{"text":"x","attributes":{' + b",".join(b'"%d":1' % n for n in range(110_000)) + b"}}]}",
        b'{"items":[' + b"{}," * 110_000 + b"{}]}",
        b'["\\\\",' + b'"\\",",' * 100_000 + b"1]",
        b"[" * 100_001,
        ("[" + '"\\"",' * 100_000 + "1]").encode("utf-16"),
    ],
)
async def test_a_body_of_too_many_values_is_refused_unparsed(path: str, body: bytes) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(body), 9_999):
            yield body[start : start + 9_999]

    async with serving() as client:
        for content in (body, pieces()):
            told = await refused(client, 413, "POST", path, content=content, headers=_JSON)
            assert told["error"] == "too_large"
            assert "100,000 JSON values" in told["message"]
            assert "smaller batches" in told["advice"]


@pytest.mark.parametrize("path", ["/v1/users/ann/memories", "/v1/users/ann/facts", "/v1/users/ann/recall"])
@pytest.mark.parametrize("body", [b'{"items":' + b"x" * 2**20, b"\xff" * 2**20], ids=["no JSON", "no UTF-8"])
async def test_nothing_of_a_body_that_is_refused_stays_in_memory(tokens: TokenFile, path: str, body: bytes) -> None:
    tokens.add("somebody")
    async with serving(tokens=tokens) as client:
        await client.post(path, content=body, headers=_JSON)
        gc.collect()
        gc.disable()  # it comes by when many objects were made, and a megabyte is one
        tracemalloc.start()
        try:
            for _ in range(10):
                assert (await client.post(path, content=body, headers=_JSON)).status_code in {401, 422}
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < 3 * 2**20


async def spoken(
    app: Any, path: str, messages: Iterable[dict[str, Any]], method: str = "POST", **headers: str
) -> list[dict[str, Any]]:
    """What an application sends to a caller with these messages; after them, the caller is gone."""
    answers, left = list[Any](), iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answers.append(message)

    given = {"host": "localhost", "content-type": "application/json", **headers}
    pairs = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "query_string": b""}
    await app({**scope, "raw_path": path.encode(), "client": ("127.0.0.1", 1)}, receive, send)
    return answers


FORMS = ("/inspect/u/ann/forget", "/inspect/u/ann/sessions/s/undo", "/inspect/transcript", "/mcp")
"""Paths that are posted to, and not described."""


def _posted() -> list[tuple[str, str]]:
    """Each route that may take a body."""
    return [route for route in every_route() if route[0] != "GET"] + [("POST", path) for path in FORMS]


async def test_no_body_is_read_of_a_caller_without_a_token(tokens: TokenFile) -> None:
    tokens.add("somebody")
    read = list[str]()

    def body(path: str) -> Generator[dict[str, Any]]:
        for _ in range(10):
            read.append(path)
            yield {"type": "http.request", "body": b" " * 10_000, "more_body": True}

    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        app = create_app(memory, checkpoints, tokens=tokens)
        for method, path in _posted():
            kind = "application/x-www-form-urlencoded" if "/inspect/" in path else "application/json"
            for headers in ({}, {"authorization": "Bearer loom_wrong"}, {"cookie": "loom_token=wrong"}):
                answers = await spoken(app, path, body(path), method, **{"content-type": kind, **headers})
                assert answers[0]["status"] == 401, path
        assert read == []
        for name in ("memories", "recall", "facts"):
            assert f'route="/v1/users/{{user}}/{name}",status="401"' in app._counts.text({})


@pytest.mark.parametrize("user", ["ann", "bob", "~"])
async def test_no_body_of_a_turn_is_read_of_a_caller_without_the_right(tokens: TokenFile, user: str) -> None:
    secret = tokens.add("somebody", users=["ann"], rights=["forget"])
    read = list[bytes]()

    def body() -> Generator[dict[str, Any]]:
        for piece in (b"{}", b""):
            read.append(piece)
            yield {"type": "http.request", "body": piece, "more_body": piece != b""}

    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        app = create_app(memory, checkpoints, tokens=tokens)
        for name in ("memories", "recall"):
            headers = {"authorization": f"Bearer {secret}"}
            answers = await spoken(app, f"/v1/users/{user}/{name}", body(), **headers)
            assert answers[0]["status"] == 403
            assert json.loads(answers[1]["body"])["error"] == "forbidden"
    assert read == []


async def test_who_hangs_up_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        app = create_app(memory, checkpoints)
        part = {"type": "http.request", "body": b'{"text": ', "more_body": True}
        framework = app._app.framework  # type: ignore[attr-defined]
        async with framework.router.lifespan_context(framework):
            for method, path in _posted():
                for kind in ("application/json", "multipart/form-data; boundary=x"):
                    await spoken(app, path, [part], method, **{"content-type": kind, "accept": _JSON["Accept"]})
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8"])
async def test_nothing_is_stored_of_a_body_that_never_came_whole(kind: str) -> None:
    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        app = create_app(memory, checkpoints)
        part = {"type": "http.request", "body": json.dumps(ADD).encode(), "more_body": True}
        await spoken(app, "/v1/users/ann/memories", [part], **{"content-type": kind})
        assert await memory.store.count(Scope("default", "ann")) == 0
        empty = {"type": "http.request", "more_body": True}  # ASGI lets a server leave out what is empty
        await spoken(app, "/v1/users/ann/memories", [empty, {**part, "more_body": False}], **{"content-type": kind})
        assert await memory.store.count(Scope("default", "ann")) > 0


@pytest.mark.parametrize("size", [1, 700, 1_000_000])
async def test_a_number_that_takes_long_to_read_is_refused_unparsed(size: int) -> None:
    async def status(digits: int) -> int:
        item = b'{"text":"%s","attributes":{"n":%s}}' % (b"7" * 2_000, b"7" * digits)
        body = b'{"items":[%s],"learn":false}' % item

        async def pieces() -> AsyncGenerator[bytes]:
            for start in range(0, len(body), size):
                yield body[start : start + size]

        return (await client.post("/v1/users/ann/memories", content=pieces(), headers=_JSON)).status_code

    async with serving() as client:
        assert await status(LONGEST_NUMBER) == 201
        assert await status(LONGEST_NUMBER + 1) == 413


async def test_commas_and_brackets_in_texts_are_not_values() -> None:
    words = 'Well, "so [to] speak", it is {raining}, \\, and\n'
    text = (words * (MAX_TEXT // len(words) + 1))[:MAX_TEXT]
    body = json.dumps({"items": [{"text": text}] * 7, "learn": False}).encode()
    assert 7_000_000 < len(body) < Limits().body_bytes
    assert body.count(b",") > 3 * (Limits().values or 0)
    async with serving() as client:
        await ok(client, "POST", "/v1/users/ann/memories", content=body, headers=_JSON)


async def test_the_largest_batch_is_taken() -> None:
    attributes = {f"name {number}": number for number in range(MAX_ATTRIBUTES)}
    item = {"speaker": "Ann", "at": "2026-11-15T08:30:00Z", "origin": "user", "attributes": attributes}
    batch = {"items": [{**item, "text": f"Tea {number}."} for number in range(1_000)], "learn": False}
    async with serving() as client:
        kept = await ok(client, "POST", "/v1/users/ann/memories", json=batch)
    assert len(kept["items"]) == 1_000


def _values(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


async def test_as_many_values_as_the_limit_are_taken_and_not_one_more() -> None:
    body = {"items": [{"text": f"Tea, {number}.", "attributes": {"a": 1, "b": "[{,"}} for number in range(50)]}
    async with serving(limits=Limits(values=_values(body))) as client:
        await ok(client, "POST", "/v1/users/ann/memories", json=body)
    async with serving(limits=Limits(values=_values(body) - 1)) as client:
        await refused(client, 413, "POST", "/v1/users/ann/memories", json=body)


_WORDS = st.text(st.sampled_from('a\\",[{ \n\u2c2c\u5c22'), max_size=6)


@given(
    value=st.recursive(
        st.none() | st.integers() | _WORDS,
        lambda inner: st.lists(inner) | st.dictionaries(_WORDS, inner),
    ),
    size=st.integers(1, 9),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"]),
    is_ascii=st.booleans(),
)
async def test_no_encoding_hides_a_value(value: Any, size: int, encoding: str, *, is_ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii).encode(encoding)
    count = _values(json.loads(body))

    async def status(values: int) -> int:
        sent: list[Any] = []
        pieces = [body[start : start + size] for start in range(0, len(body), size)]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": len(pieces) > 0}

        async def send(message: Any) -> None:
            sent.append(message)

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})

        gate = Gate(app, hosts=None, limits=Limits(values=values), counts=Counts())
        await gate({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
        return sent[0]["status"]

    assert await status(count - 1) == 413
    if encoding.startswith("utf-8"):
        assert await status(count) == 200


@pytest.mark.parametrize("body", ["[[], {}, [ ], {\n}]", '[["[]"], "[]", [""]]', "[[[[]]]]", '{"[]": {}}'])
@pytest.mark.parametrize("size", [1, 2, 1_000])
def test_an_empty_list_is_one_value(body: str, size: int) -> None:
    found = _ValueCount()
    for start in range(0, len(body), size):
        found.add(body[start : start + size].encode())
    assert found.count == _values(json.loads(body))


async def test_more_attributes_than_a_record_has_are_refused() -> None:
    many = dict.fromkeys(map(str, range(MAX_ATTRIBUTES + 1)), 1)
    async with serving() as client:
        kept = await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        id = kept["items"][0]["id"]
        for method, path, body in (
            ("POST", "users/ann/memories", {"items": [{"text": "x", "attributes": many}]}),
            ("PATCH", f"users/ann/memories/{id}", {"attributes": many}),
            ("POST", "users/ann/recall", {"query": "x", "where": many}),
        ):
            told = await refused(client, 422, method, f"/v1/{path}", json=body)
            assert "65 are given, and at most 64 are taken" in told["message"]


_WRONG = dict.fromkeys(map(str, range(MAX_ATTRIBUTES)))
_MANY: dict[str, Any] = {str(number): [] for number in range(90_000)}


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (MemoriesIn, {"items": [{"text": "x", "attributes": _WRONG}] * 1_000}),
        (MemoriesIn, {"items": [{"text": "x", "attributes": _MANY}]}),
        (MemoriesIn, {"items": [{}] * 1_000}),
        (MemoriesIn, _MANY),
        (DocumentsIn, {"documents": [{"id": "x", "text": "x", "attributes": _WRONG}] * 1_000}),
        (RecallIn, {"query": "x", "where": _MANY}),
        (RecallIn, {"query": "x", "layers": [1] * 90_000}),
    ],
)
def test_what_is_wrong_with_a_body_is_told_in_few_errors(shape: Any, body: Any) -> None:
    with pytest.raises(ValidationError) as raised:
        shape.model_validate(body)
    assert raised.value.error_count() <= 4 * MAX_ATTRIBUTES


async def test_methods_that_are_made_up_are_counted_as_one() -> None:
    async with serving() as client:
        for number in range(20):
            await client.request(f"MADEUP{number}", "/healthz")
        text = (await client.get("/metrics")).text
    assert "MADEUP" not in text
    assert 'method="other",route="unknown",status="405"} 20' in text or text.count('method="other"') == 2


@pytest.mark.parametrize("query", ["?", "...", "\N{GRINNING FACE}", "\N{RIGHT-TO-LEFT OVERRIDE}", "%"])
async def test_a_question_without_words_is_answered(query: str) -> None:
    async with serving() as client:
        await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        found = await ok(client, "POST", "/v1/users/ann/recall", json={"query": query})
        assert 0 <= found["confidence"] <= 1
        assert (await client.get("/inspect/u/ann/memory", params={"q": query})).status_code == 200


@pytest.mark.parametrize("user", ["%00", "%0A", "%20", "x" * 600])
@pytest.mark.parametrize("name", ["export", "memory", "requests"])
async def test_a_page_of_a_user_that_cannot_be_is_refused(user: str, name: str) -> None:
    async with serving() as client:
        assert (await client.get(f"/inspect/u/{user}/{name}")).status_code == 422


@pytest.mark.parametrize("name", ["x.\0", "x." + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 190, "x.*", "/", "..", ""])
async def test_a_file_with_any_name_can_be_dropped(name: str) -> None:
    part = f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{{}}\r\n--b--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with serving() as client:
        response = await client.post("/inspect/transcript", content=part.encode(), headers=kind)
        assert response.status_code in {200, 422}


async def test_an_answer_that_was_begun_is_cut_off_and_not_answered_twice() -> None:
    sent: list[str] = []

    async def stalls(_scope: object, _receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await anyio.sleep_forever()

    async def send(message: object) -> None:
        sent.append(message["type"])  # type: ignore[index]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    gate = Gate(stalls, hosts=None, limits=Limits(seconds=0), counts=Counts())  # type: ignore[arg-type]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"accept", b"text/event-stream")]}
    await gate(scope, receive, send)  # type: ignore[arg-type]
    assert sent == ["http.response.start"]


async def test_headers_without_an_end_are_refused(tmp_path: Path) -> None:
    async with started(tmp_path) as address:
        place = urlsplit(address)
        assert place.hostname is not None
        assert place.port is not None
        with socket.create_connection((place.hostname, place.port)) as caller:
            caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
            with pytest.raises(OSError):  # noqa: PT011, PT012 - the system words it in its own way
                for _ in range(400):
                    caller.sendall(b"x" * 100_000)


@asynccontextmanager
async def listening_for(seconds: float, app: Any) -> AsyncGenerator[int]:
    """The port of a server that waits so long for the head of a request."""
    patience = type("Patience", (TimedProtocol,), {"head_seconds": seconds})
    server = http_server(app)
    server.config.http = server.config.http_protocol_class = patience
    with listening("127.0.0.1", 0) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            yield listener.getsockname()[1]
            server.should_exit = True


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_caller_that_never_says_what_it_wants_is_disconnected(sent: bytes) -> None:
    async with (
        open_memory("inmemory") as memory,
        aclosing(open_checkpoints("inmemory")) as checkpoints,
        listening_for(0.05, create_app(memory, checkpoints)) as port,
    ):
        async with await anyio.connect_tcp("127.0.0.1", port) as caller:
            await caller.send(sent)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await caller.receive()
        async with await anyio.connect_tcp("127.0.0.1", port) as caller:  # nor after a request that was answered
            await caller.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while b"ok" not in await caller.receive():
                pass
            await caller.send(sent or b"G")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await caller.receive()


async def test_the_head_of_a_stream_does_not_wait_for_its_first_part() -> None:
    is_read = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await is_read.wait()
        await send({"type": "http.response.body", "body": b"HTTP/1.1 is a protocol. ", "more_body": True})
        await send({"type": "http.response.body", "body": b"Its end."})

    async with listening_for(LONG, app) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
        await caller.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await caller.receive()).endswith(b"\r\n\r\n")
        is_read.set()
        rest = b"".join([part async for part in caller])
        assert rest == b"18\r\nHTTP/1.1 is a protocol. \r\n8\r\nIts end.\r\n0\r\n\r\n"


async def test_who_is_slow_to_answer_keeps_the_connection(tmp_path: Path) -> None:
    """The deadline is for the head alone."""

    async def slow(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await anyio.sleep(0.2)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    async with listening_for(0.05, slow) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
        for _ in range(2):
            await caller.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not (await caller.receive()).endswith(b"ok"):
                pass


async def test_a_body_that_never_comes_is_not_waited_for() -> None:
    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        app = create_app(memory, checkpoints, limits=Limits(seconds=0.05))
        async with listening_for(60, app) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
            head = b"POST /v1/users/ann/recall HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            await caller.send(head + b"Content-Length: 100\r\n\r\n{")
            answer = b""
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:  # until the server closes it
                    answer += await caller.receive()
            assert answer.startswith(b"HTTP/1.1 504")


async def test_nor_is_a_body_waited_for_after_the_answer() -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"no"})

    async with listening_for(0.05, app) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
        await caller.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):  # noqa: PT012
            while True:
                await caller.send(b"x")
                await caller.receive()


async def test_a_body_that_comes_after_its_answer_leaves_the_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as after any other request, and not only until the deadline for the rest of the body."""
    made, connect = list[TimedProtocol](), TimedProtocol.connection_made

    def connected(self: TimedProtocol, transport: Any) -> None:
        made.append(self)
        connect(self, transport)

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"no"})

    monkeypatch.setattr(TimedProtocol, "connection_made", connected)
    async with listening_for(LONG, app) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
        for _ in range(2):
            await caller.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12345")
            while not (await caller.receive()).endswith(b"no"):
                pass
            await caller.send(b"67890")
            with anyio.fail_after(60):
                while made[0]._waiting is not None:  # noqa: ASYNC110 - nothing says when a timer stops
                    await anyio.sleep(0.001)
            assert made[0].timeout_keep_alive_task is not None


async def test_a_header_does_not_say_who_calls(tmp_path: Path) -> None:
    """Who may choose their address has a rate limit of their own for each."""
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append(scope["client"][0])
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    async with listening_for(60, app) as port, await anyio.connect_tcp("127.0.0.1", port) as caller:
        await caller.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.1.2.3\r\n\r\n")
        await caller.receive()
    assert seen == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:./bot.db", "sqlite:./bot.db"),
        ("postgres://loom:secret@db/loom?password=secret", "postgres://db/loom"),
        ("composite:?primary=postgres://a:secret@h/d&l2=redis://:secret@r:1", "postgres://h/d + redis://r:1"),
    ],
)
def test_the_place_of_a_store_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


async def test_allow_names_the_methods_of_the_nearest_path() -> None:
    async with serving() as client:
        for path, methods in (
            ("memories/upsert", "POST"),
            ("memories/x", "DELETE, GET, PATCH"),
            ("facts", "GET, POST"),
        ):
            answer = await client.put(f"/v1/users/ann/{path}")
            assert (answer.status_code, answer.headers["Allow"]) == (405, methods)
