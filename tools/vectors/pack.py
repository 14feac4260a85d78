"""Pack the table into one byte for three numbers, the form in which it is shipped.

`python tools/vectors/pack.py OUT FOLDER` with the files of `train.py` in OUT; writes `rows.npy`, `scales.npy`,
`codes.npy` and `spreads.npy` to FOLDER. Needs numpy alone; seconds.

Each number is divided by its spread over all rows, and each row by the root of its mean square; three numbers become
the nearest of 256 codes. The scale of a row is then the one with the least squared error.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHARED, BLOCK = 3, 1000
SPECIAL = [0, 100, 101, 102, 103]
TINY = 1e-9

Floats = NDArray[np.float32]


def packed(table: Floats, codes: Floats, spreads: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """The code of each three numbers, and the scale of each row."""
    even = table / np.maximum(spreads, TINY)
    alike = even / np.maximum(np.sqrt(np.mean(even * even, axis=1, keepdims=True)), TINY)
    triples = np.pad(alike, ((0, 0), (0, -table.shape[1] % SHARED))).reshape(len(table), -1, SHARED)
    half = np.sum(codes * codes, axis=1) / 2
    places = range(0, len(table), BLOCK)
    nearest = np.concatenate([np.argmax(triples[n : n + BLOCK] @ codes.T - half, axis=2) for n in places])
    values = codes[nearest].reshape(len(table), -1)[:, : table.shape[1]]
    scales = np.sum(even * values, axis=1) / np.maximum(np.sum(values * values, axis=1), TINY)
    return nearest.astype(np.uint8), scales.astype(np.float32)


def main() -> None:
    """Read the table, write it packed, and say what was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    table, codes, spreads = (
        np.load(given.out / f"{name}.npy").astype(np.float32) for name in ("table", "codes", "spreads")
    )
    table[SPECIAL] = 0
    rows, scales = packed(table, codes, spreads)
    for name, array in (("rows", rows), ("scales", scales), ("codes", codes), ("spreads", spreads)):
        np.save(given.folder / f"{name}.npy", array)
    shown = codes[rows].reshape(len(rows), -1)[:, : table.shape[1]] * scales[:, None] * spreads
    print(f"{np.sum((shown - table) ** 2) / np.sum(table * table):.2%} of the squared length is lost")  # noqa: T201
    print(f"a row is {np.median(np.linalg.norm(shown, axis=1)):.2f} long (median)")  # noqa: T201


if __name__ == "__main__":
    main()
