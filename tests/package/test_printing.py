"""What people see when they print what they hold."""

import pytest

from loom import Agent, Session, open_memory_sync
from loom.testing import ScriptedModel


@pytest.fixture
def memory():
    with open_memory_sync("inmemory", embedder="hash", namespace="shop") as memory:
        memory.remember("I live in Oslo,\nwith <b>Anna</b>.", user_id="ann")
        yield memory


def test_recalled_prints_its_hits_and_has_a_table(memory):
    recalled = memory.recall("Oslo", user_id="ann")
    score, text = str(recalled).splitlines()[0].split("  ", 1)
    assert (float(score) > 0, text) == (True, "I live in Oslo, with <b>Anna</b>.")
    assert "<td>I live in Oslo,\nwith &lt;b&gt;Anna&lt;/b&gt;.</td>" in recalled._repr_html_()


def test_recalled_says_that_nothing_was_found(memory):
    assert str(memory.recall("Oslo", user_id="bob")).startswith("nothing was found for user 'bob' in 0 records")


def test_memory_session_and_agent_say_what_they_are(memory):
    assert repr(memory) == "SyncMemory(Memory(InMemoryStore, namespace='shop'))"
    session = Session(model=ScriptedModel(), session_id="s", user_id="ann")
    assert repr(session) == "Session('s', user_id='ann', turns=0)"
    agent = Agent(model=ScriptedModel(), name="bot", memory="inmemory")
    assert repr(agent) == "Agent(name='bot', model='scripted:model', memory=Memory(InMemoryStore, namespace='default'))"


def test_a_password_is_not_printed():
    pytest.importorskip("psycopg")
    assert "secret" not in repr(Agent(model=ScriptedModel(), memory="postgres://ann:secret@localhost/db"))
