"""Many writers on one session: `python -m tests.adapters.writers KIND URL USER 8 25` starts 8 processes of 5 loops.

The framework is imported once, and the processes are forked then.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run
from traceback import print_exc
from typing import Any

import pytest

from loom import Memory
from loom.adapters._shared import Home
from tests.adapters.helpers import episodes

LOOPS = 5
SESSION = "shared"

Add = Callable[[str], Awaitable[Any]]


def claude(url: str, user: str) -> tuple[Any, Add]:
    from loom.adapters.claude_agent import LoomSessionStore

    store = LoomSessionStore(url, user_id=user)

    async def add(text: str) -> None:
        line: Any = {"type": "x", "uuid": f"id-{text}", "text": text}
        await store.append({"project_key": "p", "session_id": SESSION}, [line])
        if text.endswith("0"):
            await store.append({"project_key": "p", "session_id": SESSION}, [line])  # as after a timeout

    return store, add


def openai(url: str, user: str) -> tuple[Any, Add]:
    from loom.adapters.openai_agents import LoomSession

    session = LoomSession(SESSION, url, user_id=user)
    return session, lambda text: session.add_items([{"role": "user", "content": text}])


def agent_framework(url: str, user: str) -> tuple[Any, Add]:
    from agent_framework import Message

    from loom.adapters.agent_framework import LoomHistoryProvider

    history = LoomHistoryProvider(url, user_id=user)
    return history, lambda text: history.save_messages(SESSION, [Message("user", [text])])


def strands(url: str, user: str) -> tuple[Any, Add]:
    from strands.types.session import SessionMessage

    from loom.adapters.strands import LoomSessionRepository

    repository = LoomSessionRepository(url, user_id=user)

    async def add(text: str) -> None:
        process, loop, n = map(int, text.split("."))
        message = SessionMessage({"role": "user", "content": [{"text": text}]}, process * 1000 + loop * 100 + n)
        repository.create_message(SESSION, "agent", message)

    return repository, add


def llama_index(url: str, user: str) -> tuple[Any, Add]:
    from llama_index.core.llms import ChatMessage

    from loom.adapters.llama_index import LoomBlock

    block = LoomBlock(url, user_id=user, session_id=SESSION)
    return block, lambda text: block.aput([ChatMessage(role="user", content=f"note {text}")])


def pydantic_ai(url: str, user: str) -> tuple[Any, Add]:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    from loom.adapters.pydantic_ai import LoomMemory

    memory = LoomMemory(url, user_id=user, session_id=SESSION, remember_answers=False)
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("I see.")]))
    agent = Agent(model, capabilities=[memory])
    return memory, lambda text: agent.run(f"note {text}")


def adk(url: str, user: str) -> tuple[Any, Add]:
    from google.adk.events.event import Event  # pyright: ignore[reportMissingImports]
    from google.adk.sessions.session import Session  # pyright: ignore[reportMissingImports]
    from google.genai import types

    from loom.adapters.adk import LoomSessionService

    service = LoomSessionService(url)

    async def add(text: str) -> None:
        session = Session(id=SESSION, app_name="app", user_id=user)
        content = types.Content(role="user", parts=[types.Part(text=text)])
        await service.append_event(session, Event(author="user", invocation_id="i", id=text, content=content))

    return service, add


KINDS = {
    "adk": adk, "agent_framework": agent_framework, "claude": claude, "llama_index": llama_index, "openai": openai,
    "pydantic_ai": pydantic_ai, "strands": strands,
}  # fmt: skip


def write_all(kind: str, url: str, user: str, *, processes: int = 8, appends: int = 25) -> set[str]:
    """Write from many processes, each with five loops in threads; returns what they wrote."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", __name__, kind, url, user, str(processes), str(appends)]
    done = run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {f"{p}.{loop}.{n}" for p in range(processes) for loop in range(LOOPS) for n in range(appends)}


def check_remembered(memory: Home[Memory], user: str, written: set[str]) -> None:
    """Nothing lost, and nothing twice."""
    held = memory.run(lambda store: episodes(store, user))
    assert sorted(record.text for record in held) == sorted(f"note {text}" for text in written)


def check_all(texts: list[str], written: set[str]) -> None:
    """Nothing lost, nothing twice, and each writer's own in order."""
    assert sorted(texts) == sorted(written)
    for writer in {text.rpartition(".")[0] for text in written}:
        own = [int(text.rpartition(".")[2]) for text in texts if text.rpartition(".")[0] == writer]
        assert own == sorted(own)


def _process(kind: str, url: str, user: str, number: int, appends: int) -> None:
    adapter, add = KINDS[kind](url, user)

    async def loop(name: str) -> None:
        for n in range(appends):
            await add(f"{name}.{n}")

    with adapter, ThreadPoolExecutor(LOOPS) as threads:
        list(threads.map(lambda n: asyncio.run(loop(f"{number}.{n}")), range(LOOPS)))


def _main(kind: str, url: str, user: str, processes: str, appends: str) -> int:
    KINDS[kind]("inmemory", user)[0].close()  # imports all there is to import
    children = list[int]()
    for number in range(int(processes)):
        if (child := os.fork()) == 0:
            code = 1
            try:
                _process(kind, url, user, number, int(appends))
                code = 0
            except BaseException:  # noqa: BLE001 - the process ends here, and nobody else would say why
                print_exc()
            finally:
                os._exit(code)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
