"""An audit as one HTML page that needs nothing else: charts drawn as SVG here, no script, light and dark by CSS.

Each part is a function that returns HTML, so another page can use it: `requests_chart`, `collapses_list`,
`sessions_table`, `sums_list`. Every text that comes from a record is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from typing import Final

from loom.context.cache.audit import Audit, AuditedCall, AuditedSession

BARS: Final = 360
"""Bars of one chart; more calls are drawn as means of neighbours, and the chart says so."""
CHARTS: Final = 60
"""Sessions with a chart of their own, those that lost most first; the table has all of them."""
_WIDTH, _HEIGHT, _TOP, _LEFT = 960, 190, 22, 58
_NARROW: Final = 400
"""The width of what is drawn for a narrow screen, on which the letters of a wide chart could not be read."""
_FEW, _LOW = 12, 96
"""A chart of few bars is low, and they stand beside each other at its left."""
_TWO_TIMES: Final = 300
"""The width of bars below which two times fit."""

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --paper: #ffffff; --line: #d5dae0; --read: #2f7d5b;
  --written: #d98a1f; --fresh: #9aa4af; --lost: #c62b2b; --box: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --dim: #9aa4af; --paper: #14171b; --line: #343b43;
  --read: #4fb58a; --written: #f0ad4e; --fresh: #6b7580; --lost: #ff6b6b; --box: #1d2228; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 16px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 4px; overflow-wrap: anywhere; }
p, .dim { color: var(--dim); margin: 2px 0 10px; }
.sums { display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0; padding: 0; list-style: none; }
.sums li { background: var(--box); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.sums b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; } .sums .bad b { color: var(--lost); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--dim); margin: 4px 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; }
svg { display: block; width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--dim); }
.read { fill: var(--read); background: var(--read); } .written { fill: var(--written); background: var(--written); }
.fresh { fill: var(--fresh); background: var(--fresh); } .lost { fill: var(--lost); color: var(--lost); }
.unknown { fill: none; stroke: var(--dim); stroke-dasharray: 2 2; } .legend .unknown { border: 1px dashed var(--dim); }
.missed { fill: none; stroke: var(--lost); } .axis { stroke: var(--line); } svg .lost { font-size: 13px; }
svg.bars.narrow { display: none; } @media (max-width: 640px) { svg.bars { display: none; }
  svg.bars.narrow { display: block; min-width: 0; } }
.reach { fill: transparent; } svg g:hover rect { opacity: .75; } code { overflow-wrap: anywhere; }
"""


def audit_page(audit: Audit, *, title: str = "What the prompt cache did") -> str:
    """The whole page."""
    charted = sorted(audit.sessions, key=lambda session: (-session.lost, -session.prompt))[:CHARTS]
    parts = [f"<h1>{escape(title)}</h1>", sums_list(audit), causes_table(audit)]
    if len(audit.sessions) > 1:
        parts += ["<h2>Sessions</h2>", sessions_table(audit.sessions, linked=charted)]
    if len(charted) < len(audit.sessions):
        parts.append(f"<p>The {len(charted)} sessions that lost most are drawn below.</p>")
    parts += [session_section(session) for session in charted]
    return html_page(title, parts)


def html_page(title: str, parts: Iterable[str]) -> str:
    """A document around its parts. It may load nothing: no script, no image, no font."""
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
    )
    page = "\n".join([head, *parts, "</body></html>\n"])
    return page.encode(errors="replace").decode()  # halves of a character, in titles and file names, cannot be written


