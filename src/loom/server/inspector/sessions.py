"""The pages of conversations: the line of what happened, a compaction opened, undo, restore and fork."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from loom.admin.sessions import find_checkpoint, saved_session
from loom.core.log import Checkpoint, Compaction, LogEntry, LoggedMessage, SavedSession, Shown
from loom.core.message import Message, ThinkingPart, ToolCallPart, ToolResultPart, plain
from loom.errors import NotFound
from loom.protocols.compactor import Rewrite
from loom.server.http.caller import Caller
from loom.server.http.events import SessionWatch, UserWatch, stream
from loom.server.inspector.charts import Branch, LineMark, drawn, line_chart
from loom.server.inspector.pages import PREFIX, base_of, caller_of, page, shortened, text_page
from loom.session.compaction.coverage import coverage

router = APIRouter(prefix=PREFIX, include_in_schema=False)

_LISTED: Final = 50
"""Conversations of one page."""
_ENTRIES: Final = 60
"""Entries of a log on one page."""
_POINTS: Final = 20
"""Checkpoints of one page."""
_RELATED: Final = 1_000
"""Checkpoints of the user in which forks are looked for, the newest."""
_WORDS: Final = 1_200
"""Characters of one part of a message."""
_FIRST_WORDS: Final = 90
_MANY: Final = 100
"""Checkpoints from which on the first one is not looked for."""
_OPENED: Final = 200
"""Messages that an opened compaction lists."""


@router.get("/u/{user:name}/sessions")
async def sessions(request: Request, user: str, after: str = "") -> Response:
    """The saved conversations."""
    caller = caller_of(request, user)
    saved = await caller.place.checkpoints.sessions(caller.scope)
    ids = [one.session_id for one in saved]
    start = ids.index(after) + 1 if after in ids else 0
    shown = saved[start : start + _LISTED]
    rows = [(one, await _first_words(caller, one)) for one in shown]
    following = shown[-1].session_id if start + _LISTED < len(saved) else None
    return page(request, "sessions.html", user=user, rows=rows, total=len(saved), following=following, after=after)


async def _first_words(caller: Caller, one: SavedSession) -> str:
    """How a conversation begins, read from its first checkpoint; of one with very many it is not looked for."""
    if one.checkpoints > _MANY:
        return ""
    scope, store = caller.session(one.session_id), caller.place.checkpoints
    saved = await store.list(scope)
    log = await store.history(scope, saved[-1].id, bodies=False) if saved else ()
    spoken = (entry.message for entry in log if isinstance(entry, LoggedMessage))
    return next((shortened(one.text, _FIRST_WORDS) for one in spoken if one.role == "user" and one.text), "")


# -- one conversation


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a message as the page shows it."""

    kind: str
    """`text`, `call`, `result`, `error` or `thinking`."""
    text: str
    name: str = ""
    more: int = 0
    """Characters that are not shown."""


@dataclass(frozen=True, slots=True)
class _LogLine:
    """An entry of a log as the page shows it."""

    kind: str
    id: str
    at: datetime
    position: int
    role: str = ""
    pieces: tuple[_Piece, ...] = ()
    covered: bool = False
    compaction: Compaction | None = None
    applies: bool = False


