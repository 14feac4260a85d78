"""The Requests pages of saved conversations: one bar for each call of a model, and the byte that moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from loom.catalog import find_model
from loom.context.cache.audit import AuditedCall, Collapse
from loom.context.cache.audit_page import REQUESTS_LEGEND, dollars, requests_chart
from loom.context.cache.explain import Explanation, explain
from loom.context.cache.simulate import Analysis, common_length
from loom.core.message import JSON
from loom.core.scope import Scope
from loom.errors import LoomError, NotFound
from loom.protocols.checkpoint_store import CheckpointStore
from loom.server.inspector.charts import (
    SectionUse,
    drawn,
    ordered,
    sections_chart,
    sections_legend,
    small_bar,
    window_bar,
)
from loom.server.inspector.pages import PREFIX, base_of, caller_of, page
from loom.session.journal import BODY, CacheLoss, RequestRecord, body_in, requests_of

router = APIRouter(prefix=PREFIX, include_in_schema=False)

_SESSIONS: Final = 10
"""Conversations of one page, the most recent first."""
_ROWS: Final = 100
"""Requests of one table."""
_LOSSES: Final = 10
"""Lost caches that a conversation lists on the page of all; its own page has every one."""
_AROUND: Final = 160
"""Characters shown on both sides of the byte that moved."""
_MOST_AROUND: Final = 20_000
_UNREAD: Final = "unexplained"
"""The cause of a loss that nobody recorded: most of what the request before had left in the cache was not read."""
_BARS: Final = 360
"""Requests that are drawn by section, the newest."""


@dataclass(frozen=True, slots=True)
class _Journal:
    """The requests of one conversation, each with the loss that it shows."""

    session: str
    here: str
    records: Sequence[RequestRecord]
    losses: Sequence[CacheLoss | None]

    @classmethod
    def of(cls, user: str, session: str, records: Sequence[RequestRecord]) -> _Journal:
        losses = [_loss(records[n - 1] if n else None, one) for n, one in enumerate(records)]
        return cls(session, f"{base_of(user)}/sessions/{quote(session, safe='')}", records, losses)

    def href(self, number: int) -> str:
        """The page of a request, by its number from 1."""
        return f"{self.here}/requests/{quote(self.records[number - 1].id, safe='')}"

    def price_of_loss(self, number: int) -> float | None:
        """What the lost tokens cost more than if they had been read; None if the price is not known."""
        one, loss = self.records[number - 1], self.losses[number - 1]
        price, rates = _prices(one)
        return None if loss is None or price is None else loss.tokens * (rates["written"] - rates["read"]) * price


def _loss(before: RequestRecord | None, one: RequestRecord) -> CacheLoss | None:
    """Why the cache was lost. A process that has just begun predicts nothing, so it is compared with the one before."""
    if one.loss is not None or before is None or one.cache_read is None or before.cache_read is None:
        return one.loss
    left = before.cache_read + (before.cache_write or 0)
    if one.model != before.model or one.purpose != before.purpose or one.cache_read * 2 >= left:
        return None
    return CacheLoss(cause=_UNREAD, tokens=left - one.cache_read)


@router.get("/u/{user:name}/requests")
async def requests(request: Request, user: str, after: str = "", by: str = "cache") -> Response:
    """The requests of the newest conversations."""
    caller = caller_of(request, user)
    store = caller.place.checkpoints
    saved = [one.session_id for one in await store.sessions(caller.scope)]
    start = saved.index(after) + 1 if after in saved else 0
    journals: list[_Journal] = []
    looked = start
    while looked < len(saved) and len(journals) < _SESSIONS:
        if records := await requests_of(store, caller.session(saved[looked])):
            journals.append(_Journal.of(user, saved[looked], records))
        looked += 1
    return page(
        request,
        "requests.html",
        user=user,
        by=by,
        here=f"{base_of(user)}/requests",
        sums=_sums(journals),
        legend=_legend(journals, by),
        sections=[_section(one, by=by, whole=False) for one in journals],
        following=saved[looked - 1] if looked < len(saved) else None,
        after=after,
        follow=f"{base_of(user)}/events",
    )


@router.get("/u/{user:name}/sessions/{session:name}/requests")
async def session_requests(
    request: Request, user: str, session: str, before: int | None = None, by: str = "cache"
) -> Response:
    """The requests of one conversation."""
    caller = caller_of(request, user)
    records = await requests_of(caller.place.checkpoints, caller.session(session))
    journal = _Journal.of(user, session, records)
    end = len(records) + 1 if before is None else min(max(before, 1), len(records) + 1)
    return page(
        request,
        "requests.html",
        user=user,
        name="requests",
        by=by,
        here=f"{journal.here}/requests",
        session_id=session,
        session_href=journal.here,
        sums=_sums([journal]),
        legend=_legend([journal], by),
        sections=[_section(journal, by=by, whole=True, end=end)] if records else [],
        earlier=max(1, end - _ROWS) if end - _ROWS > 1 else None,
        follow=f"{journal.here}/events",
    )


def _sums(journals: Sequence[_Journal]) -> list[tuple[str, str, bool]]:
    """What the page is about in a few figures: what, how much, and whether it is bad."""
    records = [one for journal in journals for one in journal.records]
    if not records:
        return []
    losses = [loss for journal in journals for loss in journal.losses if loss]
    told = [one for one in records if one.usage is not None and one.cache_read is not None]
    prompt = sum(one.usage.input for one in told if one.usage)
    share = f"{sum(one.cache_read or 0 for one in told) / prompt:.0%}" if prompt else "not reported"
    costs = [one.cost for one in records if one.cost is not None]
    silent = sum(one.usage is not None and one.cache_read is None for one in records)
    found = [
        ("requests", f"{len(records):,}", False),
        ("read from the cache", share, False),
        ("cost", dollars(sum(costs)) if costs else "price not known", False),
        ("cache lost", f"{len(losses):,} \N{MULTIPLICATION SIGN}", bool(losses)),
        ("tokens lost", f"{sum(loss.tokens for loss in losses):,}", bool(losses)),
    ]
    paid = [journal.price_of_loss(n) for journal in journals for n, loss in enumerate(journal.losses, 1) if loss]
    known = [usd for usd in paid if usd is not None]
    found += [("paid for that", dollars(sum(known)), True)] if known else []
    failed = sum(one.error is not None for one in records)
    found += [("cache not reported", f"{silent:,} of {len(records):,}", False)] if silent else []
    return found + ([("failed", f"{failed:,}", True)] if failed else [])


def _legend(journals: Sequence[_Journal], by: str) -> Markup:
    """What the bars of all these conversations mean."""
    if by == "sections":
        return drawn(sections_legend(one.sections for journal in journals for one in journal.records))
    return drawn(REQUESTS_LEGEND.format("<span>height: tokens of the prompt</span>"))


def _section(journal: _Journal, *, by: str, whole: bool, end: int = 0) -> Markup:
    """A conversation: its chart, and a table of all its requests or of those that lost the cache."""
    records, losses = journal.records, journal.losses
    if by == "sections":
        first = max(0, len(records) - _BARS)
        hrefs = [journal.href(number) for number in range(first + 1, len(records) + 1)]
        chart = sections_chart([one.sections for one in records[first:]], hrefs)
    else:
        calls = [_call(number, one, loss) for number, (one, loss) in enumerate(zip(records, losses, strict=True), 1)]
        chart = requests_chart(calls, link=lambda call: journal.href(call.number), legend=False)
    if whole:
        shown = range(max(1, end - _ROWS), end)
    else:
        shown = [number for number, loss in enumerate(losses, 1) if loss or records[number - 1].error][-_LOSSES:]
    rows = Markup("").join(_row(journal, number) for number in shown)
    title = Markup('<h2><a href="{}">{}</a></h2>').format(f"{journal.here}/requests", journal.session)
    table = Markup(
        '<div class="wide" tabindex="0"><table class="requests stack"><caption class="skip">Requests</caption>'
        '<thead><tr><th class="n">request</th><th>time</th><th>cache</th><th class="n">prompt</th>'
        '<th class="n">read</th><th class="n">predicted</th><th class="n">written</th><th class="n">cost</th>'
        "<th>for</th><th>window</th></tr></thead><tbody>{}</tbody></table></div>"
    )
    count = f"{len(records):,} request{'' if len(records) == 1 else 's'}"
    more = Markup('<p class="about"><a href="{}">{}</a>; {}</p>').format(
        f"{journal.here}/requests", f"all {count}" if len(records) > 1 else count, _outcome(journal)
    )
    return Markup("<section>{}{}{}{}</section>").format(
        "" if whole else title,
        "" if whole else more,
        Markup('<window-bar class="wide">{}</window-bar>').format(drawn(chart)),
        table.format(rows) if rows else "",
    )


def _outcome(journal: _Journal) -> str:
    count = sum(loss is not None for loss in journal.losses)
    if count:
        return f"the cache was lost {count:,} \N{MULTIPLICATION SIGN}"
    reported = any(one.cache_read is not None for one in journal.records)
    return "the cache was not lost" if reported else "what the cache did was not reported"


def _call(number: int, one: RequestRecord, loss: CacheLoss | None) -> AuditedCall:
    """A record as the chart takes it."""
    usage = one.usage
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


def _row(journal: _Journal, number: int) -> Markup:
    one, loss = journal.records[number - 1], journal.losses[number - 1]
    if loss is not None:
        where = f" at {loss.path}" if loss.path else ""
        entry = f", {loss.entry}" if loss.entry else ""
        byte = f", byte {loss.byte:,}" if loss.byte is not None else ""
        lost = f": {loss.tokens:,} tokens" if loss.tokens else ""
        state = Markup('<span class="bad">\N{BLACK DOWN-POINTING TRIANGLE} {}</span>{}{}{}{}').format(
            loss.cause.replace("_", " "), where, entry, byte, lost
        )
    elif one.error:
        state = Markup('<span class="bad">failed: {}</span>').format(one.error)
    elif one.cache_read is None:
        state = _SILENT
    else:
        state = Markup("as predicted") if one.predicted_read else Markup("nothing to read yet")
    prompt = Markup("-") if one.usage is None else f"{one.usage.input:,}"
    cells = {
        "prompt": prompt,
        "read": _count(one.cache_read),
        "predicted": _count(one.predicted_read),
        "written": _count(one.cache_write),
        "cost": _dollars(one.cost),
    }
    figure = Markup('<td class="n" data-label="{}">{}</td>')
    figures = Markup("").join(figure.format(name, cell) for name, cell in cells.items())
    row = Markup(
        '<tr><td class="n" data-label="request">{}</td><td class="w">{}</td><td class="why">{}</td>{}'
        '<td class="w" data-label="for">{}</td><td>{}</td></tr>'
    )
    return row.format(
        Markup('<a href="{}">{}</a>').format(journal.href(number), number),
        f"{one.at:%m-%d %H:%M:%S}",
        state,
        figures,
        one.purpose,
        drawn(small_bar(one.sections)),
    )


_SILENT: Final = Markup('<span class="silent">not reported</span>')


def _count(value: int | None) -> str:
    return _SILENT if value is None else f"{value:,}"


def _dollars(value: float | None) -> str:
    if value is None:
        return Markup('<span class="silent">not known</span>')
    return f"${value:.6f}".rstrip("0").rstrip(".") if value else "$0"


@router.get("/u/{user:name}/sessions/{session:name}/requests/{id:name}")
async def one_request(request: Request, user: str, session: str, id: str, around: int = _AROUND) -> Response:
    """One request: its window, and where it differs from the one before."""
    caller = caller_of(request, user)
    store, scope = caller.place.checkpoints, caller.session(session)
    journal = _Journal.of(user, session, await requests_of(store, scope))
    place = next((number for number, one in enumerate(journal.records) if one.id == id), None)
    if place is None:
        raise NotFound(f"the conversation has no request {id!r:.100}; its page of requests lists them")
    around = min(max(around, 40), _MOST_AROUND)
    one, loss = journal.records[place], journal.losses[place]
    difference, why = await _difference(store, scope, journal.records, place, around)
    uses = section_uses(one)
    return page(
        request,
        "request.html",
        user=user,
        name="requests",
        session_id=session,
        here=journal.here,
        one=one,
        loss=loss,
        paid=journal.price_of_loss(place + 1),
        unread=_UNREAD,
        number=place + 1,
        last=len(journal.records),
        before=journal.href(place) if place else None,
        after=journal.href(place + 2) if place + 1 < len(journal.records) else None,
        uses=uses,
        window=drawn(window_bar(uses, cache_use(one))),
        price=_dollars(one.cost),
        difference=difference,
        why=why,
        around=around,
        most_around=_MOST_AROUND,
        href=journal.href(place + 1),
    )


def cache_use(one: RequestRecord) -> Mapping[str, int] | None:
    """The tokens of a prompt by what the cache did with them; None where the provider said nothing."""
    if one.usage is None or one.cache_read is None:
        return None
    written = one.cache_write or 0
    return {"read": one.cache_read, "written": written, "fresh": max(0, one.usage.input - one.cache_read - written)}


def _prices(one: RequestRecord) -> tuple[float | None, dict[str, float]]:
    """Dollars for a token of the prompt, None if not known; and what share of it each use of the cache costs."""
    info = find_model(one.model, one.provider or None)
    rules, price = info.cache, info.input_price
    rates = {"read": rules.read, "written": rules.write.get(rules.default_ttl or "", 1.0), "fresh": 1.0}
    return None if price is None else price / 1e6, rates


def section_uses(one: RequestRecord) -> list[SectionUse]:
    """What the cache did with each section: a prefix is read, what follows is written, the end is neither."""
    cache, total = cache_use(one), sum(one.sections.values())
    if cache is None or not total:
        return [SectionUse(name, tokens, None, None, None, None) for name, tokens in ordered(one.sections)]
    price, rates = _prices(one)
    scale = sum(cache.values()) / total
    uses: list[SectionUse] = []
    done = 0.0
    for name, tokens in ordered(one.sections):
        begin, end, start = done, done + tokens * scale, 0.0
        parts: dict[str, float] = {}
        for kind, size in cache.items():
            parts[kind] = max(0.0, min(end, start + size) - max(begin, start))
            start += size
        usd = None if price is None else sum(parts[kind] * rates[kind] for kind in parts) * price
        uses.append(SectionUse(name, tokens, parts["read"], parts["written"], parts["fresh"], usd))
        done = end
    return uses


# -- the byte that moved


@dataclass(frozen=True, slots=True)
class _DiffSide:
    """The text of one request around the first byte that differs."""

    title: str
    head: str
    changed: str
    tail: str
    earlier: int
    """Characters in front of what is shown."""
    later: int
    hidden: int
    """Characters of the change itself that are not shown."""
    bytes: str
    """The first bytes of the change, as hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class _Difference:
    moved: Explanation
    path: str
    sides: tuple[_DiffSide, ...]


