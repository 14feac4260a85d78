"""The pages of the inspector: each answers one question, and works without a script for reading."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from starlette.datastructures import UploadFile

from loom.admin.doctor import labels_of
from loom.context.cache.audit import Audit, audit_transcripts
from loom.context.cache.audit_page import STYLE, causes_table, session_section, sums_list
from loom.core.checks import MAX_QUERY, check_id
from loom.core.filter import And, Eq
from loom.core.record import Episode, Fact, Layer, Receipt, StoreReceipt
from loom.core.scope import Scope
from loom.engine.urls import without_secrets
from loom.errors import NotFound, StoreError, UsageError
from loom.memory._facts.entities import normalise
from loom.memory._history import TextHistory
from loom.memory._upkeep.summaries import waiting_jobs
from loom.memory.memory import Memory
from loom.protocols.memory_store import ListsUsers
from loom.server.http.caller import Caller, Place, token_of
from loom.server.http.guard import Refusal
from loom.server.inspector.charts import (
    ABOVE,
    BESIDE,
    BROAD,
    LIVES_LEGEND,
    MOST_NODES,
    NARROW,
    TimeSpan,
    drawn,
    graph_chart,
    layers_list,
    lives_chart,
    words_of,
)
from loom.server.tokens import ANYBODY, Right, Token
from loom.text.fence import plain_text
from loom.text.tokens import EstimateCounter
from loom.traces.reader import read_transcripts

PREFIX: Final = "/inspect"
TRANSCRIPT: Final = f"{PREFIX}/transcript"
"""Where a transcript is dropped: a file that may be much larger than other requests."""
LOGIN: Final = f"{PREFIX}/login"
COOKIE: Final = "loom_token"
MISSED: Final = 5
"""Hits behind the last one that are shown as just missed."""
_USERS: Final = 50
_NEWEST: Final = 25
_FACTS: Final = 40
"""Facts of one page."""
_NAMES: Final = 100
"""Names in the list below the graph."""
_STOPS: Final = 400
"""Places of the slider; of more changes, some are left out."""
_GROUP: Final = 30
"""Records that the page of one lists of each group."""
_PIECE: Final = 100_000
"""Characters of a long text that are shown at once."""
_SECTIONS: Final = 20
"""Sessions of a transcript that are drawn."""
_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SUFFIX: Final = re.compile(r"\.[A-Za-z0-9]{1,10}")
"""The end of a name that is taken over from a browser."""
_TYPES: Final = {"inspector.css": "text/css", "inspector.js": "text/javascript"}

router = APIRouter(prefix=PREFIX, include_in_schema=False)
_open_to_all: Final = APIRouter(include_in_schema=False)
"""What those get who are not signed in."""


@cache
def _templates() -> Environment:
    made = Environment(loader=PackageLoader("loom.server.inspector"), autoescape=True, trim_blocks=True)
    made.finalize = _safe
    own: dict[str, Any] = {"shortened": shortened, "words_of": words_of}
    made.filters.update(own)
    return made


def shortened(text: str, length: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(plain_text(text[: length * 4]).split())
    return line if len(line) <= length else f"{line[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def _safe(value: Any) -> Any:
    """Stored text without the characters that change how a page reads; Jinja escapes what is left."""
    return plain_text(value) if type(value) is str else value  # Markup was made safe where it was made


def base_of(user: str) -> str:
    """The path of the pages of a user."""
    return f"{PREFIX}/u/{quote(user, safe='')}"


def page(
    request: Request,
    template: str,
    *,
    name: str | None = None,
    user: str | None = None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page for the browser; `name` is its place in the list of pages."""
    base = None if user is None else base_of(user)
    current, where = name or template.removesuffix(".html"), _where(request)
    text = _templates().get_template(template).render(page=current, user=user, base=base, where=where, **values)
    return HTMLResponse(text, status_code=status, headers={"Content-Security-Policy": _POLICY})