@router.get("/u/{user:name}/sessions/{session:name}")
async def session(
    request: Request, user: str, session: str, *, before: int | None = None, points: str | None = None, note: str = ""
) -> Response:
    """What happened in a conversation."""
    caller = caller_of(request, user)
    scope, store = caller.session(session), caller.place.checkpoints
    last = await find_checkpoint(store, scope, None)
    log = await store.history(scope, last.id, bodies=False)
    here = f"{base_of(user)}/sessions/{quote(session, safe='')}"
    covered = _covered(log, last.compactions)
    told = [(n, entry) for n, entry in enumerate(log) if not _is_hidden(entry)]
    end = len(log) if before is None else min(max(before, 1), len(log))
    within = [(n, entry) for n, entry in told if n < end][-_ENTRIES:]
    saved = await store.list(scope, limit=_POINTS + 1, before=points)
    known = {point.id: point for point in await store.list(caller.scope, limit=_RELATED)}
    line = _line_to(last, known)
    forks, origin = _related(caller, session, known)
    marks = [_mark(n, entry, covered, here) for n, entry in told]
    places = {n: place for place, (n, _) in enumerate(told)}
    chart = line_chart(
        marks,
        points=[_place(places, point.position, len(told)) for point in saved],
        branches=[Branch(_place(places, at, len(told)), name, href) for at, name, href in forks],
    )
    return page(
        request,
        "session.html",
        user=user,
        name="sessions",
        session_id=session,
        here=here,
        about=_about([entry for _, entry in told], last.turn),
        origin=origin,
        chart=drawn(chart),
        groups=_grouped([_line(n, entry, covered, last.compactions) for n, entry in within]),
        shown=len(within),
        earlier=within[0][0] if within and within[0][0] > told[0][0] else None,
        later=_later(told, within),
        total=len(told),
        checkpoints=[(point, _last_words(point, log) if point.id in line else "") for point in saved[:_POINTS]],
        older=saved[_POINTS - 1].id if len(saved) > _POINTS else None,
        newest=last.id,
        notes=[note[:300]] if note else [],
        follow=f"{here}/events",
        moved=before is not None or points is not None,
    )


def _line_to(last: Checkpoint, known: Mapping[str, Checkpoint]) -> frozenset[str]:
    """The checkpoints that the conversation went through on its way here; not those that it left by going back."""
    found, at = set[str](), last
    while at.id not in found:
        found.add(at.id)
        at = known.get(at.parent or "", at)
    return frozenset(found)


def _last_words(point: Checkpoint, log: Sequence[LogEntry]) -> str:
    """What the user had said last at a checkpoint."""
    spoken = (entry.message for entry in reversed(log[: point.position]) if isinstance(entry, LoggedMessage))
    return next((shortened(one.text, _FIRST_WORDS) for one in spoken if one.role == "user" and one.text), "")


def _grouped(lines: Sequence[_LogLine]) -> list[tuple[bool, list[_LogLine]]]:
    """The entries in runs of those that a compaction covers, and those that are still shown."""
    return [(covered, list(run)) for covered, run in groupby(lines, key=lambda line: line.covered)]


def _is_hidden(entry: LogEntry) -> bool:
    """Whether it is an entry of the journal, which has pages of its own."""
    return not isinstance(entry, LoggedMessage | Compaction) and entry.kind.startswith("loom.")


def _covered(log: Sequence[LogEntry], applied: Sequence[str]) -> frozenset[str]:
    found = (entry for entry in log if isinstance(entry, Compaction) and entry.id in applied)
    return frozenset(id for entry in found for id in entry.covered)


def _place(places: Mapping[int, int], position: int, total: int) -> int:
    """Where the end of the first `position` entries of a log is among those that are shown."""
    return next((places[n] for n in range(position, position + 8) if n in places), total)


def _later(told: Sequence[tuple[int, LogEntry]], within: Sequence[tuple[int, LogEntry]]) -> int | None:
    """The `before` of the page behind this one; None on the last."""
    behind = [n for n, _ in told if within and n > within[-1][0]]
    return None if not behind else behind[min(len(behind), _ENTRIES) - 1] + 1


def _about(told: Sequence[LogEntry], turns: int) -> str:
    parts = [part for entry in told if isinstance(entry, LoggedMessage) for part in entry.message.parts]
    counts = {
        "turn": turns,
        "message": sum(isinstance(entry, LoggedMessage) for entry in told),
        "tool call": sum(isinstance(part, ToolCallPart) for part in parts),
        "compaction": sum(isinstance(entry, Compaction) for entry in told),
    }
    always = ("turn", "message")
    return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}" for name, n in counts.items() if n or name in always)


