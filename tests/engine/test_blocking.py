"""The blocking forms of Memory, Session and Agent: the same methods, without a loop."""

import inspect
import os
import signal
import subprocess
import sys
import threading

import anyio
import pytest

from loom import (
    Agent,
    Fact,
    Memory,
    Reply,
    Session,
    SyncAgent,
    SyncMemory,
    SyncSession,
    Text,
    TurnEnd,
    UsageError,
    open_memory,
    open_memory_sync,
)
from loom.core.threads import Portal
from loom.testing import ScriptedModel

LEFT_OUT = {"aclose", "announce", "answering", "blocking", "open", "resume_sync", "run_sync"}


@pytest.mark.parametrize(
    ("kind", "twin", "added"),
    [(Memory, SyncMemory, {"close"}), (Session, SyncSession, {"close", "stream"}), (Agent, SyncAgent, set())],
)
def test_a_twin_has_every_public_method_with_the_same_parameters(kind, twin, added):
    public = {name for name in dir(kind) if not name.startswith("_")} - LEFT_OUT
    there = {name for name in dir(twin) if not name.startswith("_")}
    assert public <= there
    attributes = {name for name in there - public - added if isinstance(getattr(twin, name), property)}
    assert there == public | attributes | added
    for name in public:
        method = getattr(kind, name)
        if inspect.isfunction(method):
            mine, theirs = inspect.signature(getattr(twin, name)), inspect.signature(method)
            assert list(mine.parameters.values()) == list(theirs.parameters.values()), name
            assert getattr(twin, name).__doc__, name


def test_completion_shows_the_methods_and_repr_says_what_it_is():
    with open_memory_sync("inmemory") as memory:
        assert {"remember", "recall", "forget", "worker", "export"} <= set(dir(memory))
        assert repr(memory).startswith("SyncMemory(Memory(")


def test_the_opener_takes_what_the_async_one_takes():
    mine, theirs = inspect.signature(open_memory_sync), inspect.signature(open_memory)
    assert list(mine.parameters.values()) == list(theirs.parameters.values())
    assert list(inspect.signature(Memory.open).parameters) == list(theirs.parameters)
    with pytest.raises(TypeError, match="embeder"):
        open_memory_sync("inmemory", embeder="hash")  # pyright: ignore[reportCallIssue]


def test_iterators_are_read_item_by_item_and_may_be_left():
    with open_memory_sync("inmemory", embedder="hash") as memory:
        for number in range(5):
            memory.remember(f"Note {number}.", user_id="ann")
        records = memory.list(user_id="ann")
        assert next(records).text == "Note 0."
        records.close()
        assert len([*memory.export(user_id="ann")]) == 6
        assert len([*memory.list(user_id="ann")]) == 5


def test_a_worker_runs_for_as_long_as_the_block_lasts():
    with open_memory_sync("inmemory", embedder="hash") as memory:
        with memory.worker(every=0.001):
            memory.remember("I live in Oslo.", user_id="ann")
            while not (facts := memory.facts(user_id="ann")):
                pass
            assert isinstance(facts[0], Fact)
        assert memory.stats(user_id="ann")["failed"] == 0


def test_an_error_inside_a_block_leaves_it():
    with open_memory_sync("inmemory", embedder="hash") as memory:
        with pytest.raises(ExceptionGroup) as caught, memory.worker():
            raise LookupError("mine")
        assert "mine" in repr(caught.value)
        assert memory.remember("Still here.", user_id="ann").kept


def test_a_memory_that_is_closed_refuses():
    memory = open_memory_sync("inmemory")
    memory.close()
    memory.close()
    with pytest.raises(UsageError, match="this memory is closed"):
        memory.recall("x", user_id="ann")
    with pytest.raises(UsageError, match="this memory is closed"):
        memory.list(user_id="ann")


def test_what_is_read_only_after_closing_is_refused():
    with open_memory_sync("inmemory") as memory:
        lines = memory.export(user_id="ann")
    with pytest.raises(UsageError, match="this memory is closed; open another"):
        next(lines)