def text_page(
    request: Request, user: str, text: str, start: int, *, title: str, back: tuple[str, str], name: str
) -> HTMLResponse:
    """A long text, in pieces; `back` is the title and the path of the page it belongs to."""
    start = min(max(0, start), len(text))
    end = start + _PIECE
    return page(
        request,
        "text.html",
        user=user,
        name=name,
        title=title,
        back=back,
        text=text[start:end],
        start=start,
        total=len(text),
        earlier=max(0, start - _PIECE) if start else None,
        later=end if end < len(text) else None,
        here=request.url.path,
    )


def _where(request: Request) -> str:
    """Which store the pages are of, for those who may look at it."""
    try:
        token_of_page(request)
    except (Refusal, StoreError):
        return ""
    memory: Memory = request.app.state.place.memory
    return without_secrets(memory.place) if isinstance(memory.place, str) else type(memory.store).__name__


# -- who looks


def token_of_page(request: Request) -> Token:
    """The token in the cookie or the header of a request for a page; raises Refusal as `token_of` does."""
    secret = request.cookies.get(COOKIE)
    place: Place = request.app.state.place
    if secret and place.tokens is not None and "authorization" not in request.headers:
        found = place.tokens.find(secret)
        if found is not None:
            return found
    return token_of(request)


def caller_of(request: Request, user: str, right: Right = "read") -> Caller:
    """Who looks at the data of a user; raises Refusal if their token does not allow it."""
    token = token_of_page(request)
    if not token.may(right, user):
        raise Refusal(403, "forbidden", "this token does not allow that", "sign in with another one")
    check_id(user, "the user")
    return Caller(request.app.state.place, token, user)


@_open_to_all.post(LOGIN)
async def login(request: Request, token: Annotated[str, Form(max_length=500)]) -> Response:
    """Keep a token in a cookie that scripts and other sites cannot read."""
    place: Place = request.app.state.place
    if place.tokens is None or place.tokens.find(token.strip()) is None:
        raise Refusal(401, "not_allowed", "this is not a token of this server", "ask its operator for one")
    response = RedirectResponse(f"{PREFIX}/users", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token.strip(), httponly=True, samesite="strict", secure=secure, path=PREFIX)
    return response


def add_pages(app: FastAPI, *routers: APIRouter) -> None:
    """Add the inspector to a server."""
    app.include_router(_open_to_all)
    for one in (router, *routers):
        app.include_router(one, dependencies=[Depends(_signed_in)])


async def _signed_in(request: Request) -> None:
    """Ask for a token before anything else is said about a request, such as what its form lacks."""
    token_of_page(request)


@_open_to_all.get("/")
async def front() -> Response:
    """To the page that comes first."""
    return RedirectResponse(f"{PREFIX}/users", 303)


def refusal_page(request: Request, refusal: Refusal) -> Response:
    """A refusal as a page for people; who is not signed in is asked for a token."""
    asks = refusal.status == 401
    values = {"title": "Sign in" if asks else "This cannot be shown", "text": refusal.message, "advice": refusal.advice}
    # who may not see a user is told the same whether there is one
    user = None if refusal.status in {401, 403} else request.path_params.get("user")
    return page(request, "message.html", status=refusal.status, asks=asks, user=user, **values)


@_open_to_all.get(f"{PREFIX}/static/{{name:name}}")
async def static(name: str) -> Response:
    """The style sheets and the script."""
    headers = {"Cache-Control": "max-age=300", "Content-Security-Policy": _POLICY}
    if name == "charts.css":
        return Response(STYLE, media_type="text/css", headers=headers)
    if name not in _TYPES:
        raise NotFound(f"there is no file {name!r:.100} here")
    text = await anyio.to_thread.run_sync(Path(__file__).with_name("static").joinpath(name).read_bytes)
    return Response(text, media_type=_TYPES[name], headers=headers)


# -- users


