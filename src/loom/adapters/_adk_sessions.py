"""Sessions of Google's ADK in Loom's log: events are entries, and so is each change of a state."""

# ADK is not in the environment that type checkers see here; tests of its own run it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from loom.adapters._logs import Logs
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.core.log import Recorded
from loom.errors import UsageError
from loom.protocols.checkpoint_store import CheckpointStore

_CREATED, _EVENT, _DELTA = "adk.session", "adk.event", "adk.state"
_SESSION: Final = "session:"
_STATE: Final = "state"
"""The log of the state that all sessions of a user, or of an app, share."""
_APPS: Final = "adk.apps"
"""The namespace of the states of apps, where the app is the user."""


class LoomSessionService(Owner, BaseSessionService):
    """Sessions of the users of ADK apps: an app is a namespace of Loom, a user is a user.

    Any number of threads and processes may append to a session at one time, and an event that comes again is kept once.
    """

    def __init__(self, url: str | CheckpointStore) -> None:
        """Keep sessions in a store, which stays open, or at a URL, which is closed with this service."""
        self._home = home_of_checkpoints(url)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Begin a session; AlreadyExistsError where it exists."""
        id = (session_id or "").strip() or uuid4().hex
        logs, parts = Logs(user_id=user_id, namespace=app_name), _split(state or {})

        def decide(log: tuple[Recorded, ...]) -> list[Recorded]:
            if log:
                raise AlreadyExistsError(f"Session with id {id} already exists.")
            return [logs.entry(_CREATED, parts[""])]

        async def create(store: CheckpointStore) -> None:
            await logs.change(store, _SESSION + id, decide)
            await _share(store, logs, parts, f"created {id} {uuid4().hex}")

        await self._home.call(create)
        made = await self.get_session(app_name=app_name, user_id=user_id, session_id=id)
        if made is None:
            raise SessionNotFoundError(f"Session {id} was deleted while it was made.")
        return made

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events, all of them or the newest; None where there is none."""
        logs = Logs(user_id=user_id, namespace=app_name)
        id = session_id.strip()

        async def read(store: CheckpointStore) -> tuple[tuple[Recorded, ...], dict[str, Any]]:
            log = await logs.read(store, _SESSION + id)
            return log, await _shared_state(store, logs) if log else {}

        log, shared = await self._home.call(read)
        if not log:
            return None
        events = [Event.model_validate_json(json.dumps(entry.body)) for entry in log if entry.kind == _EVENT]
        state = _folded(entry.body for entry in log if entry.kind == _CREATED)
        state |= _folded(_split(event.actions.state_delta)[""] for event in events if event.actions)
        at = events[-1].timestamp if events else log[0].at.timestamp()
        if config is not None and config.num_recent_events is not None:
            events = events[-config.num_recent_events :] if config.num_recent_events else []
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        return Session(
            id=id, app_name=app_name, user_id=user_id, state={**state, **shared}, events=events, last_update_time=at
        )

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user, the one that changed last at the end; without events and state."""
        if user_id is None:
            raise UsageError("list_sessions() was given no user_id; Loom lists the sessions of one user")
        logs = Logs(user_id=user_id, namespace=app_name)
        found = await self._home.call(lambda store: store.sessions(logs.user))
        sessions = [
            Session(id=name, app_name=app_name, user_id=user_id, last_update_time=saved.last_at.timestamp())
            for saved in reversed(found)
            if (name := saved.session_id.removeprefix(_SESSION)) != saved.session_id
        ]
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Remove a session, and every byte of it; the state that is shared with others stays."""
        logs = Logs(user_id=user_id, namespace=app_name)
        await self._home.call(lambda store: logs.forget(store, _SESSION + session_id.strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state that the sessions of a user share, under names without their prefix."""
        logs = Logs(user_id=user_id, namespace=app_name)
        return _folded(entry.body for entry in await self._home.call(lambda store: logs.read(store, _STATE)))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event to a session, here and in the store; SessionNotFoundError where the store has none."""
        if event.partial or any(held == event for held in session.events if held.id == event.id):
            return event
        logs, name = Logs(user_id=session.user_id, namespace=session.app_name), _SESSION + session.id

        async def append(store: CheckpointStore) -> None:
            if await store.load(logs.user.for_session(name)) is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            body = json.loads(
                self._trim_temp_delta_state(event.model_copy(deep=True)).model_dump_json(exclude_none=True)
            )
            await logs.add(store, name, [logs.entry(_EVENT, body, event.id or None)], once=True)
            await _share(store, logs, _split(event.actions.state_delta if event.actions else {}), event.id)

        await self._home.call(append)
        event = await super().append_event(session, event)
        session.last_update_time = event.timestamp
        return event


def _split(delta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A change of the state by whose it is: the session's (under ""), the user's and the app's; no temporary one."""
    parts: dict[str, dict[str, Any]] = {"": {}, State.USER_PREFIX: {}, State.APP_PREFIX: {}}
    for key, value in delta.items():
        prefix = next((p for p in (State.USER_PREFIX, State.APP_PREFIX, State.TEMP_PREFIX) if key.startswith(p)), "")
        if prefix != State.TEMP_PREFIX:
            parts[prefix][key.removeprefix(prefix)] = value
    return parts


def _apps(logs: Logs) -> Logs:
    return Logs(user_id=logs.user.namespace, namespace=_APPS)


async def _share(store: CheckpointStore, logs: Logs, parts: Mapping[str, Mapping[str, Any]], id: str) -> None:
    """Write what a change says about the user and the app, once under its id."""
    for owner, prefix in ((logs, State.USER_PREFIX), (_apps(logs), State.APP_PREFIX)):
        if parts[prefix]:
            await owner.add(store, _STATE, [owner.entry(_DELTA, dict(parts[prefix]), id or None)], once=True)


async def _shared_state(store: CheckpointStore, logs: Logs) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for owner, prefix in ((_apps(logs), State.APP_PREFIX), (logs, State.USER_PREFIX)):
        held = _folded(entry.body for entry in await owner.read(store, _STATE))
        state |= {prefix + key: value for key, value in held.items()}
    return state


def _folded(deltas: Iterable[Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for delta in deltas:
        state |= delta
    return state
