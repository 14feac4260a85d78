"""Following a user and a conversation: what is told, how a client comes back, and what ends a stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest

from loom import Agent, open_checkpoints, open_memory
from loom.cli.serve import listening
from loom.core.log import Checkpoint, LoggedMessage
from loom.core.message import Message
from loom.core.scope import Scope
from loom.server.http import events
from loom.server.http.app import create_app
from loom.server.http.guard import Limits
from loom.server.http.listen import http_server
from loom.server.tokens import TokenFile
from tests.server.test_http import ADD, bearer, ok, refused, serving

pytestmark = pytest.mark.anyio


def told_in(text: str) -> list[dict[str, Any]]:
    """The events of a stream that ended; comments are left out."""
    found: list[dict[str, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


async def told_now(client: httpx.AsyncClient, path: str, **options: Any) -> list[dict[str, Any]]:
    """What a stream tells that ends at once."""
    response = await client.get(path, params={"seconds": 0, **options.pop("params", {})}, **options)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = told_in(response.text)
    assert found[-1]["event"] == "end"
    return found[:-1]


def names(told: list[dict[str, Any]]) -> list[str]:
    return [one["event"] for one in told]


async def test_what_changed_since_the_last_event_is_told_to_who_comes_back() -> None:
    async with serving() as client:
        (ready,) = await told_now(client, "/v1/users/ann/events")
        assert ready["event"] == "ready"
        assert names(await told_now(client, "/v1/users/ann/events", headers={"Last-Event-ID": ready["id"]})) == [
            "ready"
        ]
        await ok(client, "POST", "/v1/users/ann/memories", json=ADD)
        for options in ({"headers": {"Last-Event-ID": ready["id"]}}, {"params": {"after": ready["id"]}}):
            again = await told_now(client, "/v1/users/ann/events", **options)
            assert names(again) == ["ready", "memory"]
            assert "id" not in again[0], "a stream that breaks here would lose what comes now"
            assert again[1]["data"]["records"] == 2
        last = again[1]["id"]
        assert names(await told_now(client, "/v1/users/ann/events", params={"after": last})) == ["ready"]
        await ok(client, "PUT", "/v1/users/ann/blocks/plan", json={"text": "Ship it."})
        changed = await told_now(client, "/v1/users/ann/events", params={"after": last})
        assert names(changed) == ["ready", "memory"]
        await ok(client, "PUT", "/v1/users/ann/blocks/plan", json={"text": "Do not ship it."})  # no record more
        assert names(await told_now(client, "/v1/users/ann/events", params={"after": changed[1]["id"]}))[1:] == [
            "memory"
        ]
        bob = await told_now(client, "/v1/users/bob/events", params={"after": last})
        assert bob[1]["data"]["records"] == 0, "another user's id tells nothing of that user"


async def test_a_conversation_is_told_from_a_position_on(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    path = "/v1/users/ann/sessions/talk/events"
    async with serving(url) as client:
        await refused(client, 404, "GET", path)
        async with Agent("offline", memory=url) as agent:
            await agent.run("Hello.", user_id="ann", session_id="talk")
            (ready,) = await told_now(client, path)
            seen = (await told_now(client, "/v1/users/ann/events"))[0]["id"]
            await agent.run("I live in Madrid.", user_id="ann", session_id="talk")
        new = await told_now(client, path, headers={"Last-Event-ID": ready["id"]})
        said = [one["data"]["text"] for one in new if one["event"] == "message"]
        assert said[0] == "I live in Madrid."
        assert names(new)[-1] == "checkpoint"
        positions = [int(one["id"].split(".")[0]) for one in new[1:-1]]
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        middle = next(one for one in new if one["event"] == "message")
        rest = await told_now(client, path, params={"after": middle["id"]})
        assert [one["id"] for one in rest[1:]] == [one["id"] for one in new[new.index(middle) + 1 :]]
        (session,) = (
            one
            for one in await told_now(client, "/v1/users/ann/events", params={"after": seen})
            if one["event"] == "session"
        )
        assert session["data"]["session"] == "talk"
        await ok(client, "POST", "/v1/users/ann/sessions/talk/restore", json={"at": "1"})
        back = await told_now(client, path, params={"after": new[-1]["id"]})
        assert names(back) == ["reset", "ready"], "what was told is no longer part of the conversation"


@pytest.mark.parametrize(
    "id", ["x", "5", "1.nothing", "99999999.", "1.%0a", "-1.x", "0.0", "\N{ARABIC-INDIC DIGIT ONE}.x"]
)
async def test_an_id_that_is_not_known_begins_anew(tmp_path: Path, id: str) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        await agent.run("Hello.", user_id="ann", session_id="talk")
    async with serving(url) as client:
        for path in ("/v1/users/ann/events", "/v1/users/ann/sessions/talk/events"):
            found = await told_now(client, path, params={"after": id})
            assert names(found) == ["reset", "ready"]
            assert found[1]["id"]


async def test_no_name_can_forge_an_event(tmp_path: Path) -> None:
    """Ids may hold line ends, which end a field of a stream."""
    url, evil = f"sqlite:{tmp_path}/bot.db", "a\n\nevent: end\ndata: {}\n\n\u2028\r"
    scope = Scope("default", "ann", evil)
    async with aclosing(open_checkpoints(url)) as checkpoints:
        at = (await checkpoints.append(scope, [], id="first")).at
        message = LoggedMessage("m\n\nevent: x", at, Message.user("data: x\n\nevent: x"))
        saved = Checkpoint(id=evil, session_id=evil, at=at, position=1, turn=1, parent="first")
        await checkpoints.save(scope, saved, entries=[message], head="first")
    async with serving(url) as client:
        path = f"/v1/users/ann/sessions/{quote(evil, safe='')}/events"
        found = await told_now(client, path, params={"after": "0.first"})
        assert names(found) == ["ready", "message", "checkpoint"]
        assert found[2]["data"]["id"] == evil
        again = await told_now(client, path, headers={"Last-Event-ID": found[1]["id"]})
        assert names(again) == ["ready", "checkpoint"]
        assert names(await told_now(client, "/v1/users/ann/events", params={"after": f"{'0' * 16}.0"}))[-1] == "session"


# -- streams that go on


@asynccontextmanager
async def running(url: str, **options: Any) -> AsyncGenerator[tuple[httpx.AsyncClient, Any]]:
    """A client of a server with a socket between them, and the server."""
    async with open_memory(url) as memory, aclosing(open_checkpoints(url)) as checkpoints:
        app = create_app(memory, checkpoints, **options)
        server = http_server(app, on_end=app.end)
        with listening("127.0.0.1", 0) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                base = f"http://127.0.0.1:{listener.getsockname()[1]}"
                async with httpx.AsyncClient(base_url=base, timeout=60) as client:
                    yield client, server
                    server.should_exit = True


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, path: str, **options: Any
) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
    """The events of a stream, one after the other."""

    async def each(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                if "event" in fields:
                    yield {**fields, "data": json.loads(fields["data"])}
                fields = {}

    async with client.stream("GET", path, **options) as response:
        assert response.status_code == 200
        yield each(response)


async def test_what_another_process_does_is_told(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with running(url) as (client, _), following(client, "/v1/users/ann/events") as told:
        assert (await anext(told))["event"] == "ready"
        async with Agent("offline", memory=url) as agent:  # stores of its own, as a program of its own has them
            await agent.run("I live in Madrid.", user_id="bob", session_id="other")
            await agent.run("I live in Madrid.", user_id="ann", session_id="talk")
        found = await anext(told)
        while found["event"] != "session":
            assert found["event"] == "memory"
            found = await anext(told)
        assert found["data"]["session"] == "talk"


async def test_a_stream_ends_with_the_server(tmp_path: Path) -> None:
    async with running("inmemory") as (client, server), following(client, "/v1/users/ann/events") as told:
        await anext(told)
        server.should_exit = True
        last = [one async for one in told][-1]
        assert last["event"] == "end"
        assert last["data"]["reason"] == "the server ends"


async def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    secret = tokens.add("ann", users=["ann"], rights=["read"])
    tokens.add("other")
    async with (
        running("inmemory", tokens=tokens) as (client, _),
        following(client, "/v1/users/ann/events", headers=bearer(secret)) as told,
    ):
        await anext(told)
        tokens.revoke("ann")
        last = [one async for one in told][-1]
        assert last["data"]["reason"] == "the token does not count any more"


async def test_a_conversation_that_is_removed_ends_its_stream(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Agent("offline", memory=url) as agent:
        await agent.run("Hello.", user_id="ann", session_id="talk")
    async with running(url) as (client, _), following(client, "/v1/users/ann/sessions/talk/events") as told:
        await anext(told)
        await ok(client, "DELETE", "/v1/users/ann/sessions/talk")
        last = [one async for one in told][-1]
        assert last["data"]["reason"] == "the conversation was removed"


@pytest.mark.parametrize(("most", "held_by"), [(events.MOST_STREAMS, "other"), (events.MOST_OF_ONE, "ann")])
async def test_only_so_many_follow_at_once_and_who_leaves_makes_room(tmp_path: Path, most: int, held_by: str) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    ann = bearer(tokens.add("ann"))
    async with running("inmemory", tokens=tokens) as (client, server):
        place = server.config.app._app.framework.state.place
        place.streams[held_by] = most - 1
        async with following(client, "/v1/users/ann/events", headers=ann) as told:
            await anext(told)
            refusal = await refused(client, 429, "GET", "/v1/users/bob/events", headers=ann)
            assert f"{most} streams" in refusal["message"]
        while place.streams.total() >= most:  # noqa: ASYNC110 - the server notices at its next look
            await anyio.sleep(0.01)
        assert names(await told_now(client, "/v1/users/bob/events", headers=ann)) == ["ready"]


async def test_a_burst_of_streams_does_not_pass_the_limit() -> None:
    """Each is counted when it is let in, not when it tells its first event."""
    async with running("inmemory") as (client, server):
        place = server.config.app._app.framework.state.place
        place.streams["other"] = events.MOST_STREAMS - 3
        statuses: list[int] = []
        left = anyio.Event()

        async def follow() -> None:
            async with client.stream("GET", "/v1/users/ann/events") as response:
                statuses.append(response.status_code)
                if len(statuses) == 12:
                    left.set()
                await left.wait()

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(follow)
        assert sorted(statuses) == [200] * 3 + [429] * 9
        while place.streams.total() > events.MOST_STREAMS - 3:  # noqa: ASYNC110 - the server notices at its next look
            await anyio.sleep(0.01)


async def test_a_stream_says_that_it_is_there_and_outlives_the_time_limit() -> None:
    """The limit is for the time between two parts of an answer."""
    async with running("inmemory", limits=Limits(seconds=2)) as (client, _):
        async with client.stream("GET", "/v1/users/ann/events", params={"seconds": 4}) as response:
            lines = [line async for line in response.aiter_lines()]
        assert ": nothing new" in lines
        assert json.loads(lines[-2].removeprefix("data: "))["reason"] == "the time is over"
        counted = (await client.get("/metrics")).text
        assert re.search(r"loom_loop_lag_seconds_count [1-9]", counted)