def _related(
    caller: Caller, session: str, known: Mapping[str, Checkpoint]
) -> tuple[list[tuple[int, str, str]], tuple[str, str] | None]:
    """The forks of a conversation, each with where it left; and the conversation that this one was forked from."""
    forks: dict[str, tuple[int, str, str]] = {}
    origin: tuple[str, str] | None = None
    for point in known.values():
        parent = known.get(point.parent or "")
        if parent is None or parent.session_id == point.session_id:
            continue
        base = base_of(caller.user)
        if parent.session_id == session:
            href = f"{base}/sessions/{quote(point.session_id, safe='')}"
            forks[point.session_id] = (parent.position, point.session_id, href)
        elif point.session_id == session:
            origin = (parent.session_id, f"{base}/sessions/{quote(parent.session_id, safe='')}")
    return list(forks.values()), origin


def _mark(position: int, entry: LogEntry, covered: frozenset[str], here: str) -> LineMark:
    href = f"{here}?before={position + 1}#e-{position}"
    match entry:
        case LoggedMessage():
            is_call = any(isinstance(part, ToolCallPart) for part in entry.message.parts)
            kind = "tool" if is_call else _speaker(entry.message)
            told = f"{_speaker(entry.message)}: {shortened(_text(entry.message), 120)}"
            known = kind if kind in {"user", "assistant", "tool"} else "other"
            return LineMark(known, told, href, entry.id in covered)
        case Compaction():
            told = (
                f"compaction of {len(entry.covered)} messages: {entry.tokens_before:,} to {entry.tokens_after:,} tokens"
            )
            return LineMark("compaction", told, f"{here}/compactions/{quote(entry.id, safe='')}")
        case _:
            return LineMark("other", entry.kind, href)


def _line(position: int, entry: LogEntry, covered: frozenset[str], applied: Sequence[str]) -> _LogLine:
    match entry:
        case LoggedMessage():
            pieces = tuple(_pieces(entry.message))
            return _LogLine(
                "message", entry.id, entry.at, position, _speaker(entry.message), pieces, entry.id in covered
            )
        case Compaction():
            return _LogLine("compaction", entry.id, entry.at, position, compaction=entry, applies=entry.id in applied)
        case _:
            return _LogLine("recorded", entry.id, entry.at, position, role=entry.kind)


def _pieces(message: Message) -> list[_Piece]:
    found: list[_Piece] = []
    for part in message.parts:
        kind, name, text = "text", "", plain(part)
        if isinstance(part, ToolCallPart):
            kind, name, text = "call", part.name, json.dumps(part.input, ensure_ascii=False)
        elif isinstance(part, ToolResultPart):
            kind, text = "error" if part.is_error else "result", "\n".join(map(plain, part.content))
        elif isinstance(part, ThinkingPart):
            kind, text = "thinking", part.text
        found.append(_Piece(kind, text[:_WORDS], name, max(0, len(text) - _WORDS)))
    return found


def _speaker(message: Message) -> str:
    """Who says it: what a tool gave back is sent as the user, who did not say it."""
    return "tool" if any(isinstance(part, ToolResultPart) for part in message.parts) else message.role


def _text(message: Message) -> str:
    return "\n".join(plain(part) for part in message.parts)


@router.get("/u/{user:name}/sessions/{session:name}/messages/{id:name}")
async def message(request: Request, user: str, session: str, id: str, start: int = 0) -> Response:
    """One message in full; a long one in pieces."""
    caller = caller_of(request, user)
    log, _ = await _log(caller, session)
    found = next((entry for entry in log if isinstance(entry, LoggedMessage) and entry.id == id), None)
    if found is None:
        raise NotFound(f"the conversation has no message {id!r:.100}")
    back = (session, f"{base_of(user)}/sessions/{quote(session, safe='')}")
    title = f"{found.message.role}, {found.at:%Y-%m-%d %H:%M}"
    return text_page(request, user, _text(found.message), start, title=title, back=back, name="sessions")


async def _log(caller: Caller, session: str) -> tuple[tuple[LogEntry, ...], Checkpoint]:
    store, scope = caller.place.checkpoints, caller.session(session)
    last = await find_checkpoint(store, scope, None)
    return await store.history(scope, last.id, bodies=False), last


