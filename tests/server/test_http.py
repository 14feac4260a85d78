"""`loom serve`: every route, one form of errors, tokens, limits, and MCP beside it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from loom import Agent, CompactionConfig, Retain, open_checkpoints, open_memory
from loom.core.scope import Scope
from loom.knowledge import GraphKnowledgeBase, InMemoryKnowledgeBase
from loom.memory.config import MemoryConfig
from loom.protocols.memory_store import Job
from loom.server.http.app import create_app, describe
from loom.server.http.guard import Limits
from loom.server.http.listen import http_server
from loom.server.tokens import TokenFile
from tests.commands import LOOM, run_loom

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving(url: str = "inmemory", **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of a server over this store, without a socket between them."""
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as checkpoints:
        app = create_app(memory, checkpoints, **options)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


async def ok(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> dict[str, Any]:
    response = await client.request(method, path, **options)
    assert response.is_success, (response.status_code, response.text)
    return response.json()


async def refused(client: httpx.AsyncClient, status: int, method: str, path: str, **options: Any) -> dict[str, str]:
    """The body of an error, which always has the same three parts."""
    response = await client.request(method, path, **options)
    assert response.status_code == status, (response.status_code, response.text)
    body = response.json()
    assert set(body) == {"error", "message", "advice"}
    return body


ADD = {"items": [{"text": "I live in Madrid."}]}


async def test_what_is_remembered_is_recalled_at_once() -> None:
    async with serving() as client:
        kept = await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        assert kept["scope"] == {"namespace": "default", "user": "ann", "session": None}
        assert [fact["text"] for fact in kept["facts"]] == ["user lives_in Madrid"]
        found = await ok(client, "POST", "/v1/users/ann/recall", json={"query": "Where does the user live?"})
        assert "Madrid" in found["hits"][0]["text"]
        assert found["searched"] == 2
        assert found["hits"][0]["why"]
        nobody = await ok(client, "POST", "/v1/users/nobody/recall", json={"query": "anything"})
        assert nobody["hits"] == []
        assert nobody["searched"] == 0
        assert nobody["notes"]


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("ann/memories", ADD, {}),
        ("a%2Fb/memories", {**ADD, "session": "s1", "learn": False}, {"Idempotency-Key": "k1"}),
        ("ann/memories", {**ADD, "user": "bob"}, {}),
        ("ann/memories", {**ADD, "colour": "red"}, {}),
        ("ann/memories", ADD, {"Idempotency-Key": "k" * 1_000}),
        ("ann/memories", ADD, {"Authorization": "Bearer made-up"}),
        ("ann/memories", ADD, {"Authorization": ""}),
        ("cid/memories", ADD, {}),
        ("ann/memories", {"items": [{"text": "\ud800"}]}, {}),
        ("a%00b/memories", ADD, {}),
        (f"{'x' * 3_000}/memories", ADD, {}),
        ("ann/memories", [], {}),
        ("ann/recall", {"query": "Where do I live?", "limit": 3}, {}),
        ("~/recall", {"query": "Where do I live?", "where": {"a": 1}}, {}),
        ("ann/recall", {"query": "Where do I live?", "where": {"\ud800": 1}}, {}),
        ("ann/recall", {"query": ""}, {}),
    ],
)
async def test_the_short_way_answers_as_the_framework_does(
    tokens: TokenFile, path: str, body: Any, headers: dict[str, str]
) -> None:
    """A type with a parameter is left to the framework."""
    secret = tokens.add("ann", users=["ann", "a/b"])
    given = {**bearer(secret), **headers}
    answers: list[tuple[int, dict[str, str], str]] = []
    for kind in ("application/json", "application/json; charset=utf-8"):
        async with serving(tokens=tokens) as client:
            await ok(client, "POST", "/v1/users/ann/memories", json=ADD, headers=bearer(secret))
            content = json.dumps(body).encode()
            response = await client.post(f"/v1/users/{path}", content=content, headers={**given, "Content-Type": kind})
            text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z|\b01[0-9A-Z]{24}\b|\d\.\d+", "*", response.text)
            answers.append((response.status_code, dict(response.headers) | {"content-length": ""}, text))
    assert answers[0] == answers[1]


async def test_a_batch_that_is_sent_again_is_stored_once() -> None:
    batch = {"items": [{"text": f"Note {number} of the day.", "speaker": "ann"} for number in range(1_000)]}
    async with serving() as client:
        key = {"Idempotency-Key": "k"}
        first = await ok(client, "POST", "/v1/users/ann/memories", json=batch, headers=key)
        assert first["skipped"] == []
        again = await ok(client, "POST", "/v1/users/ann/memories", json=batch, headers=key)
        assert len(again["skipped"]) == 1_000
        counted = await ok(client, "GET", "/v1/users/ann/stats")
        assert sum(counted["counts"][layer] for layer in ("L1", "L2", "L3", "L4", "archived")) == 1_000
        more = {"items": [{"text": "x"}] * 1_001}
        await refused(client, 422, "POST", "/v1/users/ann/memories", json=more)


