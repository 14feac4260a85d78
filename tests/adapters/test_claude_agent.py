"""The Claude Agent SDK: its own conformance suite on every store, its own helpers, and many writers."""

import asyncio
import os
import sys
from contextlib import aclosing
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    query,
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


PROGRAM = """#!{python} -S
# Speaks as Claude Code does, as far as a transcript is concerned: no model, no network.
import json, os, sys, uuid
from pathlib import Path

arguments = sys.argv[1:]
resumed = [b for a, b in zip(arguments, arguments[1:]) if a == "--resume"] + [a[9:] for a in arguments if a.startswith("--resume=")]
session = resumed[0] if resumed else str(uuid.uuid4())
file = Path(os.environ["CLAUDE_CONFIG_DIR"]) / "projects" / "{project}" / (session + ".jsonl")
file.parent.mkdir(parents=True, exist_ok=True)

def send(message):
    print(json.dumps(message), flush=True)

for line in sys.stdin:
    given = json.loads(line)
    if given["type"] == "control_request":
        send({{"type": "control_response", "response": {{"subtype": "success", "request_id": given["request_id"], "response": {{}}}}}})
    elif given["type"] == "user":
        known = file.read_text().splitlines() if file.exists() else []
        answer = f"I have {{len(known)}} lines."
        said = [("user", given["message"]["content"]), ("assistant", [{{"type": "text", "text": answer}}])]
        entries = [
            {{"type": role, "uuid": str(uuid.uuid4()), "sessionId": session, "message": {{"role": role, "content": content}}}}
            for role, content in said
        ]
        with file.open("a") as out:
            out.writelines(json.dumps(entry) + "\\\\n" for entry in entries)
        send({{"type": "transcript_mirror", "filePath": str(file), "entries": entries}})
        send({{"type": "assistant", "session_id": session, "message": {{"role": "assistant", "model": "m", "content": entries[1]["message"]["content"]}}}})
        send({{"type": "result", "subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1, "session_id": session, "result": answer}})
"""


@pytest.mark.skipif(os.name == "nt", reason="a script is not a program there")
async def test_a_query_goes_on_in_another_folder_from_what_the_store_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "claude"
    program.write_text(PROGRAM.format(python=sys.executable, project=project_key_for_directory(str(tmp_path))))
    program.chmod(0o755)
    said = list[str]()

    async def ask(prompt: str, **options) -> str:
        async with LoomSessionStore(f"sqlite:{tmp_path}/s.db", user_id="ann") as store:
            folder = {"CLAUDE_CONFIG_DIR": str(tmp_path / f"config-{len(said)}")}  # as on another machine
            settings = ClaudeAgentOptions(cli_path=program, session_store=store, cwd=tmp_path, env=folder, **options)
            session = ""
            async with aclosing(query(prompt=prompt, options=settings)) as messages:
                async for message in messages:
                    if isinstance(message, ResultMessage):
                        said.append(message.result or "")
                        session = message.session_id
            return session

    session = await ask("Hello")
    assert await ask("Are you there?", resume=session) == session
    assert await ask("Still?", continue_conversation=True) == session
    assert said == ["I have 0 lines.", "I have 2 lines.", "I have 4 lines."]
    async with LoomSessionStore(f"sqlite:{tmp_path}/s.db", user_id="ann") as store:
        held: Any = await store.load({"project_key": project_key_for_directory(str(tmp_path)), "session_id": session})
    assert [line["message"]["content"] for line in held if line["type"] == "user"] == [
        "Hello",
        "Are you there?",
        "Still?",
    ]
