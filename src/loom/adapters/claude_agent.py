"""Transcripts of the Claude Agent SDK in Loom: a session store with all six methods."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, cast

from loom.adapters._logs import Logs
from loom.adapters._shared import Owner, home_of_checkpoints
from loom.core.log import SavedSession
from loom.errors import MissingExtra
from loom.protocols.checkpoint_store import CheckpointStore

try:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
except ImportError as error:
    raise MissingExtra("loom.adapters.claude_agent", "claude-agent") from error

_ENTRY = "claude_agent.entry"
_SUMMARY = "claude_agent.summary"


class LoomSessionStore(Owner, SessionStore):
    """The transcripts of one user, for `ClaudeAgentOptions(session_store=...)`.

    A transcript, of a session or of a subagent, is a session of Loom; its name there is the project, the session and
    the path of the subagent. Each line is an entry whose id is its `uuid`, so that a line that comes again is kept
    once. Nothing is read to append: any number of threads and processes may do so at one time.
    """

    def __init__(self, url: str | CheckpointStore, *, user_id: str, namespace: str = "default") -> None:
        """Keep the transcripts of a user in a store, which stays open, or at a URL, which is closed with this."""
        self._home = home_of_checkpoints(url)
        self._logs = Logs(user_id=user_id, namespace=namespace)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add lines to a transcript; those whose `uuid` it holds are left out."""
        lines = {line.id: line for line in (self._logs.entry(_ENTRY, entry, _uuid(entry)) for entry in entries)}
        await self._home.call(lambda store: self._logs.add(store, _name(key), [*lines.values()], once=True))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The lines of a transcript; None where there are none."""
        held = await self._home.call(lambda store: self._logs.read(store, _name(key), _ENTRY))
        return [cast("SessionStoreEntry", line.body) for line in held] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, with the time of their last line."""
        found = await self._home.call(lambda store: self._named(store, "main", project_key))
        return [{"session_id": id, "mtime": _milliseconds(saved.last_at)} for (id,), saved in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """What the SDK shows of each session of a project; only lines that are new since the last call are read."""

        async def summarise(store: CheckpointStore) -> list[SessionSummaryEntry]:
            found = await self._named(store, "main", project_key)
            return [await self._summary(store, project_key, id, saved) for (id,), saved in found]

        return await self._home.call(summarise)

    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript; that of a session together with those of its subagents."""

        async def remove(store: CheckpointStore) -> None:
            if not key.get("subpath"):
                names = [_name({**key, "subpath": path}) for path in await self._subpaths(store, key)]
                for name in (*names, _summary_name(key["project_key"], key["session_id"])):
                    await self._logs.forget(store, name)
            await self._logs.forget(store, _name(key))

        await self._home.call(remove)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The paths of the subagents of a session."""
        return sorted(await self._home.call(lambda store: self._subpaths(store, key)))

    async def _subpaths(self, store: CheckpointStore, key: SessionKey | SessionListSubkeysKey) -> list[str]:
        found = await self._named(store, "sub", key["project_key"], key["session_id"])
        return [path for (path,), _ in found]

    async def _named(self, store: CheckpointStore, *start: str) -> list[tuple[list[str], SavedSession]]:
        """The sessions whose name starts so, with the rest of it."""
        names = [(_parts(saved.session_id), saved) for saved in await store.sessions(self._logs.user)]
        return [(parts[len(start) :], saved) for parts, saved in names if parts[: len(start)] == [*start]]

    async def _summary(
        self, store: CheckpointStore, project_key: str, session_id: str, saved: SavedSession
    ) -> SessionSummaryEntry:
        name, key = _summary_name(project_key, session_id), SessionKey(project_key=project_key, session_id=session_id)
        kept = await self._logs.read(store, name)
        body: Any = kept[-1].body if kept else {"position": 0, "summary": None}
        if body["position"] > saved.entries:  # of a session that was deleted and began again
            body = {"position": 0, "summary": None}
        scope = self._logs.user.for_session(_name(key))
        new = await store.recorded(scope, kind=_ENTRY, after=body["position"])
        summary = fold_session_summary(body["summary"], key, [cast("SessionStoreEntry", line.body) for line in new])
        if new:
            await self._logs.forget(store, name)  # it can be made again from the transcript at any time
            made = {"position": body["position"] + len(new), "summary": summary}
            await self._logs.add(store, name, [self._logs.entry(_SUMMARY, made)])
        return {**summary, "mtime": _milliseconds(saved.last_at)}


def _name(key: SessionKey) -> str:
    """The session of a transcript: no project, session or path can be mistaken for another."""
    place = [key["project_key"], key["session_id"]]
    return json.dumps(["sub", *place, path] if (path := key.get("subpath")) else ["main", *place], ensure_ascii=False)


def _summary_name(project_key: str, session_id: str) -> str:
    return json.dumps(["summary", project_key, session_id], ensure_ascii=False)


def _parts(name: str) -> list[str]:
    try:
        parts: Any = json.loads(name)
    except ValueError:  # a session of another program in the same store
        return []
    return cast("list[str]", parts) if isinstance(parts, list) else []


def _uuid(entry: SessionStoreEntry) -> str | None:
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)