@dataclass(frozen=True, slots=True)
class _Done:
    """A receipt that stays on the page."""

    title: str
    stores: tuple[StoreReceipt, ...]

    @property
    def pending(self) -> bool:
        return any(store.pending for store in self.stores)


@router.get("/users")
async def users(request: Request, after: str | None = None) -> Response:
    """Whose data is here."""
    return await _users_page(request, after)


async def _users_page(request: Request, after: str | None = None, done: _Done | None = None) -> Response:
    token, place = token_of_page(request), request.app.state.place
    namespace = place.memory.namespace if token is ANYBODY else token.namespace
    memory = place.memory_of(namespace)
    if token.users is not None:
        found = [user for user in token.users if token.may("read", user)]
    elif not token.may("read"):
        raise Refusal(403, "forbidden", "this token may not read", "sign in with another one")
    else:
        found = await _names(memory.store, namespace, after)
    rows = [
        {
            "user": user,
            "base": base_of(user),
            "records": await memory.store.count(Scope(namespace, user)),
            "sessions": len(await place.checkpoints.sessions(Scope(namespace, user))),
        }
        for user in found[:_USERS]
    ]
    following = found[_USERS - 1] if len(found) > _USERS else None
    return page(request, "users.html", rows=rows, following=following, done=done)


async def _names(store: object, namespace: str, after: str | None) -> list[str]:
    """The users of a namespace behind `after`, one more than a page shows."""
    found: list[str] = []
    last = None if after is None else Scope(namespace, after)
    while isinstance(store, ListsUsers) and len(found) <= _USERS:
        scopes = await store.users(after=last, limit=500)
        found += [scope.user_id for scope in scopes if scope.namespace == namespace]
        if len(scopes) < 500:
            break
        last = scopes[-1]
    return found


@router.post("/u/{user:name}/forget")
async def forget_user(request: Request, user: str, confirm: Annotated[str, Form(max_length=600)]) -> Response:
    """Erase a person, with the receipt."""
    caller = caller_of(request, user, "forget")
    if confirm != user:
        raise UsageError(f"you typed {confirm!r:.100}, and the user is {user!r:.100}; nothing was forgotten")
    return await _users_page(request, done=_Done(f"{user} was forgotten", await caller.erase()))


def _named(name: str, receipt: Receipt) -> StoreReceipt:
    return StoreReceipt(store=name, removed=receipt.removed, pending=receipt.pending)


@router.get("/u/{user:name}/export")
async def export(request: Request, user: str) -> Response:
    """All records of a user as JSON lines."""
    caller = caller_of(request, user)

    async def lines() -> AsyncIterator[str]:
        async for line in caller.memory.export(user_id=user):
            yield f"{line}\n"

    return StreamingResponse(lines(), media_type="application/jsonl")


# -- memory, facts, what is always shown


@router.get("/u/{user:name}/memory")
async def memory(request: Request, user: str, q: str = "", limit: int = 8) -> Response:
    """What is known of a user, and what recall finds."""
    caller = caller_of(request, user)
    query, limit = q.strip()[:MAX_QUERY], min(max(limit, 1), 50)
    counts = await _counts(caller)
    values: dict[str, Any] = {"hits": (), "missed": (), "records": (), "notes": (), "confidence": None}
    if query:
        found = await caller.memory.recall(query, user_id=user, limit=limit + MISSED)
        values |= {"hits": found.hits[:limit], "missed": found.hits[limit:], "notes": found.notes}
        values["confidence"] = found.confidence
    else:
        values["records"] = await _newest(caller)
    chart = drawn(layers_list(counts))
    top = max((hit.score for hit in values["hits"]), default=0.0) or 1.0
    values |= {"query": query, "limit": limit, "counts": counts, "chart": chart, "top": top}
    return page(request, "memory.html", user=user, **values)


