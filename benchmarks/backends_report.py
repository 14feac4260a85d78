"""Tables and a picture of what `backends.py` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

BATCH = 100
TARGET = 2.0
"""How many times as long as the plain client's query a recall may take."""

Report = Mapping[str, Sequence[Mapping[str, Any]]]
Measured = Mapping[str, Sequence[float]]

_COLUMNS = (
    *("backend", "records", "remember, turns/s", "batch of 100"),
    *("recall", "search", "raw: words", "raw: vector", "recall / raw", "search / raw"),
)


def raw_of(row: Mapping[str, Any]) -> Measured:
    """What the plain client took for both of its queries."""
    return {
        kind: [one + other for one, other in zip(row["words"][kind], row["near"][kind], strict=True)]
        for kind in ("wall", "cpu", "server")
    }


def cpu_ms(measured: Measured) -> float:
    """The mean of all CPU, the servers' too; the tick of theirs is too coarse for a median."""
    return float(np.mean(measured["cpu"]) + np.mean(measured["server"]))


def wall_ratio(row: Mapping[str, Any], what: str) -> float:
    """How many times as long as the plain client, in the median."""
    return float(np.median(row[what]["wall"]) / np.median(raw_of(row)["wall"]))


def cpu_ratio(row: Mapping[str, Any], what: str) -> float:
    """How many times the CPU of the plain client, this process and the servers together."""
    return cpu_ms(row[what]) / cpu_ms(raw_of(row))


def print_tables(report: Report) -> None:
    """Print wall and CPU times, and what the plain client of each backend does."""
    console = Console(width=170)
    for title, cells in (("wall, ms: p50 / p99", _wall), ("CPU, ms: p50 / p99 here + mean of the servers", _cpu)):
        table = Table(*_COLUMNS, title=title)
        for name, row in _rows(report):
            if "left_out" in row:
                table.add_row(name, f"{row['size']:,}", row["left_out"])
            else:
                table.add_row(name, f"{row['size']:,}", *cells(row))
        console.print(table)
    for name, rows in report.items():
        if said := next((row["raw"] for row in rows if "raw" in row), None):
            console.print(f"{name}: {said}", highlight=False)


def _rows(report: Report) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, rows in report.items():
        for row in rows:
            yield name, row


def _wall(row: Mapping[str, Any]) -> list[str]:
    batches: Sequence[float] = row["remember"]["wall"]
    per_s = BATCH * 1000 / float(np.mean(batches))
    times = [_spread(row[what]["wall"]) for what in ("remember", "recall", "search", "words", "near")]
    return [f"{per_s:,.0f}", *times, *(f"{wall_ratio(row, what):.1f}" for what in ("recall", "search"))]


def _cpu(row: Mapping[str, Any]) -> list[str]:
    per_s = BATCH * 1000 / cpu_ms(row["remember"])
    times = [
        f"{_spread(row[what]['cpu'])} + {np.mean(row[what]['server']):.1f}"
        for what in ("remember", "recall", "search", "words", "near")
    ]
    return [f"{per_s:,.0f}", *times, *(f"{cpu_ratio(row, what):.1f}" for what in ("recall", "search"))]


def _spread(values: Sequence[float]) -> str:
    return " / ".join(f"{value:,.1f}" for value in np.percentile(values, [50, 99]))


def plot(report: Report, path: Path) -> None:
    """Draw what a recall takes beside the plain client, a group of bars for each backend and size."""
    figures: Any = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    rows = [(f"{name}\n{row['size']:,}", row) for name, row in _rows(report) if "left_out" not in row]
    places = np.arange(len(rows))
    axes.bar(places - 0.27, [np.median(row["recall"]["wall"]) for _, row in rows], 0.27, label="Loom, recall")
    axes.bar(places, [np.median(row["search"]["wall"]) for _, row in rows], 0.27, label="Loom, search of the store")
    raw = [np.median(raw_of(row)["wall"]) for _, row in rows]
    axes.bar(places + 0.27, raw, 0.27, label="plain client")
    axes.plot(places + 0.27, [TARGET * one for one in raw], "k_", markersize=14, label="twice the plain client")
    axes.set(yscale="log", ylabel="wall ms, p50")
    axes.set_xticks(places, [name for name, _ in rows], fontsize=7)
    axes.grid(visible=True, axis="y", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=120)
