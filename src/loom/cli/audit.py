"""`loom cache audit` for people: sums, causes, sessions and collapses as text. Nothing is printed here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loom.context.cache.audit import Audit, AuditedCall, AuditedGroup, AuditedSession
from loom.context.cache.audit_page import dollars, moment, name_of, tokens_or_unknown, without_collapse
from loom.text.fence import one_line
from loom.traces.reader import find_files
from loom.traces.stream import STDIN

SHOWN: Final = 12
"""Sessions and collapses that are shown, the most expensive first; `--all` shows each of them."""
_NAME: Final = 28


def whole_progress(
    paths: Iterable[str], show: Callable[[int, int], None], *, total: int | None = None
) -> Callable[[int, int], None]:
    """The progress over all files, from the progress in each of them."""
    total = sum(_size(found.path) for found in find_files(paths)) if total is None else total
    before, last = 0, (0, 0)

    def advance(done: int, size: int) -> None:
        nonlocal before, last
        if done < last[0] or size != last[1]:  # the next file
            before += last[0]
        last = done, size
        show(before + done, max(total, before + done))

    return advance


def _size(path: os.PathLike[str]) -> int:
    try:
        return 0 if path == STDIN else os.stat(path).st_size  # noqa: PTH116 - of anything that names a file
    except OSError:  # reading it says so
        return 0


def audit_view(audit: Audit, *, all: bool = False) -> RenderableType:
    """An audit for people: sums first, then causes, sessions, and the collapses that cost most."""
    limit = None if all else SHOWN
    views: list[RenderableType] = [_head(audit), Text()]
    if audit.collapses:
        views += [_causes(audit), Text()]
    elif audit.requests > audit.not_reported:
        views += [Text(without_collapse(audit)), Text()]
    if len(audit.sessions) > 1:
        views += [_sessions(audit, limit), Text()]
    views += _collapses(audit, limit)
    views += [Text(line, style="dim") for line in _notes(audit)]
    return Group(*views)


def _head(audit: Audit) -> RenderableType:
    times = [call.at for session in audit.sessions for call in session.calls if call.at is not None]
    span = f", {moment(min(times))} to {moment(max(times))}" if times else ""
    lines = [
        Text(f"{_count(audit.requests, 'request')} in {_count(len(audit.sessions), 'session')}{span}", style="bold")
    ]
    if audit.main.requests and audit.subagents.requests:
        lines += [_sums("main", audit.main), _sums("subagents", audit.subagents)]
    lines.append(_sums("all" if len(lines) > 1 else "", audit))
    if audit.usd is not None and audit.usd_without_collapse is not None and audit.collapses:
        share = (audit.lost_usd or 0.0) / audit.usd if audit.usd else 0.0
        lines.append(Text(f"with no collapse: {dollars(audit.usd_without_collapse)}, {share:.1%} less"))
    return Group(*lines)


def _sums(name: str, sums: Audit | AuditedGroup) -> Text:
    share = "not reported" if sums.read_share is None else f"{sums.read_share:.1%}"
    written = (
        f"written {tokens_or_unknown(sums.written_short)} (short) and {tokens_or_unknown(sums.written_long)} (long)"
    )
    written = "writes not reported" if sums.written_short is None else written
    parts = [f"{sums.prompt:,} prompt tokens", f"read {share}", written, f"{dollars(sums.usd)}"]
    return Text(f"{name}: {'; '.join(parts)}" if name else "; ".join(parts))


def _causes(audit: Audit) -> RenderableType:
    table = _table()
    table.add_column("cause", "all")
    table.add_column("collapses", f"{len(audit.collapses):,}", justify="right")
    table.add_column("tokens lost", f"{audit.lost:,}", justify="right")
    table.add_column("cost", dollars(audit.lost_usd), justify="right")
    for cause, found in audit.by_cause.items():
        table.add_row(cause.replace("_", " "), f"{found.count:,}", f"{found.lost:,}", dollars(found.usd))
    return table


def _sessions(audit: Audit, limit: int | None) -> RenderableType:
    worst = sorted(audit.sessions, key=lambda session: (-(session.lost_usd or 0.0), -session.lost, -session.prompt))
    table = _table()
    table.add_column(f"session ({_of(limit, worst)})", overflow="ellipsis", no_wrap=True)
    for name in ("requests", "read", "cost", "collapses", "lost", "paid"):
        table.add_column(name, justify="right")
    for session in worst[:limit]:
        share = "?" if session.read_share is None else f"{session.read_share:.1%}"
        paid = "?" if session.lost_usd is None else dollars(session.lost_usd)
        cost = "?" if session.usd is None else dollars(session.usd)
        cells = (f"{session.requests:,}", share, cost, f"{len(session.collapses):,}", f"{session.lost:,}", paid)
        table.add_row(_name(session), *cells)
    table.show_footer = False
    return table


def _collapses(audit: Audit, limit: int | None) -> list[RenderableType]:
    found = [(session, call) for session in audit.sessions for call in session.calls if call.collapse]
    if not found:
        return []
    worst = sorted(found, key=_by_price)
    views: list[RenderableType] = [Text(f"Collapses ({_of(limit, worst)}), the most expensive first:", style="bold")]
    for number, (session, call) in enumerate(worst[:limit], 1):
        lost = call.collapse
        if lost is None:
            continue
        also = f" (also: {', '.join(cause.replace('_', ' ') for cause in lost.also)})" if lost.also else ""
        head = Text(f"{number}. ▼ ", style="red")
        head.append(
            f"{lost.cause.replace('_', ' ')}: {lost.lost:,} tokens lost, {dollars(lost.usd)}", style="not red bold"
        )
        place = f"{_name(session)}, request {call.number:,}, line {call.line:,}, {moment(call.at)}"
        lines = Text("\n".join((place, lost.message + also, f"do: {lost.advice}")))
        views += [head, Padding(lines, (0, 0, 0, 3), expand=False)]
    return [*views, Text()]


def _by_price(found: tuple[AuditedSession, AuditedCall]) -> tuple[float, int]:
    lost = found[1].collapse
    return (-(lost.usd or 0.0), -lost.lost) if lost else (0.0, 0)


def _notes(audit: Audit) -> Iterable[str]:
    if audit.unpriced:
        names = ", ".join(f"{one_line(model)} ({count:,})" for model, count in audit.unpriced.items())
        yield f"price not known, so not in the cost: {names}"
    if audit.not_reported:
        requests = _count(audit.not_reported, "request")
        yield f"{requests} without a report of the cache: unknown, not zero, so not in the read share"
    if audit.missed:
        yield f"{audit.missed:,} tokens missed on a provider that promises nothing: not counted as collapses"
    repeated = sum(session.repeated for session in audit.sessions)
    if repeated:
        yield f"{_count(repeated, 'request')} repeated from another file, counted once"
    if audit.without_calls:
        yield f"{_count(audit.without_calls, 'conversation')} without a call that has usage"
    for reason, count in audit.skipped.items():
        yield f"{_count(count, 'line')} left out: {one_line(reason)}"
    for path, reason in list(audit.unread.items())[:SHOWN]:
        yield f"not read: {one_line(path)}: {one_line(reason)}"
    if len(audit.unread) > SHOWN:
        yield f"not read: {len(audit.unread) - SHOWN:,} more files"


def _name(session: AuditedSession) -> str:
    name = one_line(name_of(session))
    short = name if len(name) <= _NAME else f"{name[: _NAME - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
    return f"{short} (subagent)" if session.is_subagent else short


def _of(limit: int | None, items: Sequence[object]) -> str:
    return f"{len(items):,}" if limit is None or len(items) <= limit else f"{limit:,} of {len(items):,}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