async def _counts(caller: Caller) -> dict[str, int]:
    """Records by layer and kind, counted by the store."""
    store, scope, episodes = caller.memory.store, caller.scope, Eq("kind", "episode")
    layers = {
        layer.label: await store.count(scope, where=And(episodes, Eq("layer", layer), Eq("archived_at", None)))
        for layer in Layer
    }
    archived = await store.count(scope, where=episodes) - sum(layers.values())
    facts = await store.count(scope, where=Eq("kind", "fact"))
    blocks = len(await caller.memory.blocks(user_id=caller.user))
    return {**layers, "archived": archived, "facts": facts, "blocks": blocks}


async def _newest(caller: Caller) -> list[Episode]:
    """The newest episodes: what is in the layers that everything passes through."""
    found = caller.memory.list(user_id=caller.user, kind="episode", layer=(Layer.L1, Layer.L2))
    episodes = [one async for one in found if isinstance(one, Episode)]
    return sorted(episodes, key=lambda one: (one.at, one.id), reverse=True)[:_NEWEST]


@router.get("/u/{user:name}/facts")
async def facts(
    request: Request,
    user: str,
    *,
    k: int | None = None,
    at: str = "",
    subject: str = "",
    history: bool = False,
    after: int = 0,
) -> Response:
    """What was true, as it was known on a day."""
    caller = caller_of(request, user)
    every = await caller.memory.facts(user_id=user, history=True)
    wanted = subject.strip()[:200]
    about = [fact for fact in every if normalise(fact.subject) == normalise(wanted)] if wanted else every
    now = datetime.now(UTC)
    stops = _stops(about, now)
    place = len(stops) - 1 if k is None else min(max(k, 0), len(stops) - 1)
    known_at, true_at = stops[place], _day(at)
    found = _believed(about, true_at or known_at, known_at, history=history)
    start = min(max(after, 0), max(0, len(found) - 1)) // _FACTS * _FACTS
    shown = found[start : start + _FACTS]
    span, link = TimeSpan.of(about, now), f"{base_of(user)}/records/{{id}}"
    charts = [lives_chart(shown, now=known_at, span=span, link=link, frame=frame) for frame in (BESIDE, ABOVE)]
    changed = sum(known_at in (fact.recorded_at, fact.superseded_at) for fact in about)
    return page(
        request,
        "facts.html",
        user=user,
        facts=shown,
        total=len(found),
        start=start,
        size=_FACTS,
        chart=drawn("".join(charts)),
        legend=drawn(LIVES_LEGEND),
        stops=stops,
        place=place,
        changed=changed,
        known_at=known_at,
        at=f"{true_at:%Y-%m-%d}" if true_at else "",
        subject=subject,
        history=history,
    )