async def _difference(
    store: CheckpointStore, scope: Scope, records: Sequence[RequestRecord], place: int, around: int
) -> tuple[_Difference | None, str]:
    """How the body differs from that of the request before; or why that cannot be said."""
    if place == 0:
        return None, "This is the first request of the conversation."
    try:
        entries = await store.recorded(scope, kind=BODY)
        before, after = body_in(entries, records[place - 1].id), body_in(entries, records[place].id)
    except NotFound:
        return None, "Bodies are not kept. A session with keep_requests=True keeps them; then the byte is shown here."
    try:
        moved = explain(before, after)
        if not moved.moved:
            return _Difference(moved, "", ()), ""
        return _compared(moved, before, after, around), ""
    except LoomError as error:
        return None, f"The two bodies cannot be compared: {error}"


def _compared(moved: Explanation, before: Mapping[str, JSON], after: Mapping[str, JSON], around: int) -> _Difference:
    """The two texts around the first difference of the blocks."""
    analysis = Analysis(after, None, None)
    old, new = analysis.prompt(before).blocks, analysis.prompt(after).blocks
    at = next((n for n, (one, two) in enumerate(zip(old, new, strict=False)) if one.key != two.key), None)
    if at is None:  # one is the start of the other
        at = min(len(old), len(new))
    was, now = (blocks[at].content if at < len(blocks) else "" for blocks in (old, new))
    same = common_length(was, now)
    rest = min(len(was), len(now)) - same
    end = next((n for n in range(rest) if was[-1 - n] != now[-1 - n]), rest)
    path = (new[at] if at < len(new) else old[at]).path if at < max(len(old), len(new)) else ""
    sides = tuple(_side(title, text, same, end, around) for title, text in (("before", was), ("after", now)))
    return _Difference(moved, path, sides)


def _side(title: str, text: str, same: int, end: int, around: int) -> _DiffSide:
    changed, tail = text[same : len(text) - end], text[len(text) - end :]
    most = around * 4
    return _DiffSide(
        title=title,
        head=text[max(0, same - around) : same],
        changed=changed[:most],
        tail=tail[:around] if len(changed) <= most else "",
        earlier=max(0, same - around),
        later=max(0, len(tail) - around),
        hidden=max(0, len(changed) - most),
        bytes=changed[:8].encode(errors="replace")[:8].hex(" "),
    )
