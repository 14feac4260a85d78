"""What all adapters keep to: imported only when asked for, a loop of their own for a URL, and an error that says how
to install what is missing."""

import asyncio
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

import loom.adapters
from loom import Memory, MissingExtra, UsageError, open_memory
from loom.adapters._shared import home_of_checkpoints, home_of_memory
from loom.core.scope import Scope

pytestmark = pytest.mark.anyio

NEEDS = {
    "adk": ("google.adk", "adk"),
    "agent_framework": ("agent_framework", "agent-framework"),
    "claude_agent": ("claude_agent_sdk", "claude-agent"),
    "llama_index": ("llama_index.core", "llama-index"),
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "pydantic_ai_harness": ("pydantic_ai_harness", "pydantic-ai-harness"),
    "strands": ("strands", "strands"),
}
"""The package and the extra of each adapter."""


def test_every_adapter_is_listed_here():
    names = {path.stem for path in Path(loom.adapters.__file__).parent.glob("[a-z]*.py")}
    assert {name for name in names if not name.startswith("langgraph")} == set(NEEDS)


@pytest.mark.parametrize("adapter", NEEDS)
def test_a_missing_package_is_an_error_that_says_how_to_install_it(adapter, monkeypatch):
    package, extra = NEEDS[adapter]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"loom.adapters.{adapter}", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'loom-engine\[{extra}\]'") as caught:
        import_module(f"loom.adapters.{adapter}")
    assert isinstance(caught.value, ImportError)


def test_loom_imports_no_framework_by_itself():
    packages = sorted(package.partition(".")[0] for package, _ in NEEDS.values() if package != "google.adk")
    code = (
        f"import sys, loom, loom.adapters; loom.Agent; loom.Memory; print([p for p in {packages} if p in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_what_is_given_runs_on_the_loop_that_calls_and_what_is_opened_on_its_own():
    async def thread(_: object) -> int:
        return threading.get_ident()

    memory = open_memory()
    given, opened = home_of_memory(memory), home_of_memory("inmemory")
    assert await given.call(thread) == threading.get_ident()
    own = await opened.call(thread)
    assert own != threading.get_ident()
    assert await asyncio.to_thread(lambda: asyncio.run(opened.call(thread))) == own  # from any loop of any thread
    assert await asyncio.to_thread(opened.run, thread) == own
    await given.aclose()
    await memory.remember("it is open", user_id="ann")
    await memory.aclose()
    await opened.aclose()
    with pytest.raises(UsageError, match="closed"):
        await opened.call(thread)


async def test_a_store_that_needs_no_loop_is_called_where_the_caller_is(tmp_path):
    async def thread(_: object) -> int:
        return threading.get_ident()

    scope = Scope("n", "ann", "chat")
    for url in ("inmemory", f"files:{tmp_path}/sessions", f"sqlite:{tmp_path}/s.db"):
        home = home_of_checkpoints(url)
        assert await home.call(thread) == home.run(thread) == threading.get_ident()
        portals = [one for one in threading.enumerate() if one.name == "loom portal"]
        made = [home.run(lambda store: store.append(scope, [])) for _ in range(3)]
        made += [await home.call(lambda store: store.append(scope, []))]
        made += [await asyncio.to_thread(home.run, lambda store: store.append(scope, []))]
        assert [one.id for one in home.run(lambda store: store.list(scope))] == [one.id for one in reversed(made)]
        assert portals == [one for one in threading.enumerate() if one.name == "loom portal"]
        home.close()
        home.close()
        with pytest.raises(UsageError, match="closed"):
            home.run(thread)
        with pytest.raises(UsageError, match="closed"):
            await home.call(thread)


async def test_a_memory_that_was_given_may_be_used_by_one_loop_at_a_time():
    memory = open_memory()
    home, began, end = home_of_memory(memory), threading.Event(), asyncio.Event()

    async def wait(_: object) -> None:
        began.set()
        await end.wait()

    async def remember(given: Memory) -> None:
        await given.remember("something", user_id="ann")

    task = asyncio.create_task(home.call(wait))
    await asyncio.to_thread(began.wait)
    await home.call(remember)  # the same loop
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(home.call(remember)))
    end.set()
    await task
    await asyncio.to_thread(lambda: asyncio.run(home.call(remember)))  # one after the other
    await home.call(remember)
    await memory.aclose()


async def test_cancelling_a_call_cancels_the_work():
    began, ended = threading.Event(), threading.Event()

    async def wait(_: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    home = home_of_checkpoints("inmemory")
    task = asyncio.create_task(home.call(wait))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(ended.wait)
    await home.aclose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_to_make_its_own():
    code = """
import asyncio, os
from loom import UsageError
from loom.adapters._shared import home_of_checkpoints

async def nothing(_):
    return None

home = home_of_checkpoints("inmemory")
home.run(nothing)
if os.fork() == 0:
    try:
        home.run(nothing)
    except UsageError as error:
        print(error, flush=True)
    home.close()
    os._exit(0)
os.wait()
home.close()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert "forked" in done.stdout