def _stops(facts: Sequence[Fact], now: datetime) -> list[datetime]:
    """The moments at which what is known changed, and now; evenly fewer of them where there are very many."""
    changes = {fact.recorded_at for fact in facts} | {fact.superseded_at for fact in facts if fact.superseded_at}
    moments = sorted(changes)
    step = -(-len(moments) // _STOPS) or 1
    return [*moments[::-1][::step][::-1], max([now, *moments[-1:]])]


def _believed(facts: Sequence[Fact], at: datetime, known_at: datetime, *, history: bool) -> list[Fact]:
    """The facts as they were known on a day, by subject; with `history` those that had been given up by then too."""
    if history:
        found = [fact for fact in facts if fact.recorded_at <= known_at]
    else:
        found = [fact for fact in facts if fact.is_current(at, known_at)]
    believed = [
        replace(fact, superseded_at=None) if fact.superseded_at and fact.superseded_at > known_at else fact
        for fact in found
    ]
    return sorted(believed, key=lambda fact: (fact.subject, fact.predicate, fact.recorded_at, fact.id))


def _day(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None
    except ValueError:
        raise UsageError(f"{text!r:.40} is not a day; write it as 2026-11-15") from None


@router.get("/u/{user:name}/records/{id:name}")
async def record(request: Request, user: str, id: str) -> Response:
    """Where a record comes from, down to the words."""
    found = await caller_of(request, user).memory.explain(id, user_id=user)
    groups = [("Made from", found.sources), ("What was made from it", found.made), ("Others like it", found.history)]
    missing = [one for one in found.missing if one != "stated"]  # the source of what assert_fact() was told
    return page(
        request, "record.html", user=user, found=found, groups=groups, missing=missing, most=_GROUP, name="memory"
    )


@router.get("/u/{user:name}/records/{id:name}/text")
async def record_text(request: Request, user: str, id: str, start: int = 0) -> Response:
    """The whole text of a record; a long one in pieces."""
    caller = caller_of(request, user)
    found = await caller.memory.store.get(caller.scope, id)
    if found is None:
        raise NotFound(f"there is no record {id!r:.100}")
    back = ("where it comes from", f"{base_of(user)}/records/{quote(id, safe='')}")
    return text_page(request, user, found.text, start, title=f"The text of a {found.kind}", back=back, name="memory")


@router.post("/u/{user:name}/records/{id:name}/forget")
async def forget_record(request: Request, user: str, id: str) -> Response:
    """Forget one record."""
    caller = caller_of(request, user, "forget")
    receipt = await caller.memory.forget(id, user_id=user)
    return await _users_page(request, done=_Done(f"the record {id} was forgotten", (_named("memory", receipt),)))


@router.get("/u/{user:name}/shown")
async def shown(request: Request, user: str) -> Response:
    """The text that every prompt has, and what it was before."""
    memory_ = caller_of(request, user).memory
    text = str(await memory_.profile(user_id=user))
    cut = _PIECE if len(text) > _PIECE else 0
    blocks = [await memory_.block_history(block.name, user_id=user) for block in await memory_.blocks(user_id=user)]
    standing = await memory_.standing(user_id=user)
    return page(
        request,
        "shown.html",
        user=user,
        text=drawn(_escaped(text[:_PIECE])),
        cut=cut,
        tokens=EstimateCounter().count(text),
        bytes=len(text.encode()),
        waiting=standing.unconfirmed,
        groups=[("Standing instructions", (await memory_.standing_history(user_id=user))[:_GROUP]), ("Blocks", blocks)],
        diff=_diff,
    )


def _escaped(text: str) -> str:
    """The exact bytes as a page shows them: escaped, and nothing taken away."""
    return str(Markup.escape(text))


def _diff(history: TextHistory, number: int) -> list[tuple[str, str]]:
    """The lines of a change, each with its sign."""
    lines = history.diff(number).splitlines()
    return [(line[:1], line[1:]) for line in lines if not line.startswith(("+++", "---", "@@"))]


@router.post("/u/{user:name}/standing/{id:name}/{verb}")
async def decide(request: Request, user: str, id: str, verb: str) -> Response:
    """Accept an instruction that waits, or drop it."""
    caller = caller_of(request, user, "forget" if verb == "reject" else "write")
    if verb == "confirm":
        await caller.memory.confirm(id, user_id=user)
    elif verb == "reject":
        await caller.memory.reject(id, user_id=user)
    else:
        raise NotFound(f"an instruction cannot be made to {verb!r:.40}")
    return RedirectResponse(f"{base_of(user)}/shown", 303)


@router.get("/u/{user:name}/graph")
async def graph(request: Request, user: str) -> Response:
    """Who and what is connected."""
    found = await caller_of(request, user).memory.facts(user_id=user)
    counted = Counter[str]()
    for fact in found:
        counted.update({fact.subject, fact.object})
    link = f"{base_of(user)}/facts?subject={{name}}"
    chart = "".join(graph_chart(found, link=link, frame=frame) for frame in (BROAD, NARROW))
    return page(
        request,
        "graph.html",
        user=user,
        chart=drawn(chart),
        names=counted.most_common(_NAMES),
        total=len(counted),
        drawn_names=min(len(counted), MOST_NODES),
        facts=len(found),
    )


@router.get("/u/{user:name}/jobs")
async def jobs(request: Request, user: str, note: str = "") -> Response:
    """Is it healthy?"""
    caller = caller_of(request, user)
    await caller.memory.stats(user_id=user)  # finishes what is being written
    waiting = await waiting_jobs(caller.memory.store, caller.scope, datetime.now(UTC))
    dead = await caller.memory.store.dead_letters(caller.scope)
    labels = await labels_of(caller.memory.store)
    notes = [note[:300]] if note else []
    return page(request, "jobs.html", user=user, waiting=waiting, dead=dead, labels=labels, notes=notes)


@router.post("/u/{user:name}/jobs/run")
async def run_jobs(request: Request, user: str) -> Response:
    """Run the jobs that are due."""
    done = await caller_of(request, user, "operate").memory.metabolize(user_id=user)
    return RedirectResponse(f"{base_of(user)}/jobs?note={quote(f'{done.jobs} jobs were run')}", 303)


@router.post("/u/{user:name}/jobs/{id:name}/retry")
async def retry_job(request: Request, user: str, id: str) -> Response:
    """Queue a job that failed for good once more."""
    await caller_of(request, user, "operate").retry_job(id)
    return RedirectResponse(f"{base_of(user)}/jobs?note={quote('it is queued again')}", 303)


# -- requests


@router.get("/transcript")
async def transcript(request: Request) -> Response:
    """A page on which a transcript can be dropped; one that the server was started with is shown at once."""
    token_of_page(request)
    given: Path | None = request.app.state.transcript
    if given is None:
        return page(request, "transcript.html", about="", notes=(), sections=())
    return await _audited(request, given, str(given))


@router.post("/transcript")
async def read_transcript(request: Request) -> Response:
    """The requests of a transcript; nothing of it is stored."""
    token_of_page(request)  # before any of the file is read
    async with request.form(max_files=1, max_fields=1) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile) or not file.filename:
            raise UsageError("no file was sent; choose a transcript first")
        name = plain_text(Path(file.filename).name)[:200] or "transcript.jsonl"
        suffix = Path(name).suffix
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / f"uploaded{suffix if _SUFFIX.fullmatch(suffix) else '.jsonl'}"
            await anyio.to_thread.run_sync(_copy, file.file, place)
            return await _audited(request, place, name)


def _copy(file: BinaryIO, place: Path) -> None:
    with place.open("wb") as copy:
        shutil.copyfileobj(file, copy)


async def _audited(request: Request, path: Path, name: str) -> Response:
    """The page of a transcript, which is called `name` on it."""
    try:
        audit = await anyio.to_thread.run_sync(lambda: audit_transcripts(read_transcripts([path])))
    except UsageError as error:
        raise UsageError(str(error).replace(str(path), name)) from error
    names = {str(path): name}
    notes = _left_out(audit, names)
    return page(request, "transcript.html", about=name, notes=notes, sections=audit_sections(audit, names))


def _left_out(audit: Audit, names: Mapping[str, str]) -> list[str]:
    """What an audit says nothing about: lines and files that could not be read."""
    notes = [] if audit.sessions else ["it holds no requests with usage"]
    notes += [f"{count:,} line{'' if count == 1 else 's'} left out: {why}" for why, count in audit.skipped.items()]
    return notes + [f"not read: {names.get(path, path)}: {why}" for path, why in list(audit.unread.items())[:_GROUP]]


def audit_sections(audit: Audit, names: Mapping[str, str]) -> list[Markup]:
    """An audit as parts of a page; `names` are what paths are called on it."""
    if not audit.sessions:
        return []
    worst = sorted(audit.sessions, key=lambda session: (-session.lost, -session.prompt))[:_SECTIONS]
    parts = [sums_list(audit), causes_table(audit), *(session_section(session) for session in worst)]
    for path, name in names.items():
        parts = [part.replace(str(Markup.escape(path)), str(Markup.escape(name))) for part in parts]
    return [drawn(f"<window-bar>{part}</window-bar>" if "<svg" in part else part) for part in parts]
