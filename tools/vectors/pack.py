"""Pack the table into 4 bits a number, the form in which it is shipped.

`python tools/vectors/pack.py OUT FOLDER` with the files of `train.py` in OUT; writes `rows.npy`, `scales.npy` and
`levels.npy` to FOLDER. Needs numpy alone; seconds.

A row is divided by the root of its mean square; each number becomes the nearest of 16 levels, which are fitted to all
numbers (Lloyd's method). The scale of a row is then the one with the least squared error. Two numbers share a byte: the
first in its lower half.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LEVELS, ROUNDS = 16, 60
TINY = 1e-9

Floats = NDArray[np.float64]


def fitted_levels(numbers: Floats) -> Floats:
    """The levels with the least squared error: each is the mean of the numbers that are nearest to it."""
    levels = np.quantile(numbers, (np.arange(LEVELS) + 0.5) / LEVELS)
    for _ in range(ROUNDS):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)
        count = np.bincount(nearest, minlength=LEVELS)
        levels = np.where(count, np.bincount(nearest, numbers, LEVELS) / np.maximum(count, 1), levels)
    return levels


def packed(rows: Floats) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """The codes of the rows, two to a byte, the scale of each row, and the levels that the codes stand for."""
    spread = np.sqrt(np.mean(rows * rows, axis=1, keepdims=True))
    even = rows / np.maximum(spread, TINY)
    levels = fitted_levels(even[spread[:, 0] > TINY].ravel()).astype(np.float32)
    codes = np.asarray(np.searchsorted((levels[1:] + levels[:-1]) / 2, even), np.uint8)
    values = levels[codes].astype(np.float64)
    scales = np.sum(rows * values, axis=1) / np.sum(values * values, axis=1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), scales.astype(np.float32), levels


def main() -> None:
    """Read the table, write it packed, and say what was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    rows = np.load(given.out / "rows.npy").astype(np.float64) * np.load(given.out / "scales.npy")[:, None]
    codes, scales, levels = packed(rows)
    for name, array in (("rows", codes), ("scales", scales), ("levels", levels)):
        np.save(given.folder / f"{name}.npy", array)
    shown = levels[np.stack([codes & 15, codes >> 4], axis=2).reshape(rows.shape)] * scales[:, None]
    print(f"{np.sum((shown - rows) ** 2) / np.sum(rows * rows):.2%} of the squared length is lost")  # noqa: T201


if __name__ == "__main__":
    main()