def sums_list(sums: Audit | AuditedSession) -> str:
    """The sums as a row of figures."""
    share = "not reported" if sums.read_share is None else f"{sums.read_share:.1%}"
    items = [
        ("requests", f"{sums.requests:,}", ""),
        ("read from the cache", share, ""),
        ("written, short", tokens_or_unknown(sums.written_short), ""),
        ("written, long", tokens_or_unknown(sums.written_long), ""),
        ("cost", dollars(sums.usd), ""),
        ("collapses", f"{len(sums.collapses):,}", "bad" if sums.collapses else ""),
        ("tokens lost", f"{sums.lost:,}", "bad" if sums.lost else ""),
        ("cost with no collapse", dollars(sums.usd_without_collapse), ""),
    ]
    if sums.not_reported:
        items.insert(2, ("requests not reported", f"{sums.not_reported:,}", ""))
    if sums.missed:
        items.append(("missed, not promised", f"{sums.missed:,}", ""))
    rows = "".join(f'<li class="{kind}"><b>{escape(value)}</b>{escape(name)}</li>' for name, value, kind in items)
    unpriced = ", ".join(f"{escape(brief(model))} ({count:,})" for model, count in sums.unpriced.items())
    note = f"<p>Price not known, so not in the cost: {unpriced}.</p>" if unpriced else ""
    return f'<ul class="sums">{rows}</ul>{note}'


def without_collapse(audit: Audit) -> str:
    """What no collapse means: that the cache worked, or that nothing was ever in it to lose."""
    if audit.read_share != 0 or audit.requests == 1:  # a first request reads nothing
        return "The cache was never lost."
    if any(session.program == "requests" for session in audit.sessions):
        return (
            "Nothing was ever read from the cache, so nothing could be lost. The requests are recorded: where they "
            "begin alike, `loom cache simulate` on the same files says what to change. Requests that have nothing in "
            "common cannot read from each other."
        )
    return (
        "Nothing was ever read from the cache, so nothing could be lost. Either no part is marked to be cached, or the "
        "prompt begins anew in every request: record the requests, and `loom cache simulate` says what is marked, and "
        "where requests that begin alike part."
    )


def causes_table(audit: Audit) -> str:
    """The collapses in sum, by cause."""
    if not audit.by_cause:
        said = re.sub("`(.+?)`", r"<code>\1</code>", escape(without_collapse(audit)))
        return f"<p>{said}</p>"
    rows = "".join(
        f'<tr><td>{escape(cause.replace("_", " "))}</td><td class="n">{found.count:,}</td>'
        f'<td class="n">{found.lost:,}</td><td class="n">{dollars(found.usd)}</td></tr>'
        for cause, found in audit.by_cause.items()
    )
    head = '<tr><th>cause</th><th class="n">collapses</th><th class="n">tokens lost</th><th class="n">cost</th></tr>'
    return f'<div class="wide" tabindex="0"><table>{head}{rows}</table></div>'


def sessions_table(sessions: Sequence[AuditedSession], *, linked: Sequence[AuditedSession] = ()) -> str:
    """One row for each session, with a link to the section of those that have one on the page."""
    rows: list[str] = []
    sections = {anchor(session) for session in linked}
    for session in sessions:
        share = "not reported" if session.read_share is None else f"{session.read_share:.1%}"
        figures = (
            f"{session.requests:,}",
            share,
            dollars(session.usd),
            f"{len(session.collapses):,}",
            f"{session.lost:,}",
        )
        cells = "".join(f'<td class="n">{escape(figure)}</td>' for figure in figures)
        name, section = escape(name_of(session)), anchor(session)
        name = f'<a href="#{section}">{name}</a>' if section in sections else name
        rows.append(f'<tr><td>{name}</td>{cells}<td class="n">{dollars(session.lost_usd)}</td></tr>')
    names = ("requests", "read", "cost", "collapses", "tokens lost", "paid for it")
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    return f'<div class="wide" tabindex="0"><table><tr><th>session</th>{head}</tr>{"".join(rows)}</table></div>'


def session_section(session: AuditedSession) -> str:
    """One session: what it is, its chart and its collapses."""
    kind = f"{session.program}, subagent of {brief(session.parent or '')}" if session.is_subagent else session.program
    return "\n".join(
        [
            f'<h2 id="{anchor(session)}">{escape(name_of(session))}</h2>',
            f"<p>{escape(kind)} · <code>{escape(session.path)}</code></p>",
            requests_chart(session.calls),
            collapses_list(session.calls),
        ]
    )


