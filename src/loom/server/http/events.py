"""Server-sent events: what changes in a user's memory and conversations, told while somebody follows.

Each stream looks at the stores itself, once a second. So it also tells what other processes did, and nothing is kept
for a client that reads slowly: it is told later, and what happened meanwhile in one event. If it does not read at all,
the buffers of its connection fill, and the time limit of every answer ends it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from time import monotonic
from typing import Annotated, Any, Final, Protocol
from urllib.parse import quote, unquote

import anyio
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse

from loom.admin.sessions import find_checkpoint
from loom.core.checks import MAX_ID_BYTES
from loom.core.log import Checkpoint, Compaction, LogEntry, LoggedMessage
from loom.core.message import plain
from loom.errors import LoomError, NotFound
from loom.server.http.caller import Caller, Reader
from loom.server.http.guard import Receive, Refusal, Scope, Send, refusal_of
from loom.text.fence import plain_text

LOOK_EVERY: Final = 1.0
MOST_STREAMS: Final = 256
"""Streams at once: each looks at the stores once a second, which takes about a millisecond."""
MOST_OF_ONE: Final = 64
"""Streams of one token, so that one caller cannot keep all others from following."""
MOST_SECONDS: Final = 3_600.0
_SESSIONS: Final = 50
"""Conversations that went on since the last look, at most as many as are told."""
_CHAIN: Final = 500
"""Checkpoints among which the last one that was told is looked for."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEY: Final = secrets.token_bytes(16)
"""Hides the numbers of the store that the state of a memory has in it. After a restart, a state is unknown once."""
_PLACE: Final = re.compile(r"([0-9]{1,15})\.([!-~]+)")
_STATE: Final = re.compile(r"([0-9a-f]{16})\.([0-9]{1,16})")

_LONGEST: Final = 3 * MAX_ID_BYTES + 20
"""Characters of an id of an event."""

router = APIRouter(prefix="/v1/users/{user:name}", tags=["events"])