@router.get("/u/{user:name}/sessions/{session:name}/compactions/{id:name}")
async def compaction(request: Request, user: str, session: str, id: str) -> Response:
    """A compaction opened: before, after, what is still there, and what is gone."""
    caller = caller_of(request, user)
    log, last = await _log(caller, session)
    found = next((entry for entry in log if isinstance(entry, Compaction) and entry.id == id), None)
    if found is None:
        raise NotFound(f"the conversation has no compaction {id!r:.100}")
    messages = _messages(log)
    originals = [Shown(one, messages[one]) for one in found.covered if one in messages]
    covers = coverage(originals, Rewrite(replacements=found.replacements))
    kinds = {
        "decisions": covers.decisions,
        "names": covers.names,
        "numbers": covers.numbers,
        "paths": covers.paths,
    }
    return page(
        request,
        "compaction.html",
        user=user,
        name="sessions",
        session_id=session,
        here=f"{base_of(user)}/sessions/{quote(session, safe='')}",
        one=found,
        applies=found.id in last.compactions,
        kinds=[(name, kind.contained, kind.missing) for name, kind in kinds.items() if kind.contained or kind.missing],
        gone=covers.missing,
        still=sum(len(kind.contained) for kind in kinds.values()),
        before=[(_speaker(one.message), _begin(_text(one.message), 400)) for one in originals[:_OPENED]],
        after=[_begin(_text(one.message), 20_000) for one in found.replacements if one.message is not None],
    )


def _begin(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}\N{HORIZONTAL ELLIPSIS}"


def _messages(log: Sequence[LogEntry]) -> dict[str, Message]:
    """Every message that is or was shown, by its id; those in the place of others too."""
    found = {entry.id: entry.message for entry in log if isinstance(entry, LoggedMessage)}
    for entry in log:
        if isinstance(entry, Compaction):
            found |= {f"{entry.id}.{n}": one.message for n, one in enumerate(entry.replacements) if one.message}
    return found


# -- what happens while somebody looks


@router.get("/u/{user:name}/events")
async def user_events(request: Request, user: str) -> Response:
    """What changes of a user, for pages that follow it: a browser cannot send a token with this, only the cookie."""
    caller = caller_of(request, user)
    return stream(caller, UserWatch(caller, request.headers.get("last-event-id")))


@router.get("/u/{user:name}/sessions/{session:name}/events")
async def session_events(request: Request, user: str, session: str) -> Response:
    """What is said in a conversation, for pages that follow it."""
    caller = caller_of(request, user)
    await find_checkpoint(caller.place.checkpoints, caller.session(session), None)
    return stream(caller, SessionWatch(caller, session, request.headers.get("last-event-id")))


# -- what can be done with it


def _to_session(user: str, session: str, note: str) -> Response:
    return RedirectResponse(f"{base_of(user)}/sessions/{quote(session, safe='')}?note={quote(note)}", 303)


@router.post("/u/{user:name}/sessions/{session:name}/undo")
async def undo(request: Request, user: str, session: str, compaction: Annotated[str, Form()]) -> Response:
    """Show again what a compaction replaced."""
    caller = caller_of(request, user, "write")
    opened = await saved_session(caller.place.checkpoints, caller.session(session))
    await opened.undo(compaction)
    await opened.checkpoint()
    return _to_session(user, session, "the compaction was undone")


@router.post("/u/{user:name}/sessions/{session:name}/restore")
async def restore(request: Request, user: str, session: str, at: Annotated[str, Form()]) -> Response:
    """Go back to a checkpoint."""
    caller = caller_of(request, user, "write")
    opened = await saved_session(caller.place.checkpoints, caller.session(session), at)
    saved = await opened.checkpoint()
    return _to_session(user, session, f"the conversation continues from turn {saved.turn}")


@router.post("/u/{user:name}/sessions/{session:name}/fork")
async def fork(request: Request, user: str, session: str, at: Annotated[str, Form()]) -> Response:
    """Begin a new conversation at a checkpoint."""
    caller = caller_of(request, user, "write")
    opened = await saved_session(caller.place.checkpoints, caller.session(session), at)
    forked = await opened.fork(at)
    return _to_session(user, forked.id, f"this conversation was forked from {session}")
