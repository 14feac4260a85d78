"""The Claude Agent SDK: its own conformance suite on every store, its own helpers, and many writers."""

import asyncio
from typing import Any

import pytest
from claude_agent_sdk import (
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk.testing import run_session_store_conformance

from loom import open_checkpoints
from loom.adapters.claude_agent import LoomSessionStore
from tests.adapters.writers import check_all, write_all

pytestmark = pytest.mark.anyio

KEY: Any = {"project_key": "p", "session_id": "s"}


async def test_the_fourteen_contracts(place, new_user):
    made = list[LoomSessionStore]()

    def make() -> LoomSessionStore:
        made.append(LoomSessionStore(place, user_id=new_user()))
        return made[-1]

    await run_session_store_conformance(make)
    assert len(made) == 15  # one to look at, and one for each contract: none was skipped
    for store in made:
        await store.aclose()


def test_processes_with_five_loops_each_lose_nothing_and_keep_nothing_twice(lasting_place, new_user):
    user, is_file = new_user(), lasting_place.startswith("sqlite")
    written = write_all("claude", lasting_place, user, processes=8 if is_file else 2, appends=25 if is_file else 5)
    with LoomSessionStore(lasting_place, user_id=user) as store:
        lines: Any = asyncio.run(store.load({"project_key": "p", "session_id": "shared"}))
    check_all([line["text"] for line in lines], written)


def a_line(n: int, text: str = "", **more) -> Any:
    """A line of a transcript as Claude Code writes it."""
    said = {"role": "user" if n % 2 else "assistant", "content": text or f"line {n}"}
    about = {
        "uuid": f"00000000-0000-4000-8000-{n:012}",
        "parentUuid": f"00000000-0000-4000-8000-{n - 1:012}" if n > 1 else None,
    }
    return {
        "type": said["role"],
        "message": said,
        "timestamp": f"2026-01-01T00:00:{n:02}.000Z",
        "sessionId": SESSION,
        **about,
        **more,
    }


SESSION = "11111111-1111-4111-8111-111111111111"


async def test_the_helpers_of_the_sdk_read_what_another_object_wrote(tmp_path):
    project = project_key_for_directory(str(tmp_path))
    key: Any = {"project_key": project, "session_id": SESSION}
    async with LoomSessionStore(f"sqlite:{tmp_path}/s.db", user_id="ann") as store:
        await store.append(key, [a_line(1, "Why does the cache move?"), a_line(2)])
        await store.append(key, [a_line(2), a_line(3), a_line(4)])
        await store.append({**key, "subpath": "subagents/agent-1"}, [a_line(1, "look into it")])
    async with LoomSessionStore(f"sqlite:{tmp_path}/s.db", user_id="ann") as store:
        said = await get_session_messages_from_store(store, SESSION, directory=str(tmp_path))
        assert [message.message["content"] for message in said] == [
            "Why does the cache move?",
            "line 2",
            "line 3",
            "line 4",
        ]
        for _ in range(2):  # the second time from the summary that was kept
            (info,) = await list_sessions_from_store(store, directory=str(tmp_path))
            assert (info.session_id, info.first_prompt) == (SESSION, "Why does the cache move?")
        before = await store.list_sessions(project)
        await store.list_session_summaries(project)
        assert await store.list_sessions(project) == before  # to list is not to change
        await store.append(key, [{"type": "custom-title", "customTitle": "Cache", "sessionId": SESSION}])
        (info,) = await list_sessions_from_store(store, directory=str(tmp_path))
        assert info.custom_title == "Cache"
        forked = await fork_session_via_store(store, SESSION, directory=str(tmp_path))
        assert len(await store.list_sessions(project)) == 2
        await delete_session_via_store(store, SESSION, directory=str(tmp_path))
        assert [entry["session_id"] for entry in await store.list_sessions(project)] == [forked.session_id]
        assert await store.list_subkeys(key) == []


async def test_a_deleted_session_that_begins_again_has_a_new_summary():
    async with LoomSessionStore("inmemory", user_id="ann") as store:
        await store.append(KEY, [a_line(n, f"old {n}") for n in range(1, 5)])
        await store.list_session_summaries("p")
        await store.delete(KEY)
        await store.append(KEY, [a_line(n, f"new {n}") for n in range(1, 9)])
        (summary,) = await store.list_session_summaries("p")
    assert "new 1" in str(summary["data"])
    assert "old" not in str(summary["data"])


async def test_users_and_other_sessions_of_a_store_never_meet():
    shared = open_checkpoints("inmemory")
    ann, bob = LoomSessionStore(shared, user_id="ann"), LoomSessionStore(shared, user_id="bob")
    await ann.append(KEY, [a_line(1)])
    await ann.aclose()  # the store was given, so it stays open
    assert await bob.load(KEY) is None
    assert await bob.list_sessions("p") == []
    tricky: Any = {"project_key": 'p", "s', "session_id": "x"}
    await bob.append(tricky, [a_line(1)])
    assert await bob.list_sessions("p") == []
    assert len(await bob.list_sessions('p", "s')) == 1
    await shared.aclose()
