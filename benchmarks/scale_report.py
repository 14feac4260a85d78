"""Tables and a picture of what `scale.py` measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

TARGETS = {100_000: 20.0, 1_000_000: 100.0}
"""Milliseconds of CPU that 95 of 100 recalls of one user may take."""
FROM_FLOOR = 3
BATCHED = 2_000

Report = Mapping[str, Sequence[Mapping[str, Any]]]
_Cell = Callable[[Mapping[str, Any]], str]


def print_tables(report: Report) -> None:
    """Print a table for each layout, with a column for each size."""
    for name in ("one user", "users of 100"):
        rows = report[name]
        sizes = " | ".join(format(row["size"], ",") for row in rows)
        print(f"| {name} | {sizes} | target |\n|---|{'--:|' * (len(rows) + 1)}")
        for label, cell, target in _lines():
            print(f"| {label} | {' | '.join(cell(row) for row in rows)} | {target} |")
        if name == "one user":
            _print_others(report)
        print()


def _lines() -> list[tuple[str, _Cell, str]]:
    limits = ", ".join(f"p95 {limit:.0f} at {size:,}" for size, limit in TARGETS.items())
    return [
        ("remember, batches of 100, turns/s", lambda row: f"{row['batched']:,.0f}", f"{BATCHED:,}"),
        ("remember, one by one, turns/s", lambda row: f"{row['singly']:,.0f}", ""),
        ("recall, CPU ms, p50 / p95 / p99", lambda row: _spread(row["recall"]["cpu_ms"]), limits),
        ("recall, wall ms, p50 / p95 / p99", lambda row: _spread(row["recall"]["wall_ms"]), ""),
        ("recall of a user with 100 records, CPU ms", lambda row: _spread(row["small"]["cpu_ms"]), "flat"),
        ("first recall after opening, wall s", lambda row: f"{row['first_s']:.1f}", ""),
        ("RSS, MB, now / peak", lambda row: f"{row['rss_mb']['now']:,.0f} / {row['rss_mb']['peak']:,.0f}", ""),
        ("file, MB", lambda row: f"{row['file_mb']:,.0f}", ""),
    ]


def _print_others(report: Report) -> None:
    sizes = [row["size"] for row in report["one user"]]
    floors = {row["size"]: row for row in report["floors"]}
    flows = {row["size"]: row for row in report["loomflow"]}

    def line(label: str, cell: Callable[[int], str], target: str = "") -> None:
        print(f"| {label} | {' | '.join(cell(size) for size in sizes)} | {target} |")

    line("floor: numpy, all vectors, CPU ms", lambda size: _spread(floors[size]["numpy"]))
    line("floor: FTS5, words, CPU ms", lambda size: _spread(floors[size]["fts5"]))
    line("usearch exact, CPU ms", lambda s: _spread(floors[s]["usearch"]) if floors[s]["usearch"] else "not installed")
    loom = {row["size"]: row["recall"]["cpu_ms"] for row in report["one user"]}
    line(
        "Loom / (numpy + FTS5), p50",
        lambda s: f"{np.median(loom[s]) / np.median(floor(floors[s])):.1f}",
        f"{FROM_FLOOR}",
    )
    line("loomflow 0.20: remember, turns/s", lambda s: f"{flows[s]['turns_per_s']:,.0f}" if s in flows else "not run")
    line("loomflow 0.20: recall, CPU ms", lambda s: _spread(flows[s]["cpu_ms"]) if s in flows else "not run")


def floor(row: Mapping[str, Any]) -> list[float]:
    """What each question costs numpy and FTS5 together."""
    return [one + other for one, other in zip(row["numpy"], row["fts5"], strict=True)]


def _spread(values: Sequence[float]) -> str:
    return " / ".join(f"{value:,.1f}" for value in np.percentile(values, [50, 95, 99]))


def plot(report: Report, path: Path) -> None:
    """Draw the 95th percentile of recall over the number of records."""
    figures: Any = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    lines = {
        "Loom, one user": [(row["size"], row["recall"]["cpu_ms"]) for row in report["one user"]],
        "Loom, users of 100 records": [(row["size"], row["recall"]["cpu_ms"]) for row in report["users of 100"]],
        "numpy + FTS5": [(row["size"], floor(row)) for row in report["floors"]],
        "loomflow 0.20": [(row["size"], row["cpu_ms"]) for row in report["loomflow"]],
    }
    for (name, points), style in zip(lines.items(), ("o-", "s-", "^--", "x--"), strict=True):
        if points:
            axes.plot([size for size, _ in points], [np.percentile(ms, 95) for _, ms in points], style, label=name)
    axes.plot(list(TARGETS), list(TARGETS.values()), "k_", markersize=18, label="target")
    axes.set(xscale="log", yscale="log", xlabel="records in the file", ylabel="CPU ms of a recall, p95")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=120)