def test_closing_ends_what_is_half_read():
    memory = open_memory_sync("inmemory", embedder="hash")
    memory.remember(["One.", "Two."], user_id="ann")
    records = memory.list(user_id="ann")
    next(records)
    memory.close()
    assert "loom portal" not in [thread.name for thread in threading.enumerate()]


def test_a_view_shares_the_loop_of_its_memory():
    with open_memory_sync("inmemory", embedder="hash") as memory, memory.view(namespace="shop") as shop:
        assert isinstance(shop, SyncMemory)
        assert shop.namespace == "shop"
        assert shop.remember("Tea.", user_id="ann").kept
        assert not memory.recall("tea", user_id="ann").hits


def test_a_session_sends_streams_forks_and_closes():
    session = SyncSession(Session(model=ScriptedModel(lambda request: f"{len(request.messages)} messages")))
    with session:
        reply = session.send("Hi.")
        assert isinstance(reply, Reply)
        assert reply.text == "1 messages"
        events = [*session.stream("Hi again.")]
        assert isinstance(events[-1], TurnEnd)
        assert "".join(event.text for event in events if isinstance(event, Text)) == "3 messages"
        assert session.turn == 2
        with session.fork(1) as other:
            assert isinstance(other, SyncSession)
            assert other.send("Another way.").text == "3 messages"
        assert session.compact(dry_run=True) is not None
        assert session.id in repr(session)
    with pytest.raises(UsageError, match="closed"):
        session.send("Hi.")


def test_leaving_a_stream_stops_the_turn_and_another_may_begin():
    with SyncAgent(Agent(model=ScriptedModel(lambda _: "one two three"))) as agent:
        for event in agent.stream("Hi.", session_id="s"):
            if isinstance(event, Text):
                break
        assert agent.run("Hi.", session_id="s").text == "one two three"


def test_an_agent_in_blocking_form():
    model = ScriptedModel(lambda request: f"{len(request.messages)} messages")
    with SyncAgent(Agent(model=model, name="bot")) as agent:
        assert agent.run("Hi.", session_id="s").turn == 1
        assert isinstance([*agent.stream("Hi.", session_id="s")][-1], TurnEnd)
        assert agent.session(session_id="s").turn == 2
        assert agent.name == "bot"
        assert agent.memory is not None
        assert agent.memory.stats(user_id="default")["failed"] == 0
        assert "bot" in repr(agent)


def test_the_blocking_form_of_an_agent_and_run_sync_share_one_loop():
    agent = Agent(model=ScriptedModel(lambda request: f"{len(request.messages)} messages"))
    assert agent.run_sync("Hi.", session_id="s").turn == 1
    assert [event for event in agent.blocking.stream("Hi.", session_id="s") if isinstance(event, TurnEnd)]
    assert agent.run_sync("Hi.", session_id="s").turn == 3
    assert [thread.name for thread in threading.enumerate()].count("loom portal") == 1
    agent.close()
    assert "loom portal" not in [thread.name for thread in threading.enumerate()]


def test_it_works_where_a_loop_is_running():
    async def main():
        with open_memory_sync("inmemory", embedder="hash") as memory:
            memory.remember("I live in Oslo.", user_id="ann")
            return [record.text for record in memory.list(user_id="ann")]

    assert anyio.run(main) == ["I live in Oslo."]


def test_what_fails_in_a_stream_fails_in_the_loop():
    def fail(_):
        raise LookupError("no answer")

    with SyncAgent(Agent(model=ScriptedModel(fail))) as agent, pytest.raises(LookupError, match="no answer"):
        list(agent.stream("Hi."))


def test_a_program_that_leaves_a_stream_half_read_ends(tmp_path):
    program = (
        "from loom import open_memory_sync\n"
        "memory = open_memory_sync('inmemory', embedder='hash'); memory.remember(['One.', 'Two.'], user_id='ann')\n"
        "records = memory.list(user_id='ann'); print(next(records).text)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("One.", "")


def test_an_interrupted_call_stops_what_it_waited_for():
    portal = Portal()
    stopped = threading.Event()

    async def forever():
        os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does, while the main thread waits
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    with pytest.raises(KeyboardInterrupt):
        portal.call(forever)
    assert stopped.wait(60)
    portal.close()