async def test_pages_neither_repeat_nor_skip() -> None:
    async with serving() as client:
        await ok(client, "POST", "/v1/users/ann/memories", json={"items": [{"text": f"Tree {n}"} for n in range(25)]})
        seen: list[str] = []
        cursor = None
        while True:
            params = {"limit": 10, "kind": "episode"} | ({"cursor": cursor} if cursor else {})
            page = await ok(client, "GET", "/v1/users/ann/memories", params=params)
            seen += [item["id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 25


async def every_page(client: httpx.AsyncClient, path: str, *, limit: int) -> list[dict[str, Any]]:
    """All items of a list, page by page."""
    seen: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": limit}
    for _ in range(100):
        page = await ok(client, "GET", path, params=params)
        assert len(page["items"]) <= limit
        seen += page["items"]
        if page["next"] is None:
            return seen
        params["cursor"] = page["next"]
    raise AssertionError("the pages do not end")


async def test_every_long_list_comes_in_pages(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        for number in range(5):
            await agent.run(f"I like town {number}.", user_id="ann", session_id=f"talk-{number}")
            await agent.run(f"Tell me about town {number}.", user_id="ann", session_id="long")
    async with serving(url) as client:
        for number in range(7):
            fact = {"subject": f"house {number}", "predicate": "colour", "object": "red"}
            await ok(client, "POST", "/v1/users/ann/facts", json=fact)
        base = "/v1/users/ann"
        paths = {"/facts": "id", "/sessions": "session"}
        paths |= {"/sessions/long/checkpoints": "id", "/sessions/long/requests": "id"}
        for path, id in paths.items():
            whole = (await ok(client, "GET", f"{base}{path}"))["items"]
            assert len(whole) >= 5
            assert [one[id] for one in await every_page(client, f"{base}{path}", limit=2)] == [one[id] for one in whole]
            assert await every_page(client, f"{base}{path}", limit=len(whole)) == whole
            await refused(client, 404, "GET", f"{base}{path}", params={"cursor": "nothing"})


async def test_a_body_that_names_another_user_is_refused(tokens: TokenFile) -> None:
    own = bearer(tokens.add("own", users=["ann"]))
    async with serving(tokens=tokens) as client:
        for user in ("bob", "", 7, ["ann"]):
            body = {**ADD, "user": user}
            told = await refused(client, 403, "POST", "/v1/users/ann/memories", json=body, headers=own)
            assert told["error"] == "forbidden"
        query = {"query": "Where?", "user": "bob"}
        await refused(client, 403, "POST", "/v1/users/~/recall", json=query, headers=own)
        for path in ("ann", "~"):
            await ok(client, "POST", f"/v1/users/{path}/memories", json={**ADD, "user": "ann"}, headers=own)
        deep = b"[" * 90_000  # which no route reads
        answer = await client.post("/v1/users/ann/sessions/none/end", content=deep, headers=own)
        assert answer.status_code == 200


async def test_a_record_is_read_changed_explained_and_forgotten() -> None:
    async with serving() as client:
        kept = await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        path = f"/v1/users/ann/memories/{kept['items'][0]['id']}"
        assert (await ok(client, "GET", path))["item"]["text"] == "I live in Madrid."
        assert (await ok(client, "PATCH", path, json={"text": "I live in Oslo."}))["item"]["text"] == "I live in Oslo."
        explained = await ok(client, "GET", f"{path}/explain")
        assert explained["item"]["text"] == "I live in Oslo."
        receipt = await ok(client, "DELETE", path)
        assert receipt["stores"][0]["removed"]["episode"] == 1
        missing = await refused(client, 404, "GET", path)
        assert missing["error"] == "not_found"
        assert missing["advice"]
        await refused(client, 404, "DELETE", path)
        await refused(client, 404, "PATCH", path, json={"text": "x"})


async def test_facts_have_two_time_axes() -> None:
    async with serving() as client:
        body = {"subject": "Ann", "predicate": "works_at", "object": "Acme", "valid_from": "2024-01-01T00:00:00Z"}
        await ok(client, "POST", "/v1/users/ann/facts", json=body)
        assert len((await ok(client, "GET", "/v1/users/ann/facts"))["items"]) == 1
        past = {"at": "2023-01-01T00:00:00Z"}
        assert (await ok(client, "GET", "/v1/users/ann/facts", params=past))["items"] == []
        unknown = {"known_at": "2025-01-01T00:00:00Z"}
        assert (await ok(client, "GET", "/v1/users/ann/facts", params=unknown))["items"] == []
        await refused(client, 422, "GET", "/v1/users/ann/facts", params={"at": "yesterday"})


async def test_blocks_and_standing_instructions() -> None:
    async with serving() as client:
        first = await ok(client, "PUT", "/v1/users/ann/blocks/plan", json={"text": "Ship it."})
        assert first["item"]["version"] == 1
        await refused(client, 409, "PUT", "/v1/users/ann/blocks/plan", json={"text": "No.", "version": 0})
        assert [b["name"] for b in (await ok(client, "GET", "/v1/users/ann/blocks"))["items"]] == ["plan"]
        waits = await ok(
            client, "POST", "/v1/users/ann/standing", json={"text": "Always answer in German.", "confirmed": False}
        )
        assert [item["state"] for item in waits["items"]] == ["waits"]
        id = waits["items"][0]["id"]
        stands = await ok(client, "POST", f"/v1/users/ann/standing/{id}/confirm")
        assert [item["state"] for item in stands["items"]] == ["stands"]
        profile = (await ok(client, "GET", "/v1/users/ann/profile"))["text"]
        assert "German" in profile
        assert "Ship it." in profile
        await ok(client, "DELETE", f"/v1/users/ann/standing/{stands['items'][0]['id']}")
        assert (await ok(client, "GET", "/v1/users/ann/standing"))["items"] == []
        await ok(client, "DELETE", "/v1/users/ann/blocks/plan")
        await refused(client, 404, "POST", "/v1/users/ann/standing/nothing/confirm")


async def test_a_conversation_is_shown_compacted_undone_forked_and_forgotten(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    compaction = CompactionConfig(retain=Retain(type="messages", count=2))
    async with Agent("offline", memory=url, compaction=compaction) as agent:
        for number in range(6):
            await agent.run(f"Message {number} about the garden.", user_id="ann", session_id="talk")
    async with serving(url) as client:
        base = "/v1/users/ann/sessions"
        (listed,) = (await ok(client, "GET", base))["items"]
        assert (listed["session"], listed["turns"]) == ("talk", 6)
        whole = await ok(client, "GET", f"{base}/talk")
        assert len(whole["messages"]) == 12
        pages, cursor = list[Any](), {}
        while cursor is not None:
            page = await ok(client, "GET", f"{base}/talk", params={"limit": 5, **cursor})
            pages.append(page["messages"])
            cursor = {"cursor": page["next"]} if page["next"] else None
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [message for page in pages for message in page] == whole["messages"]
        await refused(client, 404, "GET", f"{base}/talk", params={"cursor": "nothing"})
        body = {"strategy": "truncate", "retain": 2}
        plan = await ok(client, "POST", f"{base}/talk/compact", json={**body, "dry_run": True})
        assert plan["item"]["id"] is None
        done = await ok(client, "POST", f"{base}/talk/compact", json=body)
        assert done["item"]["id"]
        assert len((await ok(client, "GET", f"{base}/talk"))["messages"]) < 12
        assert len((await ok(client, "GET", f"{base}/talk", params={"whole": True}))["messages"]) == 12
        forked = await ok(client, "POST", f"{base}/talk/fork", json={"session": "other"})
        assert forked["item"]["session"] == "other"
        await ok(client, "POST", f"{base}/talk/undo", json={})
        assert (await ok(client, "GET", f"{base}/talk"))["messages"] == whole["messages"]
        await refused(client, 404, "POST", f"{base}/talk/undo", json={})
        points = (await ok(client, "GET", f"{base}/talk/checkpoints"))["items"]
        assert len(points) >= 8
        back = await ok(client, "POST", f"{base}/talk/restore", json={"at": "2"})
        assert back["item"]["turn"] == 2
        assert len((await ok(client, "GET", f"{base}/talk"))["messages"]) == 4
        receipt = await ok(client, "DELETE", f"{base}/other")
        assert receipt["stores"][1]["store"] == "sessions"
        await refused(client, 404, "GET", f"{base}/other")
        await refused(client, 404, "DELETE", f"{base}/other")
        await refused(client, 409, "POST", f"{base}/talk/fork", json={"session": "talk"})


def canary_in(folder: Path, canary: bytes) -> bool:
    return any(canary in file.read_bytes() for file in folder.iterdir())


async def test_a_person_is_erased_with_a_receipt_for_each_store(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        await agent.run("My PIN is canary4711.", user_id="ann", session_id="talk")
        await agent.run("My PIN is 1234.", user_id="bob", session_id="talk")
    async with serving(url) as client:
        done = await ok(client, "DELETE", "/v1/users/ann")
        assert [store["store"] for store in done["stores"]] == ["memory", "sessions"]
        assert all(not store["pending"] for store in done["stores"]), done
        assert (await ok(client, "GET", "/v1/users/ann/sessions"))["items"] == []
        assert (await ok(client, "GET", "/v1/users/ann/memories"))["items"] == []
        assert len((await ok(client, "GET", "/v1/users/bob/sessions"))["items"]) == 1
    assert not canary_in(tmp_path, b"canary4711")


async def test_an_export_can_be_imported(tmp_path: Path) -> None:
    async with serving() as client:
        await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        lines = (await client.get("/v1/users/ann/export")).text.splitlines()
    async with open_memory("inmemory") as memory:
        await memory.import_(lines, user_id="ann")
        assert [fact.object for fact in await memory.facts(user_id="ann")] == ["Madrid"]


async def test_jobs_are_counted_and_run() -> None:
    async with serving() as client:
        await ok(client, "POST", "/v1/users/ann/memories", json={**ADD, "learn": False})
        assert (await ok(client, "GET", "/v1/users/ann/jobs"))["waiting"] >= 1
        assert (await ok(client, "POST", "/v1/users/ann/jobs/run"))["counts"]["jobs"] >= 1
        assert (await ok(client, "GET", "/v1/users/ann/jobs"))["dead"] == []


async def test_a_memory_is_stored_under_a_key_promoted_and_forgotten_by_its_time() -> None:
    async with serving() as client:
        base = "/v1/users/ann"
        first = await ok(client, "POST", f"{base}/memories/upsert", json={"text": "I live in Oslo.", "key": "home"})
        second = await ok(client, "POST", f"{base}/memories/upsert", json={"text": "I live in Rome.", "key": "home"})
        assert first["item"]["id"] == second["item"]["id"]
        path = f"{base}/memories/{first['item']['id']}"
        body = {"importance": 0.5, "attributes": {"topic": "home"}}
        assert (await ok(client, "PATCH", path, json=body))["item"]["attributes"]["topic"] == "home"
        changed = await ok(client, "PATCH", path, json={"attributes": {"topic": None}})
        assert "topic" not in changed["item"]["attributes"]
        assert changed["item"]["importance"] == 0.5
        assert "nothing to change" in (await refused(client, 422, "PATCH", path, json={}))["message"]
        assert (await ok(client, "POST", f"{path}/promote", json={}))["item"]["layer"] == "L2"
        assert (await ok(client, "POST", f"{path}/promote", json={"to": "L4"}))["item"]["layer"] == "L4"
        await refused(client, 404, "POST", f"{base}/memories/none/promote", json={})
        await refused(client, 422, "DELETE", f"{base}/memories")  # nothing is forgotten by accident
        old = {"before": "2020-01-01T00:00:00Z"}
        assert (await ok(client, "DELETE", f"{base}/memories", params=old))["stores"][0]["removed"] == {}
        await ok(client, "DELETE", f"{base}/memories", params={"before": "2999-01-01T00:00:00Z"})
        assert (await ok(client, "GET", f"{base}/memories"))["items"] == []


async def test_a_timeline_counts_exactly() -> None:
    async with serving() as client:
        items = [{"text": f"I ate {n} plums.", "at": f"2026-01-{n:02}T12:00:00Z"} for n in range(1, 11)]
        await ok(client, "POST", "/v1/users/ann/memories", json={"items": items})
        found = await ok(client, "GET", "/v1/users/ann/timeline", params={"about": "plum", "limit": 3})
        assert found["count"] == 10
        assert [one["at"] for one in found["items"]] == [f"2026-01-{n:02}T12:00:00Z" for n in (1, 2, 3)]
        between = {"start": "2026-01-03T00:00:00Z", "end": "2026-01-05T00:00:00Z"}
        assert (await ok(client, "GET", "/v1/users/ann/timeline", params=between))["count"] == 2
        await refused(client, 422, "GET", "/v1/users/ann/timeline", params={"kind": "none"})


async def test_old_texts_are_shown_with_what_changed() -> None:
    async with serving() as client:
        for text in ("Ship on Friday.", "Ship on Monday."):
            await ok(client, "PUT", "/v1/users/ann/blocks/plan", json={"text": text})
        (history,) = (await ok(client, "GET", "/v1/users/ann/blocks/plan/history"))["items"]
        assert [one["text"] for one in history["versions"]] == ["Ship on Friday.", "Ship on Monday."]
        assert "-Ship on Friday." in history["versions"][1]["diff"]
        await refused(client, 404, "GET", "/v1/users/ann/blocks/none/history")
        await ok(client, "POST", "/v1/users/ann/standing", json={"text": "Always answer in German."})
        (wish,) = (await ok(client, "GET", "/v1/users/ann/standing/history"))["items"]
        assert "German" in wish["versions"][0]["text"]


async def test_requests_and_checkpoints_of_a_conversation(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        for text in ("Hello.", "I live in Madrid."):
            await agent.run(text, user_id="ann", session_id="talk")
    async with serving(url) as client:
        base = "/v1/users/ann/sessions/talk"
        calls = (await ok(client, "GET", f"{base}/requests"))["items"]
        assert [one["turn"] for one in calls] == [1, 2]
        assert calls[0]["cache_read"] is None, "not reported is not zero"
        missing = await refused(client, 404, "GET", f"{base}/requests/{calls[0]['id']}/body")
        assert "keep_requests=True" in missing["advice"]
        points = (await ok(client, "GET", f"{base}/checkpoints"))["items"]
        receipt = await ok(client, "DELETE", f"{base}/checkpoints/{points[-1]['id']}")
        assert receipt["stores"][0]["removed"] == {"checkpoint": 1}
        await refused(client, 404, "DELETE", f"{base}/checkpoints/{points[-1]['id']}")
        assert len((await ok(client, "GET", f"{base}/checkpoints"))["items"]) == len(points) - 1
        ended = await ok(client, "POST", f"{base}/end")
        assert ended["item"]["layer"] == "L3"
        assert (await ok(client, "POST", "/v1/users/ann/sessions/none/end"))["item"] is None
        await refused(client, 404, "GET", "/v1/users/ann/sessions/none/requests")


async def test_a_job_that_failed_for_good_is_tried_again() -> None:
    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        scope, now = Scope("default", "ann"), datetime.now(UTC)
        await memory.store.write(scope, jobs=[Job(id="j", scope=scope, kind="digest", key="k", run_at=now)])
        (lease,) = await memory.store.lease(now=now, until=now + timedelta(hours=1), scope=scope)
        await memory.store.fail(lease, reason="the model is down", now=now, retry_at=None)
        app = create_app(memory, checkpoints)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
            (dead,) = (await ok(client, "GET", "/v1/users/ann/jobs"))["dead"]
            assert dead["reason"] == "the model is down"
            path = f"/v1/users/ann/jobs/{dead['id']}/retry"
            assert (await ok(client, "POST", path))["counts"] == {"jobs": 1}
            assert (await ok(client, "POST", path))["counts"] == {"jobs": 0}, "it waits already"
            await refused(client, 404, "POST", "/v1/users/ann/jobs/none/retry")
            await refused(client, 404, "POST", f"/v1/users/bob/jobs/{dead['id']}/retry")


# -- knowledge, which belongs to no user


async def test_documents_are_added_found_read_and_removed() -> None:
    base = "/v1/knowledge"
    config = MemoryConfig(knowledge_base=InMemoryKnowledgeBase())
    async with (
        open_memory("inmemory", config=config) as memory,
        aclosing(open_checkpoints("inmemory")) as checkpoints,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(memory, checkpoints)), base_url="http://localhost"
        ) as client,
    ):
        tea = {"id": "teas/green", "text": "Green tea is brewed at eighty degrees.", "attributes": {"topic": "drinks"}}
        assert (await ok(client, "POST", f"{base}/documents", json={"documents": [tea]}))["documents"] == 1
        assert (await ok(client, "POST", f"{base}/documents", json={"documents": [tea]}))["documents"] == 0
        (hit,) = (await ok(client, "POST", f"{base}/search", json={"query": "how hot is tea?"}))["hits"]
        assert (hit["document"], hit["attributes"]) == ("teas/green", {"topic": "drinks"})
        assert hit["text"] == tea["text"][hit["start"] : hit["end"]]
        other = {"query": "how hot is tea?", "where": {"topic": "cars"}}
        assert (await ok(client, "POST", f"{base}/search", json=other))["hits"] == []
        recalled = await ok(client, "POST", "/v1/users/ann/recall", json={"query": "how hot is tea?"})
        assert [one["kind"] for one in recalled["hits"]] == ["passage"]
        assert (await ok(client, "GET", f"{base}/documents/teas%2Fgreen"))["text"] == tea["text"]
        assert (
            "follows no relations"
            in (await refused(client, 422, "POST", f"{base}/search_graph", json={"query": "x"}))["message"]
        )
        await ok(client, "DELETE", f"{base}/documents/teas%2Fgreen")
        await refused(client, 404, "DELETE", f"{base}/documents/teas%2Fgreen")
        await refused(client, 404, "GET", f"{base}/documents/teas%2Fgreen")


async def test_a_graph_is_searched_along_its_relations() -> None:
    config = MemoryConfig(knowledge_base=GraphKnowledgeBase())
    async with (
        open_memory("inmemory", config=config) as memory,
        aclosing(open_checkpoints("inmemory")) as checkpoints,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(memory, checkpoints)), base_url="http://localhost"
        ) as client,
    ):
        documents = [{"id": "a", "text": "Maria works at Acme."}, {"id": "b", "text": "Acme is based in Madrid."}]
        await ok(client, "POST", "/v1/knowledge/documents", json={"documents": documents})
        body = {"query": "Where does Maria work?", "mode": "graph", "max_hops": 2}
        found = await ok(client, "POST", "/v1/knowledge/search_graph", json=body)
        assert "a" in {hit["document"] for hit in found["hits"]}


async def test_a_server_without_a_knowledge_base_says_how_to_get_one() -> None:
    async with serving() as client:
        none = await refused(client, 404, "POST", "/v1/knowledge/search", json={"query": "x"})
        assert "--knowledge" in none["advice"]


async def test_the_command_reads_documents(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tea.md").write_text("# Tea\n\nGreen tea is brewed at eighty degrees.\n")
    async with (
        started(tmp_path, "--knowledge", str(tmp_path / "docs")) as address,
        httpx.AsyncClient(base_url=address) as client,
    ):
        found = await ok(client, "POST", "/v1/knowledge/search", json={"query": "how hot is tea?"})
        assert "eighty degrees" in found["hits"][0]["text"]
    missing = run_loom([LOOM, "serve", "inmemory", "--knowledge", tmp_path / "none"], cwd=tmp_path)
    assert missing.returncode
    assert "does not exist" in missing.stderr


# -- who may call


PUBLIC = {"/healthz", "/readyz"}


def every_route() -> list[tuple[str, str]]:
    """Each route of the server with a user and ids filled in."""
    described = describe()
    fill = {"user": "ann", "id": "none", "name": "none", "session": "none"}
    return [(method.upper(), path.format(**fill)) for path, methods in described["paths"].items() for method in methods]


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "private" / "tokens.json")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


BODIES = {
    "/memories": {"items": [{"text": "I live in Oslo."}]},
    "/upsert": {"text": "I live in Oslo.", "key": "k"},
    "/recall": {"query": "tea"},
    "/facts": {"subject": "Ann", "predicate": "works_at", "object": "Acme"},
    "/blocks/plan": {"text": "Ship it."},
    "/standing": {"text": "Always answer in German."},
    "/restore": {"at": "1"},
    "/documents": {"documents": [{"id": "tea", "text": "Green tea is brewed at eighty degrees."}]},
    "/search": {"query": "tea"},
    "/search_graph": {"query": "tea"},
}
"""A body that each route takes; the others take one without fields, or none."""


def options_of(method: str, path: str) -> dict[str, Any]:
    """What is sent with a request to a route, so that nothing but its caller can be wrong with it."""
    if method in {"POST", "PUT"}:
        return {"json": next((body for tail, body in BODIES.items() if path.endswith(tail)), {})}
    if method == "PATCH":
        return {"json": {"text": "x"}}
    if path.endswith("/events"):
        return {"params": {"seconds": 0}}  # otherwise it goes on
    return {"params": {"before": "2020-01-01T00:00:00Z"}} if method == "DELETE" else {}


ASKS = ("/recall", "/search", "/search_graph")
"""Routes that are posted to and only read."""
OPERATES = ("/metrics", "/jobs/run", "/retry", "/documents")


async def test_every_route_refuses_who_has_no_right_to_it(tokens: TokenFile) -> None:
    revoked = tokens.add("gone", users=["ann"])
    tokens.revoke("gone")
    own, other = tokens.add("own", users=["ann"]), tokens.add("other", users=["bob"])
    reads, writes = (tokens.add(right, users=["ann"], rights=[right]) for right in ("read", "write"))
    async with serving(tokens=tokens) as client:
        routes = [route for route in every_route() if route[1] not in PUBLIC]
        assert len(routes) > 45
        for method, path in routes:
            options = options_of(method, path)

            async def status(secret: str, method: str = method, path: str = path, options: Any = options) -> int:
                return (await client.request(method, path, headers=bearer(secret), **options)).status_code

            answers = [
                await client.request(method, path, headers=headers, **options)
                for headers in ({}, bearer("loom_wrong"), bearer(revoked), {"Authorization": "Basic YTpi"})
            ]
            assert {answer.status_code for answer in answers} == {401}, (method, path)
            assert len({answer.text for answer in answers}) == 1
            if "/users/" in path:
                assert await status(other) == 403, (method, path)
            is_reading = method == "GET" or path.endswith(ASKS)
            operates = path.endswith(OPERATES) or (method == "DELETE" and "/documents/" in path)
            assert (await status(reads) != 403) == (is_reading and not operates), (method, path)
            is_writing = method in {"POST", "PUT", "PATCH"} and not is_reading and not operates
            assert (await status(writes) != 403) == is_writing, (method, path)
            assert (await status(own) == 403) == operates, (method, path)


async def test_no_page_is_shown_without_a_token(tokens: TokenFile) -> None:
    """Routes that are not described: the pages, MCP, and the description itself."""
    tokens.add("somebody")
    open_to_all = {("GET", "/"), ("POST", "/inspect/login"), ("GET", "/inspect/static/{name:name}")}
    async with open_memory("inmemory") as memory, aclosing(open_checkpoints("inmemory")) as checkpoints:
        gate = create_app(memory, checkpoints, tokens=tokens)
        fill = {"user:name": "ann", "session:name": "s", "id:name": "i", "name:name": "n", "request:name": "r"}
        transport = httpx.ASGITransport(app=gate, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            found = set[tuple[str, str]]()
            for path, methods in paths_of(gate):
                if path.startswith("/v1/") or path in PUBLIC:
                    continue
                found |= {(method, path) for method in methods}
                place = re.sub(r"\{([^}]+)\}", lambda part: fill.get(part[1], "x"), path)
                for method in methods - {"HEAD"}:
                    fields = {"confirm": "ann", "at": "1", "compaction": "c", "token": "loom_wrong"}
                    options: Any = {"data": fields, "files": {"file": b"{}"}} if method == "POST" else {}
                    answer = await client.request(method, place, **options)
                    assert answer.status_code == 401 or (method, path) in open_to_all, (
                        method,
                        path,
                        answer.status_code,
                    )
        assert len(found) > 20
        assert open_to_all <= found


def paths_of(gate: Any) -> list[tuple[str, set[str]]]:
    """Path and methods of every route of a server."""
    found: list[tuple[str, set[str]]] = []
    for route in gate._app.framework.router.routes:
        inner = getattr(route, "original_router", None)
        ones = [route] if inner is None else inner.routes
        found += [(one.path, set(one.methods or {"GET", "POST", "DELETE"})) for one in ones]
    return found


async def test_what_is_not_there_and_what_is_not_yours_are_answered_alike(tokens: TokenFile, tmp_path: Path) -> None:
    """For every route, and whatever of another user it names."""
    ann = tokens.add("ann", users=["ann"], rights=["read", "write", "forget", "operate"])
    bob = tokens.add("bob", users=["bob"])
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        for text in ("I live in Canary Wharf.", "My PIN is canary4711."):
            await agent.run(text, user_id="bob", session_id="talk")
    async with serving(url, tokens=tokens) as client:
        base = "/v1/users/bob"
        await ok(client, "PUT", f"{base}/blocks/plan", json={"text": "A canary."}, headers=bearer(bob))
        wish = {"text": "Always sing like a canary.", "confirmed": False}
        waits = await ok(client, "POST", f"{base}/standing", json=wish, headers=bearer(bob))
        kept = await ok(client, "GET", f"{base}/memories", headers=bearer(bob))
        points = await ok(client, "GET", f"{base}/sessions/talk/checkpoints", headers=bearer(bob))
        calls = await ok(client, "GET", f"{base}/sessions/talk/requests", headers=bearer(bob))
        ids = {
            "/memories/": kept["items"][0]["id"],
            "/standing/": waits["items"][0]["id"],
            "/checkpoints/": points["items"][0]["id"],
            "/requests/": calls["items"][0]["id"],
        }
        described = (await client.get("/openapi.json", headers=bearer(ann))).json()["paths"]
        compared = 0
        for path, methods in described.items():
            if not path.startswith("/v1/users/"):
                continue
            id = next((id for part, id in ids.items() if part in path), "id")
            for method in methods:
                for user in ("ann", "bob"):
                    theirs = {"user": user, "id": id, "name": "plan", "session": "talk"}
                    no = {"user": "ann", "id": "no-id", "name": "no-name", "session": "no-session"}
                    no["user"] = user if user == "ann" else "nobody"
                    if theirs == no or (user == "ann" and "{" not in path.replace("{user}", "")):
                        continue
                    answers = []
                    for fill in (theirs, no):
                        place = path.format(**fill)
                        options = options_of(method.upper(), place.replace("no-name", "plan"))
                        found = await client.request(method, place, headers=bearer(ann), **options)
                        text = found.text
                        for name in ("id", "name", "session", "user"):
                            if "{" + name + "}" in path:
                                text = text.replace(fill[name], name)
                        answers.append((found.status_code, text))
                    assert "canary" not in str(answers).lower()
                    if answers[0][0] in {200, 201}:  # made for, or of, this caller
                        assert answers[0][0] == answers[1][0], (method, path, answers)
                        continue
                    assert answers[0] == answers[1], (method, path)
                    compared += 1
        assert compared > 60


async def test_namespaces_of_tokens_never_meet(tokens: TokenFile) -> None:
    shop, doctor = tokens.add("shop", namespace="shop"), tokens.add("doctor", namespace="doctor")
    async with serving(tokens=tokens) as client:
        await ok(client, "POST", "/v1/users/ann/memories", json=ADD, headers=bearer(doctor))
        assert (await ok(client, "GET", "/v1/users/ann/memories", headers=bearer(shop)))["items"] == []
        mine = await ok(client, "GET", "/v1/users/ann/memories", headers=bearer(doctor))
        assert mine["scope"]["namespace"] == "doctor"
        assert mine["items"]


async def test_a_tilde_is_the_user_of_the_token(tokens: TokenFile) -> None:
    secret = tokens.add("ann", users=["ann"])
    async with serving(tokens=tokens) as client:
        done = await ok(client, "POST", "/v1/users/~/memories", json=ADD, headers=bearer(secret))
        assert done["scope"]["user"] == "ann"


async def test_the_file_of_tokens_holds_no_secret_and_can_be_read_by_its_owner_only(tokens: TokenFile) -> None:
    secret = tokens.add("ann")
    assert secret not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    tokens.path.write_text("{")
    async with serving(tokens=tokens) as client:
        await refused(client, 503, "GET", "/v1/users/ann/facts", headers=bearer(secret))


# -- limits


async def test_other_hosts_and_other_sites_are_refused() -> None:
    async with serving() as client:
        await refused(client, 421, "GET", "/healthz", headers={"Host": "evil.example"})
        await refused(client, 403, "GET", "/healthz", headers={"Origin": "http://evil.example"})
        await refused(client, 403, "GET", "/healthz", headers={"Origin": "null"})
        for site in ("cross-site", "same-site"):
            for mode, kind in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("cors", "empty")):
                said = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": kind}
                await refused(client, 403, "GET", "/healthz", headers=said)
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        for said in (followed, {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Site": "none"}):
            assert (await client.get("/healthz", headers=said)).is_success
        response = await client.get("/healthz", headers={"Origin": "http://localhost"})
        assert response.is_success
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_body_may_not_be_larger_than_the_limit_whatever_it_says() -> None:
    async with serving(limits=Limits(body_bytes=1_000)) as client:
        await refused(client, 413, "POST", "/v1/users/ann/memories", json={"items": [{"text": "x" * 2_000}]})

        async def pieces():
            for _ in range(20):
                yield b"x" * 100

        await refused(client, 413, "POST", "/v1/users/ann/memories", content=pieces())


@pytest.mark.parametrize("page", ["", "/inspect/users", "/inspect/nothing", "/inspect/u/ann/memory", "/inspect/login"])
async def test_who_has_no_token_is_not_told_where_the_store_is(tokens: TokenFile, tmp_path: Path, page: str) -> None:
    own = tokens.add("own", users=["ann"])
    async with serving(f"sqlite:{tmp_path}/bot.db", tokens=tokens) as client:
        answer = await client.get(page or "/", follow_redirects=True)
        assert answer.status_code in {401, 404, 405}
        assert str(tmp_path) not in answer.text
        seen = await client.get("/inspect/users", headers=bearer(own))
        assert str(tmp_path) in seen.text


async def test_a_caller_that_sends_too_much_waits(tokens: TokenFile) -> None:
    another = bearer(tokens.add("another"))
    async with serving(limits=Limits(per_second=0.0001, burst=3), tokens=tokens) as client:
        for number in range(3):
            assert (await client.get("/healthz", headers=bearer(f"made up {number}"))).is_success
        assert (await refused(client, 429, "GET", "/healthz"))["error"] == "too_many"
        assert (await client.get("/healthz")).headers["Retry-After"] == "1"
        assert (await refused(client, 429, "GET", "/healthz", headers=bearer("made up")))["error"] == "too_many"
        assert (await client.get("/healthz", headers=another)).is_success


async def test_a_request_that_takes_too_long_is_ended() -> None:
    async with serving(limits=Limits(seconds=0)) as client:
        await refused(client, 504, "POST", "/v1/users/ann/memories", json=ADD)


async def test_wrong_requests_are_answered_in_one_form() -> None:
    async with serving() as client:
        await refused(client, 404, "GET", "/v1/nowhere")
        await refused(client, 405, "PUT", "/v1/users/ann/recall")
        assert (await client.put("/v1/users/ann/recall")).headers["allow"] == "POST"
        assert (await client.put("/v1/users/ann/memories/x")).headers["allow"] == "DELETE, GET, PATCH"
        form = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl says of any body
        told = await refused(client, 422, "POST", "/v1/users/ann/recall", content=b'{"query": "x"}', headers=form)
        assert "Content-Type: application/json" in told["advice"]
        await refused(client, 422, "POST", "/v1/users/ann/recall", content=b"{")
        await refused(client, 422, "POST", "/v1/users/ann/recall", json={"query": "x", "user_id": "bob"})
        await refused(client, 422, "POST", "/v1/users/ann/recall", json={"query": ""})
        await refused(client, 422, "GET", f"/v1/users/{'x' * 600}/facts")
        await refused(client, 422, "GET", "/v1/users/%00/facts")
        await refused(client, 404, "GET", "/v1/users/ann/memories/..%2f..%2fetc")


async def test_the_server_counts_what_it_does() -> None:
    async with serving() as client:
        await client.get("/v1/users/ann/facts")
        await client.get("/v1/users/bob/facts")
        text = (await client.get("/metrics")).text
    assert 'loom_requests_total{method="GET",route="/v1/users/{user}/facts",status="200"} 2' in text


async def test_the_jobs_of_the_store_are_counted(tmp_path: Path) -> None:
    async with serving(url=f"sqlite:{tmp_path / 'bot.db'}") as client:
        await client.post("/v1/users/ann/memories", json=ADD)
        lines = (await client.get("/metrics")).text.splitlines()
    states = ("due", "leased", "given_up")
    assert [line for line in lines if line.startswith("loom_jobs{")] == [f'loom_jobs{{state="{s}"}} 0' for s in states]


# -- MCP, and the command itself


@asynccontextmanager
async def started(tmp_path: Path, *options: str) -> AsyncGenerator[str]:
    """The address of `loom serve` as a process of its own, with the file of tokens in the folder if there is one."""
    command = [sys.executable, "-m", "loom", "serve", "--url", f"sqlite:{tmp_path}/m.db", "--port", "0", "--json"]
    file = tmp_path / "tokens.json"
    command += [*(["--tokens", str(file)] if file.exists() else []), *options]
    async with process(command, home=tmp_path) as address:
        yield address


@asynccontextmanager
async def process(command: list[str], *, home: Path | None = None) -> AsyncGenerator[str]:
    """The address that a command prints as JSON; it is interrupted at the end."""
    env = {**os.environ, **({"HOME": str(home)} if home else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as started_:  # noqa: ASYNC220
        try:
            assert started_.stdout is not None
            yield json.loads(started_.stdout.readline())["address"]
        finally:
            started_.send_signal(signal.SIGINT)
    assert started_.returncode in {0, 130}, started_.returncode


async def test_the_command_serves_rest_and_mcp(tmp_path: Path) -> None:
    async with started(tmp_path) as address:
        async with httpx.AsyncClient(base_url=address) as client:
            await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        headers = {"x-loom-user": "ann"}
        async with (
            httpx.AsyncClient(headers=headers) as http,
            streamable_http_client(f"{address}/mcp", http_client=http) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            result = await session.call_tool("recall", {"query": "Madrid"})
            assert "Madrid" in result.content[0].text


async def test_mcp_over_http_knows_its_user_by_the_token(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    ann, everyone = file.add("ann", users=["ann"]), file.add("all")
    async with started(tmp_path) as address:
        async with (
            httpx.AsyncClient(headers=bearer(ann)) as http,
            streamable_http_client(f"{address}/mcp", http_client=http) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            done = await session.call_tool("remember", {"text": "I live in Oslo.", "by": "user"})
            assert done.structured_content["user"] == "ann"
        async with httpx.AsyncClient(base_url=address) as client:
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "facts", "arguments": {}}}
            accept = {"Accept": "application/json, text/event-stream"}
            for headers in ({}, bearer("loom_wrong")):
                assert (await client.post("/mcp", json=call, headers={**accept, **headers})).status_code == 401
            assert (await client.post("/mcp", json=call, headers={**accept, **bearer(everyone)})).status_code == 403


async def test_an_address_that_others_reach_needs_tokens(tmp_path: Path) -> None:
    options = ["--url", f"sqlite:{tmp_path}/m.db", "--host", "0.0.0.0"]
    done = run_loom([LOOM, "serve", *options], cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode
    assert "loom serve token add" in done.stderr


@pytest.mark.parametrize("command", ["serve", "inspect"])
@pytest.mark.parametrize("package", ["fastapi", "jinja2", "uvicorn"])
def test_a_part_of_the_extra_is_not_enough(command: str, package: str, tmp_path: Path) -> None:
    """Who has FastAPI for a program of their own has only a part."""
    (tmp_path / "m.db").touch()
    code = f"import sys; sys.modules[{package!r}] = None; from loom.cli import main; main()"
    place = [] if command == "serve" else ["m.db", "--no-open"]
    done = subprocess.run(
        [sys.executable, "-c", code, command, *place], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (f"loom: loom {command} needs an optional package; run: pip install 'loom-engine[server]'\n")


async def test_a_folder_that_is_not_there_opens_no_server(tmp_path: Path) -> None:
    done = run_loom([LOOM, "serve", "--url", f"sqlite:{tmp_path}/none/m.db", "--port", "0"], cwd=tmp_path)
    assert done.returncode == 2
    assert "/none'; make it first" in " ".join(done.stderr.split())


async def test_a_ctrl_c_while_it_starts_begins_nothing(caplog: pytest.LogCaptureFixture) -> None:
    begun = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["type"])
        await receive()

    async def start() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as asyncio does on Ctrl-C; it arrives where the task waits for the first time
        await http_server(app).serve()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(start())
    assert not begun
    assert not caplog.records


async def test_a_file_of_tokens_that_is_not_there_opens_no_server(tmp_path: Path) -> None:
    tokens = tmp_path / "tokns.json"
    done = run_loom([LOOM, "serve", "--url", f"sqlite:{tmp_path}/m.db", "--port", "0", "--tokens", tokens])
    assert done.returncode
    assert f"loom serve token add NAME --tokens {tokens}" in " ".join(done.stderr.split())
    assert not (tmp_path / "m.db").exists()


@pytest.mark.parametrize("words", [["list"], ["revoke", "ann"]])
def test_a_misspelled_file_of_tokens_does_not_look_like_one_without_any(tmp_path: Path, words: list[str]) -> None:
    run_loom([LOOM, "serve", "token", "add", "ann", "--tokens", tmp_path / "tokens.json"], check=True)
    done = run_loom([LOOM, "serve", "token", *words, "--tokens", tmp_path / "tokns.json"])
    assert done.returncode
    assert "there is no file of tokens" in done.stderr
    assert not list(tmp_path.glob("tokns*"))


async def test_tokens_on_the_command_line(tmp_path: Path) -> None:
    file = ["--tokens", tmp_path / "tokens.json"]
    made = run_loom([LOOM, "serve", "token", "add", "ann", "--user", "ann", "--json", *file], check=True)
    secret = json.loads(made.stdout)["token"]
    found = TokenFile(tmp_path / "tokens.json").find(secret)
    assert found is not None
    assert found.rights == ("read", "write", "forget")
    (row,) = json.loads(run_loom([LOOM, "serve", "token", "list", "--json", *file], check=True).stdout)
    assert row["users"] == ["ann"]
    run_loom([LOOM, "serve", "token", "revoke", "ann", *file], check=True)
    assert TokenFile(tmp_path / "tokens.json").find(secret) is None
    assert run_loom([LOOM, "serve", "token", "revoke", "ann", *file]).returncode
    assert "rights are" in run_loom([LOOM, "serve", "token", "add", "x", "--right", "fly", *file]).stderr


async def test_scopes_of_the_server_are_those_of_python(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/m.db"
    async with serving(url) as client:
        await ok(client, "POST", "/v1/users/ann/memories", json={**ADD, "session": "talk"})
    async with open_memory(url) as memory:
        assert await memory.store.count(Scope("default", "ann", "talk")) >= 1


async def test_inspect_opens_a_store_or_a_transcript(tmp_path: Path) -> None:
    missing = run_loom([LOOM, "inspect", "nothing.jsonl"], cwd=tmp_path)
    assert missing.returncode
    assert "does not exist" in missing.stderr
    async with open_memory(f"sqlite:{tmp_path}/m.db") as memory:
        await memory.remember("I live in Madrid.", user_id="ann")
        line = {"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "hi"}}
    (tmp_path / "talk.jsonl").write_text(json.dumps(line))
    for target, text in ((tmp_path / "m.db", "ann"), (tmp_path / "talk.jsonl", "talk.jsonl")):
        command = [sys.executable, "-m", "loom", "inspect", str(target), "--json"]
        async with process(command) as address, httpx.AsyncClient() as client:
            found = await client.get(address)
            assert found.status_code == 200
            assert text in found.text


@pytest.mark.parametrize("command", [["serve"], ["inspect", "talk.jsonl"], ["mcp"], ["proxy"]])
async def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "talk.jsonl").write_text("{}")
    hidden = "import sys; sys.modules.update(dict.fromkeys(['starlette', 'fastapi', 'mcp', 'mcp_types', 'uvicorn']))"
    program = f"{hidden}; sys.argv[1:] = {command!r}; from loom.cli import main; main()"
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode
    assert "pip install 'loom-engine[" in done.stderr
    assert "Traceback" not in done.stderr
