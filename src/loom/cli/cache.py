"""`loom cache`: plan, explain, simulate and diagnose recorded requests; bars and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from loom.core.window import Block, RequestBlocks
from loom.errors import UsageError

app = typer.Typer(
    help="Check what the prompt cache does with requests, before and after they are sent.", no_args_is_help=True
)

Provider = Annotated[
    str | None,
    typer.Option(help="anthropic, bedrock, openai, gemini, deepseek, vllm, ...; read from the request if not given."),
]
Model = Annotated[str | None, typer.Option(help="The model; read from the request if not given.")]


@app.command()
def plan(
    request: Annotated[Path, typer.Argument(help="A request body as JSON.")],
    previous: Annotated[list[Path] | None, typer.Option(help="An earlier request; may be repeated.")] = None,
    provider: Provider = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Predict what the cache will read, write and cost, before a request is sent."""
    from loom import plan as make_plan

    found = make_plan(_load(request), provider, model, previous=[_load(path) for path in previous or []] or None)
    if json:
        print_json({**plain(found), "relative_cost": found.relative_cost})
        return

    console().print(plan_view(found))


@app.command()
def explain(
    previous: Annotated[Path, typer.Argument(help="The earlier request, as JSON.")],
    next: Annotated[Path, typer.Argument(help="The later request, as JSON.")],
    provider: Provider = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Find the first byte that changed between two requests, the cause, the cost, and what to do."""
    from loom import explain as make_explanation

    found = make_explanation(_load(previous), _load(next), provider, model)
    if json:
        print_json(found)
        return

    console().print(explanation_view(found))


@app.command()
def simulate(
    trace: Annotated[Path, typer.Argument(help="Requests as JSON lines, oldest first.")],
    provider: Provider = None,
    model: Model = None,
    json: Json = False,
) -> None:
    """Replay requests through the cache: what was read and written, what it cost, and what to fix."""
    from rich.progress import track

    from loom.catalog import find_model
    from loom.context.cache.diagnose import diagnose
    from loom.context.cache.repair import FIXES, Fix, repair
    from loom.context.cache.simulate import replay
    from loom.traces.request import read_trace_file

    errors = console(stderr=True)
    with errors.status(Text(f"reading {trace.name}")):
        prompts, usages = read_trace_file(trace, provider=provider, model=model)
    rules = find_model(prompts[0].model, provider or prompts[0].provider).cache
    done = replay(list(track(prompts, "replaying", console=errors, transient=True)), rules)
    with errors.status("looking for causes"):
        findings = diagnose(prompts, rules)
        fixed = prompts
        wanted: list[Fix] = [fix for fix in FIXES if any(f.fix == fix for f in findings)]
        for fix in wanted:
            fixed = repair(fixed, fix, rules)
        best = replay(fixed, rules) if findings else done
    billed = [usage for usage in usages if usage]
    if json:
        totals = {name: getattr(done, name) for name in ("tokens", "read", "write", "uncached", "cost")}
        shares = {"relative_cost": done.relative_cost, "read_share": done.read_share, "fixed_cost": best.relative_cost}
        print_json({**totals, **shares, "steps": done.steps, "findings": findings, "billed": billed})
        return
    views: list[RenderableType] = [steps_table(done), Text(), findings_view(findings)]
    if findings:
        line = f"With these fixed: {best.relative_cost:.1%} of the uncached price, not {done.relative_cost:.1%}."
        views.append(Text(line))
    if billed:
        read, input = sum(u.cache_read for u in billed), sum(u.input for u in billed)
        views.append(Text(f"Billed, as recorded: {read:,} of {input:,} tokens read from the cache."))
    console().print(Group(*views))


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
            f"projects of Claude Code or sessions of Codex" + (f" ({reasons[0]})" if reasons else "")
        )
    if html is not None:
        write_file(html, audit_page(found))
        echo(f"written to {html}", err=True)
    if json:
        print_json(found.to_dict())
    elif html is None:
        console().print(audit_view(found, all=all))


def _load(path: Path) -> dict[str, Any]:
    from loom.traces.request import read_record_file

    return read_record_file(path)


# Views for the command line: a window as a bar, a replay as a table, findings as a list. Nothing is printed here.

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
    """The causes of missed reads, each with what fixing it saves."""
    if not findings:
        return Text("No cause of missed cache reads was found.")
    return Group(*(_finding(number, finding) for number, finding in enumerate(findings, 1)))


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


def _steps(simulation: Simulation, rows: int, glyphs: _Glyphs, width: int) -> RenderableType:
    steps = simulation.steps
    table = _table()
    table.add_column("#", "all", justify="right")
    for name, total in (
        ("tokens", simulation.tokens),
        ("read", simulation.read),
        ("write", simulation.write),
        ("uncached", simulation.uncached),
        ("cost", simulation.cost),
    ):
        table.add_column(name, f"{total:,.0f}", justify="right", overflow="fold")
    table.add_column("share", _share(simulation.read, simulation.tokens), justify="right")
    table.add_column("", no_wrap=True)
    head = len(steps) if len(steps) <= rows else max(1, rows // 2)
    tail = max(head, len(steps) - (rows - head))
    for number in (*range(head), *range(tail, len(steps))):
        if number == tail and tail > head:
            table.add_row(glyphs.gap, Text(f"{tail - head:,} more"))
        step = steps[number]
        counts = (f"{count:,.0f}" for count in (step.tokens, step.read, step.write, step.uncached, step.cost))
        filled = int(_ratio(step) * _SHARE_CELLS)
        bar = Text(glyphs.cached * filled + glyphs.uncached * (_SHARE_CELLS - filled), style="green")
        table.add_row(f"{number:,}", *counts, _share(step.read, step.tokens), bar)
    spark = Text(f"read share {_spark([_ratio(s) for s in steps], glyphs, max(8, width - 11))}", no_wrap=True)
    cost = (
        f"Cost is in tokens at the plain input price: {simulation.cost:,.0f} for {simulation.tokens:,} tokens, "
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


def _finding(number: int, finding: Finding) -> RenderableType:
    head = Text(f"{number}. {finding.cause.replace('_', ' ')}", style="bold")
    saved = f"saves {finding.saving:.1%} of the cost" if finding.fix else "no change of the requests removes it"
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
