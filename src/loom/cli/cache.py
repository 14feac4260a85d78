"""`loom cache`: plan, explain and simulate recorded requests, audit recorded sessions; bars and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loom.cli.output import Json, console, echo, plain, print_json, progress_bar, write_file
from loom.context.cache.explain import Explanation
from loom.context.cache.plan import CachePlan
from loom.context.cache.simulate import Finding, Simulation, Step
from loom.core.message import Usage
from loom.core.window import Block, RequestBlocks
from loom.errors import UsageError
from loom.text.fence import one_line

app = typer.Typer(
    help="Check what the prompt cache does with requests, before and after they are sent.", no_args_is_help=True
)


def _known_provider(provider: str | None) -> str | None:
    """A slip in the name would otherwise be counted by the rules of no provider in particular."""
    if provider is not None:
        from loom.context.render.request import target_for

        target_for(provider, "any")
    return provider


Provider = Annotated[
    str | None,
    typer.Option(
        help="anthropic, bedrock, openai, gemini, deepseek, vllm, ...; read from the request if not given.",
        callback=_known_provider,
    ),
]
Model = Annotated[str | None, typer.Option(help="The model; read from the request if not given.")]


Sources = Annotated[
    list[str],
    typer.Argument(
        help="Recorded requests, oldest first: JSON lines, JSON, HAR; files, folders, patterns, - for a pipe, or "
        "FILE:41:42 for two lines."
    ),
]


@app.command()
def plan(
    requests: Sources,
    previous: Annotated[list[str] | None, typer.Option(help="An earlier request; may be repeated.")] = None,
    provider: Provider = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Predict what the cache will read, write and cost, before a request is sent.

    Of several requests the last is planned, and the others are taken as sent before it.
    """
    from loom import plan as make_plan

    records = _load(requests)
    earlier = [*(_load(previous) if previous else []), *records[:-1]]
    found = make_plan(records[-1], provider, model, previous=earlier or None)
    if json:
        print_json({**plain(found), "relative_cost": found.relative_cost})
        return

    console().print(plan_view(found))


@app.command()
def explain(requests: Sources, provider: Provider = None, model: Model = None, json: Json = False) -> None:
    """Find the first byte that changed between two requests, the cause, the cost, and what to do.

    Of more than two requests the last two are compared.
    """
    from loom import explain as make_explanation

    records = _load(requests)
    if len(records) == 1:
        raise UsageError("there is one request; give the one before it as well, as in FILE:41:42 or BEFORE AFTER")
    if len(records) > 2:
        echo(f"comparing the last two of {len(records):,} requests; name others as in FILE:41:42", err=True)
    found = make_explanation(records[-2], records[-1], provider, model)
    if json:
        print_json(found)
        return

    console().print(explanation_view(found))


@app.command()
def simulate(requests: Sources, provider: Provider = None, model: Model = None, json: Json = False) -> None:
    """Replay requests through the cache: what was read and written, what it cost, and what to fix.

    Each file is a trace of its own; files of one folder that hold a request each are one trace together.
    """
    from loom.catalog import find_model
    from loom.context.cache.diagnose import simulate_prompts
    from loom.traces.sources import read_traces

    with progress_bar("reading") as show:
        traces, skipped = read_traces(requests, provider=provider, model=model, progress=show)
    replays: list[_Replay] = []
    with progress_bar("replaying") as show:
        for trace in traces:
            first = trace.prompts[0]
            done = simulate_prompts(trace.prompts, find_model(first.model, provider or first.provider))
            done.findings  # noqa: B018 - found now, while the bar is shown
            replays.append(_Replay(trace.name, done, tuple(usage for usage in trace.usages if usage)))
            show(len(replays), len(traces))
    _tell_skipped(skipped)
    if json:
        found = [_replay_json(replay) for replay in replays]
        print_json(found[0] if len(found) == 1 else {**_total_json(replays), "traces": found})
        return

    console().print(replay_view(replays[0]) if len(replays) == 1 else replays_view(replays))


