"""`loom cache`: plan, explain and simulate the recorded requests of any program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from loom.cli.output import Json, console, plain, print_json

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
    from loom.cli.views import plan_view

    console().print(plan_view(found))


@app.command()
def explain(
    previous: Annotated[Path, typer.Argument(help="The earlier request, as JSON.")],
    next: Annotated[Path, typer.Argument(help="The request that missed, as JSON.")],
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
    from loom.cli.views import explanation_view

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
    from loom.cli.views import findings_view, steps_table
    from loom.context.cache.diagnose import diagnose
    from loom.context.cache.recorded.trace import read_trace_file
    from loom.context.cache.repair import FIXES, Fix, repair
    from loom.context.cache.simulate import simulate as replay

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


def _load(path: Path) -> dict[str, Any]:
    from loom.context.cache.recorded.trace import read_record_file

    return read_record_file(path)
