"""Draws what benchmarks/checkpoint.py measured; needs matplotlib.

Run: python -m benchmarks.checkpoint_plot JSON PNG.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportMissingTypeStubs=false, reportMissingModuleSource=false

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def draw(results: list[dict[str, Any]], path: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (disk, save) = plt.subplots(1, 2, figsize=(12, 4.8))
    longest: dict[str, dict[str, Any]] = {}
    for found in sorted(results, key=lambda one: one["turns"]):
        longest[found["name"]] = found
    for name, found in longest.items():
        steps = len(found["sizes"])
        x = [found["turns"] * (n + 1) / steps for n in range(steps)]
        line = disk.plot(x, [size / 1e6 for size in found["sizes"]], label=name, marker=".")[0]
        save.plot(
            [0.05 * found["turns"], 0.95 * found["turns"]], [found["cpu_first"], found["cpu_last"]],
            label=name, marker="o", color=line.get_color(),
        )  # fmt: skip
    most = max(found["turns"] for found in results)
    x = [most * n / 100 for n in range(1, 101)]
    disk.plot(x, [2 * 1024 * turns / 1e6 for turns in x], "k--", linewidth=1, label="payload")
    disk.set(title="On disk while saving every turn", xlabel="turns of 2 x 1 KB", ylabel="MB", yscale="log")
    save.set(title="CPU of one save, first and last tenth", xlabel="turns", ylabel="ms (median)", yscale="log")
    for axes in (disk, save):
        axes.grid(alpha=0.3)
    disk.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