def collapses_list(calls: Iterable[AuditedCall]) -> str:
    """The collapses of one session."""
    rows: list[str] = []
    for call in calls:
        lost = call.collapse
        if lost:
            also = f" (also: {', '.join(cause.replace('_', ' ') for cause in lost.also)})" if lost.also else ""
            figures = f'<td class="n">{lost.lost:,}</td><td class="n">{dollars(lost.usd)}</td>'
            rows.append(
                f'<tr><td class="n"><span class="lost" aria-hidden="true">▼</span> {call.number:,}</td>'
                f"<td>{escape(moment(call.at))}</td><td>{escape(lost.cause.replace('_', ' '))}</td>{figures}"
                f"<td>{escape(brief(lost.message + also, 1_000))}<br>"
                f'<span class="dim">{escape(lost.advice)}</span></td></tr>'
            )
    if not rows:
        return ""
    head = '<tr><th class="n">request</th><th>time</th><th>cause</th><th class="n">lost</th><th class="n">cost</th>'
    return f'<div class="wide" tabindex="0"><table>{head}<th>why</th></tr>{"".join(rows)}</table></div>'


REQUESTS_LEGEND: Final = (
    '<div class="legend"><span><i class="read"></i>read</span><span><i class="written"></i>written</span>'
    '<span><i class="fresh"></i>neither</span><span><i class="unknown"></i>not reported</span>'
    '<span><span class="lost" aria-hidden="true">▼</span> cache lost</span>{}</div>'
)
"""What the bars mean; with a place for one more line."""


def requests_chart(
    calls: Sequence[AuditedCall], *, link: Callable[[AuditedCall], str] | None = None, legend: bool = True
) -> str:
    """One bar for each request in the order of time: read, written, neither; a red mark where the cache was lost.

    With `link`, a bar leads to the page of its request: of several, to the first that lost the cache. A page with many
    charts has one `legend` for all of them.
    """
    size = -(-len(calls) // BARS) or 1
    groups = [calls[start : start + size] for start in range(0, len(calls), size)]
    merged = f"; each bar is the mean of {size:,} requests" if size > 1 else ""
    label = f"{len(calls):,} requests, {sum(1 for call in calls if call.collapse):,} collapses of the cache{merged}"
    return (
        _bars(groups, link, label, _NARROW)
        + _bars(groups, link, label, _WIDTH)
        + (REQUESTS_LEGEND.format(f"<span>tokens of each prompt{escape(merged)}</span>") if legend else "")
    )


def _bars(
    groups: Sequence[Sequence[AuditedCall]], link: Callable[[AuditedCall], str] | None, label: str, width: int
) -> str:
    """The chart in one of its widths; a page shows the one that fits."""
    top = max((_mean(group, lambda call: call.prompt) for group in groups), default=0) or 1
    height = _HEIGHT if len(groups) > _FEW else _LOW
    room, base = width - _LEFT - 4, _TOP + height
    step = room / max(len(groups), 2 * _FEW)
    drawn = [_bar(group, _LEFT + n * step, step, height, top) for n, group in enumerate(groups)]
    if link is not None:
        leads = [next((call for call in group if call.collapse), group[0]) for group in groups]
        drawn = [f'<a href="{escape(link(call))}">{bar}</a>' for call, bar in zip(leads, drawn, strict=True)]
    end = _LEFT + len(groups) * step
    times = _times([groups[0][0], groups[-1][-1]] if groups else [], base + 16, end)
    axis = (
        f'<line class="axis" x1="{_LEFT}" x2="{end:.1f}" y1="{base}" y2="{base}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{_short(top)}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>{times}'
    )
    kind = "bars narrow" if width == _NARROW else "bars"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {base + 22}" role="{"group" if link else "img"}" '
        f'aria-label="{escape(label)}">{axis}{"".join(drawn)}</svg>'
    )