@app.command()
def audit(
    paths: Annotated[
        list[str],
        typer.Argument(help="Transcripts of Claude Code, Codex and others: files, folders, patterns, or - for a pipe."),
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write the audit as one HTML page with charts to this file.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Show every session and every collapse.")] = False,
    json: Json = False,
) -> None:
    """Say what the cache did in recorded sessions, from usage alone: reads, cost, every collapse and its cause."""
    from loom.cli.audit import audit_view, whole_progress
    from loom.context.cache.audit import audit_transcripts
    from loom.context.cache.audit_page import audit_page
    from loom.traces.reader import read_transcripts

    with progress_bar("reading") as show:
        found = audit_transcripts(read_transcripts(paths, progress=whole_progress(paths, show)))
    if not found.sessions:
        reasons = [f"{path}: {reason}" for path, reason in found.unread.items()]
        raise UsageError(
            f"no call of a model with usage was found in {', '.join(paths)}; give transcripts, such as the folder "
            "projects of Claude Code or sessions of Codex; for requests without usage, run `loom cache simulate`"
            + (f" ({reasons[0]})" if reasons else "")
        )
    if html is not None:
        write_file(html, audit_page(found))
        echo(f"written to {html}", err=True)
    if json:
        print_json(found.to_dict())
    elif html is None:
        console().print(audit_view(found, all=all))


def _load(sources: Sequence[str]) -> list[dict[str, Any]]:
    from loom.traces.sources import read_sources

    found = read_sources(sources)
    _tell_skipped(found.skipped)
    return [record.record for record in found.records]


def _tell_skipped(skipped: Mapping[str, str]) -> None:
    for name, reason in list(skipped.items())[:_SKIPS_SHOWN]:
        echo(f"left out: {name}: {reason}", err=True)
    if len(skipped) > _SKIPS_SHOWN:
        echo(f"left out: {len(skipped) - _SKIPS_SHOWN:,} more files or records", err=True)


_SKIPS_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class _Replay:
    """One trace that was replayed, and what was billed for it, where the record says."""

    name: str
    done: Simulation
    billed: tuple[Usage, ...]


_TOTALS: Final = ("tokens", "read", "write", "uncached", "cost", "usd", "relative_cost", "read_share")


def _replay_json(replay: _Replay) -> dict[str, Any]:
    done = replay.done
    steps = [{**plain(step), "tokens": step.tokens, "usd": _usd(step.cost, done.price)} for step in done.steps]
    return {
        "name": replay.name,
        **{name: getattr(done, name) for name in _TOTALS},
        "fixed_cost": done.fixed_cost / done.tokens if done.tokens else 1.0,
        "fixed_usd": _usd(done.fixed_cost, done.price),
        "steps": steps,
        "findings": done.findings,
        "billed": replay.billed,
    }


def _total_json(replays: Sequence[_Replay]) -> dict[str, Any]:
    total = {
        name: sum(getattr(r.done, name) for r in replays) for name in ("tokens", "read", "write", "uncached", "cost")
    }
    known = [r.done.usd for r in replays if r.done.usd is not None]
    whole = total["tokens"] or 1
    shares = {"relative_cost": total["cost"] / whole, "read_share": total["read"] / whole}
    fixed = sum(r.done.fixed_cost for r in replays) / whole
    return {**total, "usd": sum(known) if known else None, **shares, "fixed_cost": fixed}


def _usd(cost: float, price: float | None) -> float | None:
    return None if price is None else cost * price / 1e6


# Views for the command line: a window as a bar, a replay as a table, findings as a list. Nothing is printed here.

_WORTH: Final = 0.0005
"""A saving that is shown as 0.0%."""
_TRACES_EXPLAINED: Final = 3
"""Traces whose findings are shown, of many; `--json` has all of them."""
_TRACES_SHOWN: Final = 40
_SHARE_CELLS: Final = 6
"""Cells of the bar that shows the read share of one request."""

_COLOURS: Final = {
    "tools": "yellow",
    "system": "blue",
    "foundation": "blue",
    "focus": "cyan",
    "topic": "magenta",
    "messages": "green",
    "convo": "green",
    "step": "red",
    "attention": "red",
}


@dataclass(frozen=True, slots=True)
class _Glyphs:
    """The characters of a bar; a terminal that cannot show blocks gets ASCII."""

    cached: str
    uncached: str
    sections: tuple[str, str]
    tick: str
    start: str
    spark: str
    gap: str


_BLOCKS: Final = _Glyphs("█", "░", ("▓", "▒"), "▲", "╷", "▁▂▃▄▅▆▇█", "⋮")
_PLAIN: Final = _Glyphs("#", ".", ("=", "-"), "^", "|", "_.:-=+*#", "...")


@dataclass(frozen=True, slots=True)
class _View:
    """A renderable that is built when the width and the abilities of the console are known."""

    make: Callable[[_Glyphs, int], RenderableType]
    width: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width if self.width is None else min(self.width, options.max_width)
        yield from console.render(self.make(_PLAIN if options.ascii_only else _BLOCKS, room), options)


def window_bar(prompt: RequestBlocks, *, read_tokens: int | None = None, width: int = 80) -> RenderableType:
    """A prompt as a bar of its sections, with its markers as ticks and a table that explains it.

    `read_tokens` is how much of it, from the start, comes from the cache; None where that is not known.
    """
    return _View(lambda glyphs, room: _window(prompt, read_tokens, glyphs, room), width)


def steps_table(simulation: Simulation, *, rows: int = 40) -> RenderableType:
    """What each request of a replay read, wrote and cost; the middle of more than `rows` requests is left out."""
    return _View(lambda glyphs, room: _steps(simulation, rows, glyphs, room))


def findings_view(findings: Sequence[Finding]) -> RenderableType:
    """The causes of missed reads in the order of doing, each with what fixing it saves after those before it."""
    if not findings:
        return Text("No cause of missed cache reads was found.")
    fixes = {fix: number for number, fix in reversed(list(enumerate([f.fix for f in findings], 1)))}
    return Group(*(_finding(number, f, same=fixes[f.fix]) for number, f in enumerate(findings, 1)))


_CLEAR: Final = 0.1
"""The share of a prompt that a request has to read less before it is pointed out without a finding."""


def _largest_drop(steps: Sequence[Step]) -> tuple[int, int] | None:
    """The number of the request that read fewer tokens than the one before it, by most, and by how many."""
    drops = [
        (old.read - new.read, number)
        for number, (old, new) in enumerate(pairwise(steps), 2)
        if old.read - new.read > _CLEAR * old.tokens
    ]
    lost, number = max(drops, default=(0, 0))
    return (number, lost) if lost else None


def replay_view(replay: _Replay) -> RenderableType:
    """One trace: what to fix first, then what each request read, wrote and cost."""
    done = replay.done
    views: list[RenderableType] = [findings_view(done.findings)]
    drop = None if done.findings else _largest_drop(done.steps)
    if drop is not None:
        nth, lost = drop
        line = f"But request {nth} read {lost:,} tokens less than the one before it: `loom cache explain` on the two,"
        views.append(Text(f"{line} as FILE:LINE:LINE, says what changed."))
    if any(finding.fix for finding in done.findings):
        saved = sum(finding.saving for finding in done.findings)
        usd = _usd(done.cost - done.fixed_cost, done.price)
        amount = "" if usd is None else f" (${usd:,.4f})"
        fixed = done.fixed_cost / done.tokens if done.tokens else 1.0
        line = f"All fixed saves {saved:.1%}{amount}: {fixed:.1%} of the uncached price, not {done.relative_cost:.1%}."
        views.append(Text(line))
    views += [Text(), steps_table(done)]
    if replay.billed:
        read, input = sum(u.cache_read for u in replay.billed), sum(u.input for u in replay.billed)
        views.append(Text(f"Billed, as recorded: {read:,} of {input:,} tokens read from the cache."))
    return Group(*views)


def replays_view(replays: Sequence[_Replay]) -> RenderableType:
    """Several traces: what to fix first in those where it saves most, then one line for each."""
    worst = sorted(replays, key=lambda r: r.done.fixed_cost - r.done.cost)
    views: list[RenderableType] = []
    for replay in worst[:_TRACES_EXPLAINED]:
        if replay.done.findings:
            views += [Text(f"{one_line(replay.name)}", style="bold underline"), findings_view(replay.done.findings)]
    if not views:
        views.append(findings_view(()))
    totals = _total_json(replays)
    table = _table()
    table.add_column(f"trace ({len(replays):,})", "all", overflow="fold")
    columns = ("requests", "tokens", "read", "cost", "usd", "fixed")
    requests = sum(len(replay.done.steps) for replay in replays)
    usd = "not known" if totals["usd"] is None else f"${totals['usd']:,.4f}"
    share, fixed = _share(totals["read"], totals["tokens"]), f"{totals['fixed_cost']:.1%}"
    sums = (f"{requests:,}", f"{totals['tokens']:,}", share, f"{totals['relative_cost']:.1%}", usd, fixed)
    for name, total in zip(columns, sums, strict=True):
        table.add_column(name, total, justify="right", overflow="fold")
    for replay in worst[:_TRACES_SHOWN]:
        done = replay.done
        usd = "not known" if done.usd is None else f"${done.usd:,.4f}"
        cells = (
            f"{len(done.steps):,}",
            f"{done.tokens:,}",
            _share(done.read, done.tokens),
            f"{done.relative_cost:.1%}",
            usd,
        )
        table.add_row(one_line(replay.name), *cells, f"{done.fixed_cost / done.tokens if done.tokens else 1.0:.1%}")
    if len(worst) > _TRACES_SHOWN:
        table.add_row(f"{len(worst) - _TRACES_SHOWN:,} more")
    note = Text("Cost and fixed are shares of the price without a cache, as it is and with all findings fixed.")
    return Group(*views, table, note)


def plan_view(found: CachePlan) -> RenderableType:
    """A plan for people: the window as a bar, the prediction, the markers, the warnings."""
    price = f", ${found.usd:.4f}" if found.usd is not None else ""
    error = f" (counts ±{found.error:.0%})" if found.error else ""
    views: list[RenderableType] = [
        window_bar(found.prompt, read_tokens=found.read),
        Text(),
        Text(f"read {found.read:,}  write {found.write:,}  uncached {found.uncached:,}{error}"),
        Text(
            f"cost {found.relative_cost:.2f} of the uncached price{price}; the next request reads {found.next_read:,}"
        ),
    ]
    if found.markers:
        table = Table.grid(padding=(0, 2, 0, 0))
        for marker in found.markers:
            table.add_row(Text("▲", style="bold"), marker.ttl, marker.path, marker.reason, f"{marker.tokens:,} tokens")
        views += [Text(), table]
    if found.warnings:
        views.append(Text())
        views += [Text(f"! {w.message}", style="yellow") for w in found.warnings]
    if found.findings:
        views += [Text(), findings_view(found.findings)]
    return Group(*views)


def explanation_view(found: Explanation) -> RenderableType:
    """An explanation for people."""
    if not found.moved:
        return Text(found.message, style="green")
    lines = [Text(found.message, style="bold")]
    if found.before or found.after:
        lines += [Text(f"- {found.before!r}", style="red"), Text(f"+ {found.after!r}", style="green")]
    price = f", ${found.extra_usd:.4f}" if found.extra_usd is not None else ""
    lines.append(Text(f"kept {found.kept_tokens:,} cached tokens ({found.byte:,} bytes), lost {found.lost_tokens:,}"))
    lines.append(Text(f"extra cost, once: {found.extra_cost:,.0f} tokens at the plain price{price}"))
    lines.append(Text(found.advice, style="cyan"))
    return Group(*lines)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive blocks of one section, on the bar."""

    section: str
    blocks: tuple[Block, ...]
    start: int
    """Tokens before it."""
    cell: int
    cells: int

    @property
    def tokens(self) -> int:
        return sum(b.tokens for b in self.blocks)

    def cell_of(self, tokens: int) -> int:
        """The cell up to which the bar is filled when this many tokens of the prompt are."""
        inside = max(0, min(self.tokens, tokens - self.start))
        return self.cell + (self.cells * inside // self.tokens if self.tokens else 0)


def _window(prompt: RequestBlocks, read: int | None, glyphs: _Glyphs, width: int) -> RenderableType:
    runs = _runs(prompt.blocks, width)
    read = None if read is None else max(0, min(read, prompt.tokens))
    head = Text(f"{prompt.model} ({prompt.provider}): ", style="bold", no_wrap=True, overflow="ellipsis")
    head.append(f"{prompt.tokens:,} tokens")
    signs: list[str] = []
    if read is not None:
        head.append(f", {_share(read, prompt.tokens)} read from the cache")
        signs.append(f"{glyphs.cached} read from the cache  {glyphs.uncached} not")
    if prompt.markers:
        signs.append(f"{glyphs.tick} cache marker")
    if prompt.automatic:
        signs.append(f"breakpoint placed by the provider: {prompt.automatic}")
    lines = [head, _labels(runs, glyphs, width), _bar(runs, read, glyphs)]
    ticks = _ticks(runs, glyphs, width)
    if ticks.plain.strip():
        lines.append(ticks)
    notes = [Text("  ".join(signs), style="dim")] if signs else []
    return Group(*lines, Text(), _legend(prompt, runs, read), *notes)


def _runs(blocks: Sequence[Block], width: int) -> list[_Run]:
    by_section = groupby(blocks, key=lambda block: block.origin.section if block.origin else block.level)
    groups = [(name, tuple(group)) for name, group in by_section]
    tokens = [sum(b.tokens for b in group) for _, group in groups]
    cells = _share_out(tokens, width)
    starts, firsts = accumulate(tokens, initial=0), accumulate(cells, initial=0)
    return [
        _Run(name, group, start, first, wide)
        for (name, group), start, first, wide in zip(groups, starts, firsts, cells, strict=False)
    ]


def _share_out(tokens: Sequence[int], width: int) -> list[int]:
    """Cells for each run: its share of the width, and at least one where there is room for all."""
    total = sum(tokens)
    if not total:
        return [0] * len(tokens)
    ends = [0, *(round(end * width / total) for end in accumulate(tokens))]
    cells = [end - start for start, end in pairwise(ends)]
    for i, size in enumerate(tokens):
        widest = max(range(len(cells)), key=cells.__getitem__)
        if size and not cells[i] and cells[widest] > 1:
            cells[i] += 1
            cells[widest] -= 1
    return cells


def _labels(runs: Sequence[_Run], glyphs: _Glyphs, width: int) -> Text:
    """The name of each section above its start, where there is room."""
    line = Text(no_wrap=True)
    for run in runs:
        if run.cells:
            label = glyphs.start + (run.section if len(run.section) < run.cells else "")
            line.append(label.ljust(run.cells)[: run.cells], style=_COLOURS.get(run.section, ""))
    line.truncate(width)
    return line


def _bar(runs: Sequence[_Run], read: int | None, glyphs: _Glyphs) -> Text:
    line = Text(no_wrap=True)
    for number, run in enumerate(runs):
        colour = _COLOURS.get(run.section, "")
        if read is None:
            line.append(glyphs.sections[number % 2] * run.cells, style=colour)
            continue
        filled = run.cell_of(read) - run.cell
        line.append(glyphs.cached * filled, style=colour)
        line.append(glyphs.uncached * (run.cells - filled), style=colour)
    return line


def _ticks(runs: Sequence[_Run], glyphs: _Glyphs, width: int) -> Text:
    """A tick under the end of each marked block, with its lifetime where there is room."""
    line = [" "] * width
    marks = _marks(runs)
    for cell, _ in marks:
        line[cell] = glyphs.tick
    for cell, ttl in marks:
        for first in (cell + 1, cell - len(ttl)):
            around = line[max(0, first - 1) : first + len(ttl) + 1]
            free = first >= 0 and line[first : first + len(ttl)] == [" "] * len(ttl)
            if free and sum(sign != " " for sign in around) == 1:
                line[first : first + len(ttl)] = ttl
                break
    return Text("".join(line).rstrip(), no_wrap=True)


def _marks(runs: Sequence[_Run]) -> list[tuple[int, str]]:
    """The cell and the lifetime of each marker; the later of two in one cell stands for both."""
    marks: dict[int, str] = {}
    for run in runs:
        end = run.start
        for block in run.blocks:
            end += block.tokens
            if block.marker:
                marks[max(0, run.cell_of(end) - 1)] = block.marker
    return sorted(marks.items())


def _legend(prompt: RequestBlocks, runs: Sequence[_Run], read: int | None) -> Table:
    legend = _table()
    legend.add_column("section", "all")
    legend.add_column("blocks", f"{len(prompt.blocks):,}", justify="right")
    legend.add_column("tokens", f"{prompt.tokens:,}", justify="right")
    legend.add_column("share", _share(prompt.tokens, prompt.tokens), justify="right")
    if read is not None:
        legend.add_column("cached", _share(read, prompt.tokens), justify="right")
    legend.add_column("markers", _lifetimes(prompt.blocks))
    for section in dict.fromkeys(run.section for run in runs):
        own = [run for run in runs if run.section == section]
        blocks = [block for run in own for block in run.blocks]
        tokens = sum(run.tokens for run in own)
        cells = [f"{len(blocks):,}", f"{tokens:,}", _share(tokens, prompt.tokens)]
        if read is not None:
            cells.append(_share(sum(max(0, min(run.tokens, read - run.start)) for run in own), tokens))
        legend.add_row(Text(section, style=_COLOURS.get(section, "")), *cells, _lifetimes(blocks))
    return legend


def _lifetimes(blocks: Iterable[Block]) -> Text:
    counts = Counter(block.marker for block in blocks if block.marker)
    return Text(", ".join(ttl if count == 1 else f"{count} x {ttl}" for ttl, count in counts.items()))


_WIDE: Final = 60
"""Cells from which on the table of a replay has all columns; with fewer, numbers would break in two."""


def _steps(simulation: Simulation, rows: int, glyphs: _Glyphs, width: int) -> RenderableType:
    steps = simulation.steps
    table = _table()
    table.add_column("#", "all", justify="right")
    is_wide = width >= _WIDE
    names = ("tokens", "read", "write", "uncached", "cost")[: None if is_wide else 3]
    for name in names:
        table.add_column(name, f"{getattr(simulation, name):,.0f}", justify="right", overflow="fold")
    price = simulation.price if is_wide else None
    if price is not None:
        table.add_column("usd", f"{_usd(simulation.cost, price):,.4f}", justify="right", overflow="fold")
    table.add_column("share", _share(simulation.read, simulation.tokens), justify="right")
    if is_wide:
        table.add_column("", no_wrap=True)
    head = len(steps) if len(steps) <= rows else max(1, rows // 2)
    tail = max(head, len(steps) - (rows - head))
    for number in (*range(head), *range(tail, len(steps))):
        if number == tail and tail > head:
            table.add_row(glyphs.gap, Text(f"{tail - head:,} more"))
        step = steps[number]
        counts = [f"{getattr(step, name):,.0f}" for name in names]
        counts += [] if price is None else [f"{_usd(step.cost, price):,.4f}"]
        filled = int(_ratio(step) * _SHARE_CELLS)
        bar = Text(glyphs.cached * filled + glyphs.uncached * (_SHARE_CELLS - filled), style="green")
        table.add_row(f"{number + 1:,}", *counts, _share(step.read, step.tokens), *([bar] if is_wide else []))
    spark = Text(f"read share {_spark([_ratio(s) for s in steps], glyphs, max(8, width - 11))}", no_wrap=True)
    usd = "" if simulation.usd is None else f" (${simulation.usd:,.4f})"
    cost = (
        f"Cost is in tokens at the plain input price: {simulation.cost:,.0f}{usd} for {simulation.tokens:,} tokens, "
        f"{simulation.relative_cost:.1%} of the price without a cache."
    )
    return Group(spark, table, Text(cost))


def _ratio(step: Step) -> float:
    return step.read / step.tokens if step.tokens else 0.0


def _spark(shares: Sequence[float], glyphs: _Glyphs, width: int) -> str:
    """One character per share; if there are more shares than fit, one per mean of several neighbours."""
    size = -(-len(shares) // width) or 1
    groups = [shares[i : i + size] for i in range(0, len(shares), size)]
    top = len(glyphs.spark) - 1
    return "".join(glyphs.spark[round(sum(group) / len(group) * top)] for group in groups)


def _finding(number: int, finding: Finding, *, same: int) -> RenderableType:
    head = Text(f"{number}. {finding.cause.replace('_', ' ')}", style="bold")
    amount = "" if finding.usd is None else f", ${finding.usd:,.4f}"
    saved = f"saves {finding.saving:.1%} of the cost{amount}"
    if not finding.fix:
        saved = "no change of the requests removes it"
    elif same < number:
        saved = f"saved by the fix of {same}"
    elif finding.saving < _WORTH:
        saved = "saves nothing alone; what follows needs it"
    head.append(f" ({saved})", style="not bold green" if finding.fix else "not bold")
    body = Table.grid(padding=(0, 2, 0, 0))
    body.add_column(no_wrap=True, style="dim")
    body.add_column(overflow="fold")
    body.add_row("where", Text(finding.where))
    body.add_row("seen in", Text(f"{finding.requests:,} request{'' if finding.requests == 1 else 's'}"))
    body.add_row("why", Text(finding.message))
    body.add_row("do", Text(finding.advice + (f" [{finding.fix}]" if finding.fix else "")))
    return Group(head, Padding(body, (0, 0, 0, 3)), Text())


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)


def _share(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.1%}"
