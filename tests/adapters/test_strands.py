"""Strands Agents: its own agent and session manager over a model that answers from a list."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from strands import Agent
from strands.models import Model
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from loom import open_checkpoints
from loom.adapters.strands import LoomSessionRepository
from tests.adapters.conftest import BACKENDS, place_of
from tests.adapters.writers import check_all, write_all


class Scripted(Model):
    """A model that keeps what it was given."""

    def __init__(self) -> None:
        self.requests = list[list[Any]]()

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.requests.append([dict(message) for message in messages])
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"answer {len(self.requests)}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def texts(messages: list[Any]) -> list[str]:
    return [message["content"][0]["text"] for message in messages]


def message(n: int, text: str) -> SessionMessage:
    return SessionMessage({"role": "user", "content": [{"text": text}]}, n)


@pytest.fixture(params=["strands own", *BACKENDS])
def repository(request, servers, new_user, tmp_path):
    """Loom's repository on every store, and Strands' own, which has to behave the same."""
    if request.param == "strands own":
        yield FileSessionManager(session_id="unused", storage_dir=str(tmp_path / "strands"))
        return
    with LoomSessionRepository(place_of(request.param, servers, tmp_path), user_id=new_user()) as repository:
        yield repository


def test_sessions_agents_and_messages_behave_as_in_strands_own_repository(repository):
    assert repository.read_session("s") is None
    repository.create_session(Session("s", SessionType.AGENT))
    assert repository.read_session("s").session_type == SessionType.AGENT
    with pytest.raises(SessionException, match="already exists"):
        repository.create_session(Session("s", SessionType.AGENT))
    assert repository.read_agent("s", "a") is None
    with pytest.raises(SessionException):
        repository.update_agent("s", SessionAgent("a", {}, {}))
    with pytest.raises(SessionException):
        repository.list_messages("s", "a")
    agent = SessionAgent("a", {"n": 1}, {"removed": 0})
    repository.create_agent("s", agent)
    assert repository.list_messages("s", "a") == []
    repository.update_agent("s", SessionAgent("a", {"n": 2, "raw": b"\x00\xff"}, {}))
    read = repository.read_agent("s", "a")
    assert (read.state, read.created_at) == ({"n": 2, "raw": b"\x00\xff"}, agent.created_at)
    for n in range(12):
        repository.create_message("s", "a", message(n, f"text {n}"))
    repository.create_agent("s", SessionAgent("b", {}, {}))
    repository.create_message("s", "b", message(0, "of b"))
    assert texts([m.to_message() for m in repository.list_messages("s", "a")]) == [f"text {n}" for n in range(12)]
    assert [m.message_id for m in repository.list_messages("s", "a", limit=3, offset=9)] == [9, 10, 11]
    assert repository.read_message("s", "a", 99) is None
    with pytest.raises(SessionException):
        repository.update_message("s", "a", message(99, "none"))
    edited, created = message(3, "text 3"), repository.read_message("s", "a", 3).created_at
    edited.redact_message = {"role": "user", "content": [{"text": "removed"}]}
    repository.update_message("s", "a", edited)
    assert texts([repository.read_message("s", "a", 3).to_message()]) == ["removed"]
    assert repository.read_message("s", "a", 3).created_at == created
    assert texts([m.to_message() for m in repository.list_messages("s", "a", limit=2, offset=3)]) == [
        "removed",
        "text 4",
    ]
    repository.delete_session("s")
    assert repository.read_session("s") is None
    with pytest.raises(SessionException):
        repository.delete_session("s")
    with pytest.raises(SessionException):
        repository.update_agent("s", SessionAgent("a", {}, {}))


def test_an_agent_goes_on_where_another_object_stopped(tmp_path):
    url, model = f"sqlite:{tmp_path}/s.db", Scripted()
    for n in range(3):  # a new repository, manager and agent each time, as in a new process
        with LoomSessionRepository(url, user_id="ann") as repository:
            manager = RepositorySessionManager(session_id="s", session_repository=repository)
            agent = Agent(model=model, agent_id="a", session_manager=manager, callback_handler=None)
            assert agent.state.get("turn") == (n or None)
            agent(f"question {n + 1}")
            agent.state.set("turn", n + 1)
            manager.sync_agent(agent)
    assert texts(model.requests[-1]) == ["question 1", "answer 1", "question 2", "answer 2", "question 3"]


def test_an_edit_is_an_entry_and_the_original_stays_in_the_log():
    store = open_checkpoints("inmemory")
    with LoomSessionRepository(store, user_id="ann") as repository:
        manager = RepositorySessionManager(session_id="s", session_repository=repository)
        agent = Agent(model=Scripted(), agent_id="a", session_manager=manager, callback_handler=None)
        agent("my card is 1234")
        manager.redact_latest_message({"role": "assistant", "content": [{"text": "[redacted]"}]}, agent)
        assert texts([m.to_message() for m in repository.list_messages("s", "a")]) == ["my card is 1234", "[redacted]"]
        log = repository._home.run(lambda held: repository._logs.read(held, "s"))
    kinds = [entry.kind for entry in log]
    assert kinds.count("strands.message") == 2
    assert kinds.count("strands.edit") == 1


def test_users_never_meet_and_a_repeated_call_adds_nothing():
    store = open_checkpoints("inmemory")
    ann, bob = LoomSessionRepository(store, user_id="ann"), LoomSessionRepository(store, user_id="bob")
    said = message(0, "heron")
    for _ in range(2):
        ann.create_message("s", "a", said)
    ann.create_message("s", "a", message(0, "otter"))  # another writer that counted the same
    assert texts([m.to_message() for m in ann.list_messages("s", "a")]) == ["heron", "otter"]
    with pytest.raises(SessionException):
        bob.list_messages("s", "a")
    ann.close()
    bob.close()


def test_eight_processes_of_five_threads_lose_nothing_and_keep_nothing_twice(tmp_path):
    written = write_all("strands", f"sqlite:{tmp_path}/s.db", "ann")
    with LoomSessionRepository(f"sqlite:{tmp_path}/s.db", user_id="ann") as repository:
        check_all(texts([m.to_message() for m in repository.list_messages("shared", "agent")]), written)