def _times(calls: Sequence[AuditedCall], y: int, end: float) -> str:
    """When the requests were made, below the first and the last of them."""
    if not calls:
        return ""
    first, last = escape(moment(calls[0].at)), escape(moment(calls[-1].at))
    if end < _LEFT + _TWO_TIMES:
        return f'<text x="{_LEFT}" y="{y}">{first if first == last else f"{first} to {last}"}</text>'
    return f'<text x="{_LEFT}" y="{y}">{first}</text><text x="{end:.1f}" y="{y}" text-anchor="end">{last}</text>'


def _bar(group: Sequence[AuditedCall], x: float, step: float, room: int, top: float) -> str:
    width = max(0.6, step - (1.5 if step > 5 else 0.3))
    known = [call for call in group if call.read is not None]
    parts: list[tuple[str, float]] = [("unknown", _mean(group, lambda call: call.prompt))]
    if known:
        parts = [
            ("read", _mean(known, lambda call: call.read or 0)),
            ("written", _mean(known, lambda call: call.written)),
            ("fresh", _mean(known, lambda call: call.fresh)),
        ]
    drawn: list[str] = []
    y = float(_TOP + room)
    for kind, tokens in parts:
        height = room * tokens / top
        y -= height
        if tokens:
            place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            drawn.append(f'<rect class="{kind}" {place}/>')
    lost = [call for call in group if call.collapse]
    if lost:
        place = f'x="{x + width / 2:.1f}" y="{max(11.0, y - 4):.1f}"'
        drawn.append(f'<text class="lost" {place} text-anchor="middle">▼</text>')
    reach = f'<rect class="reach" x="{x:.1f}" y="{_TOP}" width="{step:.1f}" height="{room}"/>'
    return f"<g><title>{escape(_tooltip(group, lost))}</title>{reach}{''.join(drawn)}</g>"


def _tooltip(group: Sequence[AuditedCall], lost: Sequence[AuditedCall]) -> str:
    first, last = group[0], group[-1]
    if len(group) == 1:
        lines = [f"request {first.number:,}, {moment(first.at)}, {brief(first.model)}"]
        if first.read is None:
            lines.append(f"{first.prompt:,} tokens; the provider did not report what it read")
        else:
            lines.append(
                f"read {first.read:,}, written {first.written:,}, neither {first.fresh:,}; {dollars(first.usd)}"
            )
    else:
        lines = [f"requests {first.number:,} to {last.number:,}, from {moment(first.at)}"]
    lines += [
        f"request {call.number:,}: {call.collapse.lost:,} tokens lost, {call.collapse.cause.replace('_', ' ')}"
        for call in lost
        if call.collapse
    ]
    return "\n".join(lines)


def _mean(group: Sequence[AuditedCall], tokens: Callable[[AuditedCall], int]) -> float:
    return sum(map(tokens, group)) / len(group) if group else 0.0


def name_of(session: AuditedSession) -> str:
    """What a session is called: its title, or its id; the beginning of a very long one."""
    return brief(session.title or session.session_id or session.path)


def brief(text: str, length: int = 200) -> str:
    """The beginning of a text of others, which may have any length."""
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"


def anchor(session: AuditedSession) -> str:
    """The id of a session's section on the page."""
    return f"s{sha256(f'{session.path} {session.session_id}'.encode(errors='replace')).hexdigest()[:12]}"


def moment(at: float | None) -> str:
    """A time as UTC, to the minute."""
    try:
        return "time not recorded" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):
        return "time not readable"


def dollars(usd: float | None) -> str:
    """An amount, with as many digits as it needs."""
    if usd is None:
        return "price not known"
    return f"${usd:,.2f}" if abs(usd) >= 1 else f"${usd:.4f}"


def tokens_or_unknown(tokens: int | None) -> str:
    """A count, or that it was not reported."""
    return "not reported" if tokens is None else f"{tokens:,}"


def _short(tokens: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.0f}{unit}"
    return f"{tokens:.0f}"
