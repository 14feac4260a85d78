"""The Requests page of saved conversations: one bar for each call of a model, and the byte that moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from loom.context.cache.audit import AuditedCall, Collapse
from loom.context.cache.audit_page import requests_chart
from loom.context.cache.explain import Explanation, explain
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.inspector.charts import drawn, window_bar
from loom.server.inspector.pages import PREFIX, base_of, caller_of, page
from loom.session.journal import RequestRecord, request_body, requests_of

router = APIRouter(prefix=PREFIX, include_in_schema=False)

_SESSIONS = 20
"""Conversations whose requests are shown on one page, the most recent first."""
_ROWS = 200
"""Requests in one table, the newest."""
_AROUND = 160
"""Characters shown on both sides of the byte that moved."""


@router.get("/u/{user:name}/requests")
async def requests(request: Request, user: str) -> Response:
    """The requests of the newest conversations."""
    caller = caller_of(request, user)
    store = caller.place.checkpoints
    sections: list[Markup] = []
    saved = await store.sessions(caller.scope, limit=_SESSIONS)
    for one in saved:
        records = await requests_of(store, caller.session(one.session_id))
        if records:
            sections.append(_section(user, one.session_id, records))
    notes = () if sections else ("no conversation here has recorded requests",)
    about = f"The {len(sections)} newest conversations." if sections else ""
    return page(request, "requests.html", user=user, upload=False, about=about, notes=notes, sections=sections)


@router.get("/u/{user:name}/sessions/{session:name}/requests")
async def session_requests(request: Request, user: str, session: str) -> Response:
    """The requests of one conversation."""
    caller = caller_of(request, user)
    records = await requests_of(caller.place.checkpoints, caller.session(session))
    notes = () if records else ("this conversation has no recorded requests",)
    sections = [_section(user, session, records)] if records else []
    return page(
        request,
        "requests.html",
        user=user,
        name="requests",
        upload=False,
        about=session,
        notes=notes,
        sections=sections,
    )


def _section(user: str, session: str, records: Sequence[RequestRecord]) -> Markup:
    here = f"{base_of(user)}/sessions/{quote(session, safe='')}"
    chart = requests_chart([_call(number, one) for number, one in enumerate(records, 1)])
    rows = Markup("").join(_row(here, number, one) for number, one in list(enumerate(records, 1))[-_ROWS:])
    cut = Markup("<p>The newest {} of {} requests are listed.</p>").format(_ROWS, len(records))
    head = Markup(
        '<thead><tr><th class="n">request</th><th>time</th><th>for</th><th>window</th><th class="n">prompt</th>'
        '<th class="n">read</th><th class="n">predicted</th><th class="n">written</th><th class="n">cost</th>'
        "<th>cache</th></tr></thead>"
    )
    table = Markup(
        '<div class="wide" tabindex="0"><table><caption class="skip">Requests</caption>'
        "{}<tbody>{}</tbody></table></div>"
    )
    return Markup('<section><h2><a href="{}">{}</a></h2>{}{}{}</section>').format(
        here,
        session,
        drawn(chart),
        table.format(head, rows),
        cut if len(records) > _ROWS else "",
    )


def _call(number: int, one: RequestRecord) -> AuditedCall:
    """A record as the chart takes it."""
    usage, loss = one.usage, one.loss
    written = one.cache_write if one.write_5m is None and one.write_1h is None else one.write_5m or 0
    collapse = None
    if loss is not None and one.cache_read is not None:
        collapse = Collapse(
            cause=cast("Any", loss.cause),
            message=loss.path,
            advice="",
            expected=one.predicted_read or 0,
            read=one.cache_read,
            lost=loss.tokens,
            extra_cost=0.0,
            usd=None,
        )
    return AuditedCall(
        number=number,
        line=0,
        at=one.at.timestamp(),
        model=one.model,
        fresh=0 if usage is None else usage.uncached if one.cache_read is not None else usage.input,
        read=one.cache_read,
        written_short=written,
        written_long=one.write_1h,
        output=0 if usage is None else usage.output,
        usd=one.cost,
        collapse=collapse,
    )


def _row(here: str, number: int, one: RequestRecord) -> Markup:
    if one.loss is not None:
        where = f" at {one.loss.path}" if one.loss.path else ""
        entry = f", entry {one.loss.entry}" if one.loss.entry else ""
        byte = f", byte {one.loss.byte:,}" if one.loss.byte is not None else ""
        state = Markup('<span class="bad">\N{BLACK DOWN-POINTING TRIANGLE} {}</span>{}{}{}').format(
            one.loss.cause.replace("_", " "), where, entry, byte
        )
    elif one.error:
        state = Markup('<span class="bad">failed: {}</span>').format(one.error)
    else:
        state = Markup("as predicted") if one.cache_read is not None else Markup("not reported")
    link = Markup('<a href="{}/requests/{}">{}</a>').format(here, quote(one.id, safe=""), number)
    prompt = "-" if one.usage is None else f"{one.usage.input:,}"
    cells = (prompt, _count(one.cache_read), _count(one.predicted_read), _count(one.cache_write), _dollars(one.cost))
    figures = Markup("").join(Markup('<td class="n">{}</td>').format(cell) for cell in cells)
    row = Markup('<tr><td class="n">{}</td><td class="w">{}</td><td class="w">{}</td><td>{}</td>{}<td>{}</td></tr>')
    return row.format(
        link,
        f"{one.at:%m-%d %H:%M:%S}",
        one.purpose,
        drawn(window_bar(one.sections)),
        figures,
        state,
    )


def _count(value: int | None) -> str:
    return "not reported" if value is None else f"{value:,}"


def _dollars(value: float | None) -> str:
    return "not known" if value is None else f"${value:.6f}".rstrip("0").rstrip(".") if value else "$0"


@router.get("/u/{user:name}/sessions/{session:name}/requests/{id:name}")
async def one_request(request: Request, user: str, session: str, id: str) -> Response:
    """One request: its window, and where it differs from the one before."""
    caller = caller_of(request, user)
    store, scope = caller.place.checkpoints, caller.session(session)
    records = await requests_of(store, scope)
    place = next((number for number, one in enumerate(records) if one.id == id), None)
    if place is None:
        raise NotFound(f"the conversation has no request {id!r:.100}; its page of requests lists them")
    moved, why = await _moved(store, scope, records, place)
    return page(
        request,
        "request.html",
        user=user,
        name="requests",
        session_id=session,
        here=f"{base_of(user)}/sessions/{quote(session, safe='')}",
        one=records[place],
        number=place + 1,
        window=drawn(window_bar(records[place].sections, wide=True)),
        moved=moved,
        sides=_sides(moved),
        why=why,
    )


async def _moved(
    store: CheckpointStore, scope: Scope, records: Sequence[RequestRecord], place: int
) -> tuple[Explanation | None, str]:
    """How the body differs from that of the request before; or why that cannot be said."""
    if place == 0:
        return None, "this is the first request of the conversation"
    try:
        before = await request_body(store, scope, records[place - 1].id)
        after = await request_body(store, scope, records[place].id)
    except NotFound:
        return (
            None,
            "bodies are not kept; a session with keep_requests=True keeps them, and then this page shows the byte",
        )
    try:
        return explain(before, after), ""
    except LoomError as error:
        return None, f"the two bodies cannot be compared: {error}"


def _sides(moved: Explanation | None) -> list[tuple[str, str, str]]:
    """The text around the first different byte, before and after: what is equal, and what follows."""
    if moved is None or not moved.moved:
        return []
    sides: list[tuple[str, str, str]] = []
    for title, text in (("before", moved.before), ("after", moved.after)):
        same = len(text.encode()[: moved.byte_in_block].decode(errors="ignore"))
        sides.append((title, text[max(0, same - _AROUND) : same], text[same : same + _AROUND]))
    return sides
