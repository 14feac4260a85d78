"""Loom in Google's Agent Development Kit: a memory service and a session service.

ADK needs google-genai 2 and Loom's own `gemini` extra google-genai 3, so the two extras cannot share an environment.
"""

# ADK is not in the environment that type checkers see here; tests of its own run it.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from loom.adapters._shared import Owner, home_of_memory
from loom.core.filter import In
from loom.core.record import Episode, Fact, Hit, WorkingBlock
from loom.core.scope import Scope
from loom.errors import MissingExtra, UsageError
from loom.memory._shared import FILE
from loom.memory._write.ingest import Utterance, keyed_id
from loom.memory.memory import Memory
from loom.text.fence import one_line, without_tag

try:
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions.session import Session
    from google.genai import types

    from loom.adapters._adk_sessions import LoomSessionService
except ImportError as error:
    raise MissingExtra("loom.adapters.adk", "adk") from error

__all__ = ["LoomMemoryService", "LoomSessionService"]

_FENCE: Final = "PAST_CONVERSATIONS"
"""The tag between which ADK shows memories to the model."""
_DELETED: Final = f"{FILE}adk-deleted"
"""The block with the ids of deleted memories: a session that is added again must not bring them back."""
_IDS: Final = 2_500
"""Deleted ids that are remembered; they fit one block."""


class LoomMemoryService(Owner, BaseMemoryService):
    """Memories of the users of ADK apps: an app is a namespace of Loom, a user is a user.

    Adding a session, or an event, again adds nothing. What the user said and what agents answered is remembered;
    thoughts, calls and results of tools are not. `add_memory` keeps the entries as they are.
    """

    def __init__(self, memory: str | Mapping[str, Any] | Memory, *, limit: int = 10, budget: int | None = None) -> None:
        """Use a memory.

        Args:
            memory: a memory, which stays open, or what open_memory() takes, which is closed with this service.
            limit: the most memories that a search gives.
            budget: the most tokens that a search gives, all memories together.
        """
        self._home = home_of_memory(memory)
        self._limit, self._budget = limit, budget
        self._apps: dict[str, Memory] = {}

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember what was said in a session, as far as it is new."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember what was said in these events, as far as it is new."""
        said = [(event.id, turn) for event in events if not event.partial and (turn := _turn(event)) is not None]
        attributes: Any = custom_metadata
        await self._home.call(lambda _: self._add(app_name, user_id, session_id, said, attributes))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember entries; one with an id is remembered once."""
        said = [
            (entry.id, _utterance(text, entry.author, entry.timestamp and datetime.fromisoformat(entry.timestamp)))
            for entry in memories
            if (text := _text(entry.content))
        ]
        attributes: Any = custom_metadata
        await self._home.call(lambda _: self._add(app_name, user_id, None, said, attributes))

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """What the memory of a user holds about a question, the best first."""
        if not query.strip():
            return SearchMemoryResponse()
        found = await self._home.call(
            lambda _: self._app(app_name).recall(query, user_id=user_id, limit=self._limit, budget=self._budget)
        )
        return SearchMemoryResponse(memories=[_entry(hit) for hit in found.hits])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget one memory and what was derived from it alone; adding its session again does not bring it back."""
        if not memory_id:
            raise UsageError("delete_memory() was given no memory_id; give the id of an entry that a search found")

        async def delete(_: Memory) -> None:
            memory = self._app(app_name)
            ids = await _deleted(memory, user_id)
            text = json.dumps([*dict.fromkeys((*ids, memory_id))][-_IDS:])
            await memory.set_block(_DELETED, text, user_id=user_id, origin="operator")
            await memory.forget(memory_id, user_id=user_id)

        await self._home.call(delete)

    def _app(self, name: str) -> Memory:
        if name not in self._apps:
            self._apps[name] = self._home.of.view(namespace=name)
        return self._apps[name]

    async def _add(
        self,
        app_name: str,
        user_id: str,
        session_id: str | None,
        said: Sequence[tuple[str | None, Utterance]],
        attributes: Mapping[str, Any] | None,
    ) -> None:
        memory = self._app(app_name)
        scope = Scope(app_name, user_id, session_id)
        ids = tuple(keyed_id(scope, key, 0) for key, _ in said if key)
        known = await memory.store.list(scope.for_user(), where=In("id", ids), limit=len(ids)) if ids else ()
        skip = {record.id for record in known} | set(await _deleted(memory, user_id))
        for key, turn in said:
            if key is None or keyed_id(scope, key, 0) not in skip:
                await memory.remember(
                    turn, user_id=user_id, session_id=session_id, key=key, attributes=attributes, learn=True
                )
        if self._home.owns:
            await memory.upkeep(user_id=user_id)


async def _deleted(memory: Memory, user_id: str) -> list[str]:
    found = await memory.store.get(Scope(memory.namespace, user_id), f"block:{_DELETED}")
    return json.loads(found.text) if isinstance(found, WorkingBlock) else []


def _turn(event: Event) -> Utterance | None:
    """What is said in an event; None where nothing is."""
    text = _text(event.content)
    return _utterance(text, event.author, datetime.fromtimestamp(event.timestamp, UTC)) if text else None


def _utterance(text: str, author: str | None, at: datetime | None) -> Utterance:
    by_user = author in {None, "user"}
    return Utterance(text=text, speaker=author or "user", origin="user" if by_user else "assistant", at=at)


def _text(content: types.Content | None) -> str:
    parts = content.parts or [] if content else []
    return "\n".join(part.text for part in parts if part.text and not part.thought).strip()


def _entry(hit: Hit) -> MemoryEntry:
    item, author, at = hit.item, None, None
    if isinstance(item, Episode):
        author, at = item.speaker or item.provenance.origin, item.at.isoformat()
    elif isinstance(item, Fact):
        at = item.recorded_at.isoformat()
    text = without_tag(_FENCE, one_line(hit.text))  # ADK puts it between its tags as it is
    return MemoryEntry(
        id=item.id, author=author, timestamp=at, content=types.Content(role="user", parts=[types.Part(text=text)])
    )
