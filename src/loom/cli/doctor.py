"""`loom doctor`: report what is installed, and what a store guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.table import Table
from rich.text import Text

from loom.cli.output import Json, console, print_json, progress_bar

if TYPE_CHECKING:
    from loom.engine.doctor import Examined, Installed


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="A store, such as sqlite:PATH or postgres://...; without it, the installation."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Report what is installed, or whether a store answers and what it guarantees with its current settings.

    The exit code is 1 if a part of the store does not answer, or if the model that LOOM_MODEL names cannot be used.
    """
    if url is None:
        _installation(json=json)
        return
    from loom.engine.doctor import examine
    from loom.engine.places import check_is_there

    check_is_there(url)
    with progress_bar("asking"):
        found = anyio.run(examine, url)
    if json:
        print_json(found)
    else:
        _show(found)
    if any(part.failure for part in found):
        raise typer.Exit(1)


def _installation(*, json: bool) -> None:
    from loom.engine.doctor import installed

    found = installed()
    if json:
        print_json(found)
    else:
        _show_installed(found)
    if found.model_failure:
        raise typer.Exit(1)


def _show_installed(found: Installed) -> None:
    table = _table()
    for name in ("python", "loom", "embedder", "model"):
        table.add_row(name, Text(getattr(found, name)))
    if found.model_failure:
        table.add_row("", Text(f"cannot be used: {found.model_failure}", style="yellow"))
    for extra, status in found.extras.items():
        table.add_row(f"extra {extra}", Text(status))
    console().print(table)


def _show(found: tuple[Examined, ...]) -> None:
    from loom.engine.doctor import LABELS

    table = _table()
    for part in found:
        answers = Text("yes") if part.failure is None else Text(f"no: {part.failure}", style="yellow")
        prefix = "" if len(found) == 1 else f"{part.part} "
        table.add_row(f"{prefix}answers", answers)
        table.add_row(f"{prefix}kind", part.store)
        for label in sorted(part.labels, key=lambda one: LABELS.index(one) if one in LABELS else len(LABELS)):
            table.add_row(f"{prefix}{label}", Text(part.labels[label]))
    console().print(table)


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