Seconds = Annotated[
    float | None,
    Query(
        ge=0, le=MOST_SECONDS, description="End the stream after so long; by default, it goes on until one side ends."
    ),
]
After = Annotated[
    str | None,
    Query(max_length=_LONGEST, description="The id of the last event that was seen: as Last-Event-ID."),
]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=_LONGEST)]
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "One event; `data` is a JSON object.",
    "properties": {
        "event": {"type": "string", "description": "ready, memory, session, message, checkpoint, end and others."},
        "id": {"type": "string", "description": "To go on behind it: Last-Event-ID."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The events.", "content": {"text/event-stream": {"schema": _EVENT}}}
}


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a stream; with an `id`, a client that comes back goes on behind it."""

    event: str
    data: dict[str, Any]
    id: str | None = None

    def encoded(self) -> bytes:
        """As it goes over the wire."""
        lines = [f"event: {self.event}", *([f"id: {self.id}"] if self.id is not None else [])]
        return "\n".join([*lines, f"data: {json.dumps(self.data)}", "", ""]).encode()


@router.get("/events", response_class=StreamingResponse, responses=_STREAM)
async def user_events(caller: Reader, after: After = None, last: LastId = None, seconds: Seconds = None) -> Response:
    """Follow a user: `memory` when records, jobs or removals changed, `session` when a conversation went on.

    `ready` comes first: what is read after it misses nothing. With Last-Event-ID, or `after`, what changed since then
    is told first. `end` says why the server ends the stream.
    """
    return stream(caller, UserWatch(caller, last or after), seconds)


@router.get("/sessions/{session:name}/events", response_class=StreamingResponse, responses=_STREAM)
async def session_events(
    caller: Reader,
    session: Annotated[str, Path(min_length=1, max_length=MAX_ID_BYTES)],
    after: After = None,
    last: LastId = None,
    seconds: Seconds = None,
) -> Response:
    """Follow a conversation: `message`, `compaction` and `recorded` as they are saved, `checkpoint` behind them.

    With Last-Event-ID, or `after`, everything that was saved since then comes first. `rewound` says that the
    conversation went back to an earlier point, `reset` that the id is not known: read the conversation again.
    """
    await find_checkpoint(caller.place.checkpoints, caller.session(session), None)
    return stream(caller, SessionWatch(caller, session, last or after), seconds)


# -- a stream


class Watch(Protocol):
    """What a stream tells."""

    async def look(self) -> Sequence[Told]:
        """What happened since the last look; the first time, where the stream begins."""
        ...


def stream(caller: Caller, watch: Watch, seconds: float | None = None) -> Response:
    """An answer that tells events until the client, the token, the time or the server ends it."""
    headers = {"X-Accel-Buffering": "no"}  # proxies that collect an answer would hold events back
    return _Counted(caller, _told(caller, watch, seconds), media_type="text/event-stream", headers=headers)


class _Counted(StreamingResponse):
    """A stream that counts from the moment at which it is let in: many that come at once are many."""

    def __init__(self, caller: Caller, content: AsyncGenerator[bytes], **options: Any) -> None:
        super().__init__(content, **options)
        self._streams, self._token = caller.place.streams, caller.token.name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, or refuse it if there are too many."""
        streams, token = self._streams, self._token
        most = MOST_OF_ONE if streams[token] >= MOST_OF_ONE else MOST_STREAMS
        if most == MOST_OF_ONE or streams.total() >= MOST_STREAMS:
            raise Refusal(429, "too_many", f"there are {most} streams already", "end one of them, or try again later")
        streams[token] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            streams[token] -= 1


async def _told(caller: Caller, watch: Watch, seconds: float | None) -> AsyncGenerator[bytes]:
    """The bytes of a stream: events, comments while nothing happens, and at the end why it ends."""
    begun = spoke = monotonic()
    try:
        yield b"retry: 2000\n\n"
        while True:
            for one in await watch.look():
                yield one.encoded()
                spoke = monotonic()
            reason = _end_of(caller, begun, seconds)
            if reason is not None:
                break
            if monotonic() - spoke >= caller.place.heartbeat:
                yield b": nothing new\n\n"
                spoke = monotonic()
            left = LOOK_EVERY if seconds is None else begun + seconds - monotonic()
            await anyio.sleep(max(0.0, min(LOOK_EVERY, left)))
        yield Told("end", {"reason": reason}).encoded()
    except LoomError as error:
        yield Told("end", {"reason": refusal_of(error).message}).encoded()


def _end_of(caller: Caller, begun: float, seconds: float | None) -> str | None:
    """Why a stream has to end now."""
    if caller.place.is_ending:
        return "the server ends"
    if not caller.place.allows(caller.token):
        return "the token does not count any more"
    if seconds is not None and monotonic() - begun >= seconds:
        return "the time is over"
    return None


# -- what is told of a user


class UserWatch:
    """Tells that something of a user changed, in this process or in another."""

    def __init__(self, caller: Caller, after: str | None) -> None:
        self._caller, self._after = caller, after
        self._state = ""
        self._upto = _EPOCH
        self._sizes: dict[str, tuple[int, int]] = {}
        self._is_first = True

    async def look(self) -> Sequence[Told]:
        """What changed since the last look."""
        caller, store = self._caller, self._caller.memory.store
        records, jobs = await store.count(caller.scope), await store.pending(caller.scope)
        state = _digest(f"{caller.scope.key()} {records} {jobs} {await store.epoch(caller.scope)}")
        saved = await caller.place.checkpoints.sessions(caller.scope, limit=_SESSIONS)
        told: list[Told] = []
        if self._is_first:
            self._is_first = False
            told += self._begin(state, max((one.last_at for one in saved), default=_EPOCH))
        if state != self._state:
            told.append(Told("memory", {"records": records, "jobs": jobs}))
        for one in reversed(saved):
            size = (one.entries, one.checkpoints)
            if one.last_at > self._upto or self._sizes.get(one.session_id, size) != size:
                data = {"session": one.session_id, "entries": size[0], "checkpoints": size[1]}
                told.append(Told("session", {**data, "last_at": one.last_at.isoformat()}))
        if len(saved) < _SESSIONS:  # otherwise they may only be older than those that are read
            gone = self._sizes.keys() - {one.session_id for one in saved}
            told += [Told("session", {"session": id, "entries": 0, "checkpoints": 0, "last_at": None}) for id in gone]
        self._state = state
        self._upto = max([self._upto, *(one.last_at for one in saved)])
        self._sizes = {one.session_id: (one.entries, one.checkpoints) for one in saved}
        return [replace(one, id=self._id()) if one.event in {"memory", "session"} else one for one in told]

    def _begin(self, state: str, upto: datetime) -> list[Told]:
        """Where the stream begins: behind the event that the client has seen, or now."""
        known = None if self._after is None else _STATE.fullmatch(self._after)
        self._state, self._upto = state, upto
        ready = Told("ready", {"user": self._caller.user})
        if known is not None:  # and no id: what happened since then is not told yet
            self._state, self._upto = known.group(1), _EPOCH + timedelta(microseconds=int(known.group(2)))
            return [ready]
        ready = replace(ready, id=self._id())
        return [ready] if self._after is None else [Told("reset", {"reason": "this id is not known"}), ready]

    def _id(self) -> str:
        return f"{self._state}.{(self._upto - _EPOCH) // timedelta(microseconds=1)}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), key=_KEY, digest_size=8).hexdigest()


# -- what is told of a conversation


class SessionWatch:
    """Tells the log of a conversation as it grows, from a position on."""

    def __init__(self, caller: Caller, session: str, after: str | None) -> None:
        self._store, self._scope, self._after = caller.place.checkpoints, caller.session(session), after
        self._session = session
        self._last: Checkpoint | None = None
        self._place = 0

    async def look(self) -> Sequence[Told]:
        """What was saved since the last look."""
        newest = await self._store.load(self._scope)
        if newest is None:
            raise NotFound("the conversation was removed")
        if self._last is None:
            return await self._begin(newest)
        if newest.id == self._last.id:
            return ()
        told = await self._grown(self._last.id, self._place, newest)
        if told is None:
            told = [Told("rewound", {"checkpoint": newest.id, "turn": newest.turn, "position": newest.position})]
        self._last, self._place = newest, newest.position
        return [*told, self._checkpoint(newest)]

    async def _begin(self, newest: Checkpoint) -> list[Told]:
        """Where the stream begins: behind the event that the client has seen, or now."""
        self._last, self._place = newest, newest.position
        ready = Told("ready", {"session": self._session, "turn": newest.turn})
        here = replace(ready, id=_id_of(newest.position, newest))
        if self._after is None:
            return [here]
        known = _PLACE.fullmatch(self._after)
        told = await self._grown(unquote(known.group(2)), int(known.group(1)), newest) if known else None
        if told is None:
            return [Told("reset", {"reason": "this id is not known"}), here]
        return [ready, *told, self._checkpoint(newest)]  # no id before what happened since then is told

    async def _grown(self, id: str, place: int, newest: Checkpoint) -> list[Told] | None:
        """The entries behind a position of an earlier checkpoint; None if the newest one does not continue that."""
        chain = {one.id: one for one in await self._store.list(self._scope, limit=_CHAIN)}
        at: Checkpoint | None = newest
        while at is not None and at.id != id:
            at = None if at.parent is None else chain.get(at.parent)
        if at is None or place > at.position:
            return None
        entries = await self._store.history(self._scope, newest.id, after=place, bodies=False)
        return [_entry(one, _id_of(number, newest)) for number, one in enumerate(entries, place + 1)]

    def _checkpoint(self, one: Checkpoint) -> Told:
        data = {"id": one.id, "turn": one.turn, "compactions": list(one.compactions)}
        return Told("checkpoint", data, _id_of(one.position, one))


def _id_of(position: int, checkpoint: Checkpoint) -> str:
    """A position in the log as it was at a checkpoint; quoted, because a client sends it back in a header."""
    return f"{position}.{quote(checkpoint.id, safe='')}"


def _entry(entry: LogEntry, id: str) -> Told:
    data: dict[str, Any] = {"id": entry.id, "at": entry.at.isoformat()}
    match entry:
        case LoggedMessage():
            text = plain_text("\n".join(map(plain, entry.message.parts)))
            return Told("message", {**data, "role": entry.message.role, "text": text}, id)
        case Compaction():
            tokens = {"tokens_before": entry.tokens_before, "tokens_after": entry.tokens_after}
            return Told("compaction", {**data, "strategy": entry.strategy, **tokens, "covers": len(entry.covered)}, id)
        case _:
            return Told("recorded", {**data, "kind": entry.kind}, id)
