"""What can be seen of a Qdrant server without one: what is sent, and what is made of its answers."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from loom.core.filter import Eq, Not
from loom.errors import StoreError, StoreUnavailable, UsageError
from loom.protocols.vector_store import VectorItem
from loom.stores._vector_entries import tenant_of
from loom.stores.qdrant import QdrantVectorStore
from loom.testing.conformance.suite import ALICE
from tests.stores.engines import needs_package

pytestmark = [pytest.mark.anyio, needs_package("qdrant_client")]


@contextmanager
def server(answers):
    """A server that gives one of these answers by method and path; `asked` holds what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.command, self.path.partition("?")[0], body, self.headers.get("api-key")))
            status, result = answers.get((self.command, self.path.partition("?")[0]), answers.get("*", (404, None)))
            result = result() if callable(result) else result
            said = json.dumps({"time": 0.0, "status": "ok", "result": result}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format, *args):
            """Nothing."""

    for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
        setattr(Handler, f"do_{method}", Handler.answer)
    asked = []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    thread = Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", asked
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [(401, StoreError, "refused the key"), (403, StoreError, "refused the key"), (400, StoreError, "refused the req"),
     (500, StoreUnavailable, "cannot be reached"), (429, StoreUnavailable, "cannot be reached")],
)  # fmt: skip
async def test_an_answer_that_is_an_error_is_said_so(status, error, words):
    with server({"*": (status, None)}) as (url, _):
        store = QdrantVectorStore(url)
        with pytest.raises(error, match=words):
            await store.count(ALICE)
        await store.aclose()


async def test_a_server_that_is_not_there_is_said_so():
    store = QdrantVectorStore("http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.count(ALICE)
    await store.aclose()
    with pytest.raises(UsageError, match="closed"):
        await store.count(ALICE)


ABOUT = {"loom_embedder": "e:1:2", "loom_dimension": 2}
COLLECTION = {
    "status": "green", "optimizer_status": "ok", "segments_count": 1, "payload_schema": {},
    "config": {
        "params": {"vectors": {"size": 2, "distance": "Cosine"}},
        "hnsw_config": {"m": 0, "ef_construct": 100, "full_scan_threshold": 10000},
        "optimizer_config": {
            "deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0,
            "flush_interval_sec": 5,
        },
        "metadata": ABOUT,
    },
}  # fmt: skip
DONE = {"operation_id": 0, "status": "completed"}
ANSWERS = {
    ("GET", "/collections/loom"): (200, COLLECTION),
    ("PUT", "/collections/loom"): (200, True),
    ("PUT", "/collections/loom/index"): (200, DONE),
    ("PUT", "/collections/loom/points"): (200, DONE),
    ("POST", "/collections/loom/points/delete"): (200, DONE),
    ("POST", "/collections/loom/points/count"): (200, {"count": 1}),
    ("POST", "/collections/loom/points/query"): (200, {"points": []}),
    ("POST", "/collections/loom/points/scroll"): (200, {"points": [], "next_page_offset": None}),
}


async def test_a_collection_has_an_index_for_each_user():
    """No graph over everybody; the user is the tenant; and the key is sent."""
    exists = iter([False, True])
    answers = {**ANSWERS, ("GET", "/collections/loom/exists"): (200, lambda: {"exists": next(exists)})}
    with server(answers) as (url, asked):
        store = QdrantVectorStore(url, api_key="secret")
        with pytest.warns(UserWarning, match="insecure connection"):
            await store.bind("e:1:2", 2)
        await store.aclose()
    sent = {(method, path): body for method, path, body, _ in asked}
    made = sent["PUT", "/collections/loom"]
    assert made["vectors"] == {"size": 2, "distance": "Cosine"}
    assert made["hnsw_config"] == {"m": 0, "payload_m": 16}
    assert made["metadata"] == ABOUT
    fields = [body for _, path, body, _ in asked if path == "/collections/loom/index"]
    assert [(body["field_name"], body["field_schema"].get("is_tenant", False)) for body in fields] == [
        ("tenant", True), ("session", False), ("id", False),
    ]  # fmt: skip
    assert {key for *_, key in asked} == {"secret"}


async def test_every_request_names_the_user_and_the_session():
    """As a digest for the user, and nothing of one call is sent without it."""
    with server({**ANSWERS, ("GET", "/collections/loom/exists"): (200, {"exists": True})}) as (url, asked):
        store = QdrantVectorStore(url)
        for scope in (ALICE, ALICE.for_session("s1")):
            await store.upsert(scope, [VectorItem("a", [1.0, 0.0])])
            await store.search(scope, [1.0, 0.0], where=Not(Eq("id", "b")))
            for call in (store.count, store.forget, store.ids):
                await call(scope)
            await store.delete(scope, "a")
            await store.vectors(scope, "a")
        await store.aclose()
    points = [body for _, path, body, _ in asked if path.startswith("/collections/loom/points")]
    written = [point["payload"] for body in points if "points" in body for point in body["points"]]
    filters = [body["filter"]["must"] for body in points if "points" not in body]
    assert [payload["tenant"] for payload in written] == [tenant_of(ALICE)] * 2
    assert len(filters) == 18
    assert {json.dumps(must[0]) for must in filters} == {json.dumps(condition("tenant", tenant_of(ALICE)))}
    assert sum(condition("session", "s1") in must for must in filters) == 8


def condition(key, value):
    return {"key": key, "match": {"any": [value]}}
