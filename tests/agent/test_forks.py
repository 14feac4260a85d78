"""Forked processes: what was opened before the fork refuses in words there, and goes on in the parent."""

import multiprocessing
import os
import signal
import warnings
from contextlib import suppress
from threading import Thread

import anyio
import apsw
import pytest

from loom import Agent, open_memory, open_memory_sync
from loom.core.clock import SHARED
from loom.errors import StoreUnavailable, UsageError
from loom.stores.sqlite import file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
REFUSED = "refused: {} was opened before this process was forked; open it again here"
PLACES = ["inmemory", "sqlite:{}/bot.db"]


def said_in_a_fork(action):
    """What `action` returns in a forked process, or what it was refused with; nothing where it hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork with threads: we test it
        pid = os.fork()
    if pid == 0:
        # Not faulthandler: to set its timer anew it waits for a thread that is not there in a fork.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(200)
        os.write(writing, outcome(action).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def outcome(action):
    try:
        return str(action())
    except UsageError as error:
        return f"refused: {error}"
    except BaseException as error:  # noqa: BLE001 - the parent must hear of it
        return f"raised {error!r}"


@pytest.fixture(params=PLACES)
def url(request, tmp_path):
    return request.param.format(tmp_path)


def kept(memory, text="I live in Oslo."):
    return len(memory.remember(text, user_id="ann").kept)


@pytest.mark.parametrize("is_used", [False, True], ids=["made", "used"])
def test_a_blocking_memory_refuses_in_a_fork_and_goes_on_in_the_parent(url, is_used):
    with open_memory_sync(url) as memory:
        if is_used:
            assert kept(memory) == 1
        assert said_in_a_fork(lambda: kept(memory)) == REFUSED.format("this memory")
        assert said_in_a_fork(lambda: list(memory.facts(user_id="ann"))) == REFUSED.format("this memory")
        assert kept(memory, "I have a dog.") == 1


@pytest.mark.parametrize("is_used", [False, True], ids=["made", "used"])
def test_closing_a_blocking_memory_in_a_fork_leaves_it_to_the_parent(url, is_used):
    with open_memory_sync(url) as memory:
        if is_used:
            kept(memory)
        assert said_in_a_fork(memory.close) == "None"
        assert said_in_a_fork(lambda: [memory.close(), memory.close()]) == "[None, None]"
        assert kept(memory, "I have a dog.") == 1


def test_an_agent_that_ran_refuses_in_a_fork_and_goes_on_in_the_parent(url):
    with Agent(memory=url) as agent:
        assert agent.run_sync("I live in Oslo.").stop == "end"
        assert said_in_a_fork(lambda: agent.run_sync("Hello.").stop) == REFUSED.format("this agent")
        assert said_in_a_fork(agent.close) == "None"
        assert agent.run_sync("I have a dog.").stop == "end"


def test_an_agent_that_did_not_run_works_in_a_fork_and_in_the_parent(url):
    agent = Agent(memory=url)
    answers = said_in_a_fork(
        lambda: [agent.run_sync("I live in Oslo.").stop, agent.run_sync("Hi.").stop, agent.close()]
    )
    assert answers == "['end', 'end', None]"
    assert agent.run_sync("I have a dog.").stop == "end"
    agent.close()


def test_a_fork_opens_the_same_place_again(url):
    def again():
        with open_memory_sync(url) as mine, Agent(memory=url) as agent:
            return kept(mine), agent.run_sync("I have a dog.").stop

    with open_memory_sync(url) as memory, Agent(memory=url) as agent:
        kept(memory)
        agent.run_sync("I live in Oslo.")
        assert said_in_a_fork(again) == "(1, 'end')"


def test_processes_of_multiprocessing_are_refused_as_well(tmp_path):
    context = multiprocessing.get_context("fork")
    with open_memory_sync(f"sqlite:{tmp_path}/bot.db") as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kept(memory)
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=lambda: there.send(outcome(lambda: kept(memory))))
        child.start()
        there.close()
        assert here.recv() == REFUSED.format("this memory")
        child.join()


def test_an_async_memory_refuses_and_closes_in_a_fork(tmp_path):
    async def main():
        memory = open_memory(f"sqlite:{tmp_path}/bot.db")
        await memory.remember("I live in Oslo.", user_id="ann")
        return memory

    memory = anyio.run(main)
    assert "was opened before this process was forked" in said_in_a_fork(
        lambda: anyio.run(lambda: memory.remember("Hi.", user_id="ann"))
    )
    assert said_in_a_fork(lambda: anyio.run(memory.aclose)) == "None"
    assert len(anyio.run(lambda: memory.remember("I have a dog.", user_id="ann")).kept) == 1
    anyio.run(memory.aclose)


def test_a_lock_that_another_thread_holds_at_the_fork_holds_nobody_up_in_the_child(tmp_path):
    agent = Agent(memory=f"sqlite:{tmp_path}/bot.db")
    with agent._portal_lock, SHARED._lock:  # as while another thread starts the loop, or makes an id
        assert said_in_a_fork(lambda: agent.run_sync("Hi.").stop) == "end"


def test_a_file_that_another_thread_is_opening_at_the_fork_holds_nobody_up_in_the_child(tmp_path):
    busy = f"sqlite:{tmp_path}/busy.db"
    holder = apsw.Connection(str(tmp_path / "busy.db"))
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("BEGIN IMMEDIATE")
    memory = open_memory_sync(busy)

    def wait_for_the_file():
        with suppress(StoreUnavailable):  # it gives up after a while, and the child may take longer than that
            kept(memory)

    thread = Thread(target=wait_for_the_file)
    thread.start()
    while not file._LOCK.locked():
        thread.join(0.01)
    try:
        with_another = f"sqlite:{tmp_path}/other.db"
        assert said_in_a_fork(lambda: kept(open_memory_sync(with_another))) == "1"
    finally:
        holder.execute("ROLLBACK")
        thread.join()
        memory.close()


def test_a_folder_that_one_process_may_use_is_not_the_childs_as_well(tmp_path):
    pytest.importorskip("chromadb")
    from loom.errors import StoreUnavailable
    from loom.stores.chroma import store

    key = store.hold(str(tmp_path))

    def hold_again():
        with pytest.raises(StoreUnavailable, match="is open in process"):
            store.hold(str(tmp_path))

    assert said_in_a_fork(hold_again) == "None"
    store.release(key)
