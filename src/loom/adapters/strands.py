"""Sessions of Strands Agents in Loom's log: an edit is an entry, not an overwrite."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from loom.adapters._logs import Logs
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.core.log import Recorded
from loom.errors import MissingExtra
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from strands.session import SessionRepository
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage
except ImportError as error:
    raise MissingExtra("loom.adapters.strands", "strands") from error

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase

_SESSION, _AGENT, _MULTI_AGENT = "strands.session", "strands.agent", "strands.multi_agent"
_MESSAGE, _EDIT = "strands.message", "strands.edit"


class LoomSessionRepository(Owner, SessionRepository):
    """The sessions of one user, for `RepositorySessionManager(session_id=..., session_repository=...)`.

    A session is a log. What is written about an agent or a message later is an entry of its own: the last one counts,
    and the earlier ones stay. All methods block, as those of Strands do; any number of threads and processes may write.
    """

    def __init__(self, url: str | CheckpointStore, *, user_id: str, namespace: str = "default") -> None:
        """Keep the sessions of a user in a store, which stays open, or at a URL, which is closed with this."""
        self._home = home_of_checkpoints(url)
        self._logs = Logs(user_id=user_id, namespace=namespace)
        self._created: dict[tuple[str, str], str] = {}
        """When agents were created, so that a turn need not read the log to write its state."""

    def create_session(self, session: Session, **kwargs: Any) -> Session:  # noqa: ARG002
        """Begin a session; SessionException where it exists."""

        def decide(log: tuple[Recorded, ...]) -> list[Recorded]:
            if any(entry.kind == _SESSION for entry in log):
                raise SessionException(f"Session {session.session_id} already exists")
            return [self._logs.entry(_SESSION, session.to_dict())]

        self._home.run(lambda store: self._logs.change(store, session.session_id, decide))
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:  # noqa: ARG002
        """A session; None where there is none."""
        found = self._bodies(session_id, _SESSION)
        return Session.from_dict(found[-1]) if found else None

    def delete_session(self, session_id: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Remove a session, and every byte of it; SessionException where there is none."""
        if self.read_session(session_id) is None:
            raise SessionException(f"Session {session_id} does not exist")
        self._created = {key: at for key, at in self._created.items() if key[0] != session_id}
        self._home.run(lambda store: self._logs.forget(store, session_id))

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:  # noqa: ARG002
        """Add an agent to a session."""
        self._created[session_id, session_agent.agent_id] = session_agent.created_at
        self._add(session_id, self._logs.entry(_AGENT, session_agent.to_dict()))

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:  # noqa: ARG002
        """An agent as it was written last; None where there is none."""
        found = [body for body in self._bodies(session_id, _AGENT) if body["agent_id"] == agent_id]
        if not found:
            return None
        self._created[session_id, agent_id] = found[-1]["created_at"]
        return SessionAgent.from_dict(found[-1])

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:  # noqa: ARG002
        """Write what an agent is now; SessionException where there is none."""
        key = session_id, session_agent.agent_id
        if key not in self._created and self.read_agent(*key) is None:
            raise SessionException(f"Agent {session_agent.agent_id} in session {session_id} does not exist")
        session_agent.created_at = self._created[key]
        self._add(session_id, self._logs.entry(_AGENT, session_agent.to_dict()))

    def create_message(
        self,
        session_id: str,
        agent_id: str,
        session_message: SessionMessage,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Add a message of an agent; the same one again adds nothing."""
        self._add(session_id, self._message(_MESSAGE, agent_id, session_message))

    def read_message(
        self,
        session_id: str,
        agent_id: str,
        message_id: int,
        **kwargs: Any,  # noqa: ARG002
    ) -> SessionMessage | None:
        """A message as it was edited last; None where there is none."""
        found = [m for m in self._messages(session_id, agent_id) if m.message_id == message_id]
        return found[-1] if found else None

    def update_message(
        self,
        session_id: str,
        agent_id: str,
        session_message: SessionMessage,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Edit a message; SessionException where there is none."""
        held = self.read_message(session_id, agent_id, session_message.message_id)
        if held is None:
            raise SessionException(f"Message {session_message.message_id} does not exist")
        session_message.created_at = held.created_at
        self._add(session_id, self._message(_EDIT, agent_id, session_message))

    def list_messages(
        self,
        session_id: str,
        agent_id: str,
        limit: int | None = None,
        offset: int = 0,
        **kwargs: Any,  # noqa: ARG002
    ) -> list[SessionMessage]:
        """The messages of an agent in order; SessionException where there is no such agent."""
        found = self._messages(session_id, agent_id)
        if not found and self.read_agent(session_id, agent_id) is None:
            raise SessionException(f"Agent {agent_id} in session {session_id} does not exist")
        return found[offset:] if limit is None else found[offset : offset + limit]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the state of several agents that work together."""
        self._add(
            session_id, self._logs.entry(_MULTI_AGENT, {"id": multi_agent.id, "state": multi_agent.serialize_state()})
        )

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """That state as it was written last; None where there is none."""
        found = [body["state"] for body in self._bodies(session_id, _MULTI_AGENT) if body["id"] == multi_agent_id]
        return found[-1] if found else None

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Write that state anew; SessionException where there is none."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"MultiAgent state {multi_agent.id} in session {session_id} does not exist")
        self.create_multi_agent(session_id, multi_agent, **kwargs)

    def _add(self, session_id: str, entry: Recorded) -> None:
        self._home.run(lambda store: self._logs.add(store, session_id, [entry], once=True))

    def _bodies(self, session_id: str, kind: str) -> list[dict[str, Any]]:
        held = self._home.run(lambda store: self._logs.read(store, session_id, kind))
        return [cast("dict[str, Any]", entry.body) for entry in held]

    def _message(self, kind: str, agent_id: str, message: SessionMessage) -> Recorded:
        body = {"agent_id": agent_id, "message": message.to_dict()}
        # The id is that of the content, so that a call that is made again after a failure adds nothing.
        digest = sha256(json.dumps([kind, body], sort_keys=True).encode()).hexdigest()
        return self._logs.entry(kind, body, digest)

    def _messages(self, session_id: str, agent_id: str) -> list[SessionMessage]:
        """The messages of an agent by their numbers; of two writers that used the same number, both."""
        log = self._home.run(lambda store: self._logs.read(store, session_id))
        found: list[dict[str, Any]] = []
        for entry in log:
            body: Any = entry.body
            if entry.kind not in {_MESSAGE, _EDIT} or body["agent_id"] != agent_id:
                continue
            message, place = body["message"], len(found)
            if entry.kind == _EDIT:
                place = max(n for n, held in enumerate(found) if held["message_id"] == message["message_id"])
            found[place : place + 1] = [message]
        found.sort(key=lambda message: message["message_id"])
        return [SessionMessage.from_dict(message) for message in found]
