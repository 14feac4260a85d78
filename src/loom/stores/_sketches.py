"""Sketches of vectors: 96 bytes that tell a cosine well enough to choose candidates.

A sketch says on which side of 768 fixed planes a vector lies. Two vectors at an angle of `a` lie on different
sides of a share `a / pi` of all planes, so the bits that differ tell the cosine, give or take a few hundredths:
enough to choose candidates, whose vectors are then compared exactly. The planes do not depend on what is stored, so
that a sketch is made once, with its vector, and stored beside it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Float32s: TypeAlias = NDArray[np.float32]
SketchWords: TypeAlias = NDArray[np.uint64]
"""Sketches side by side: a column of words for each."""

_BITS = 768
SKETCH_WORDS = _BITS // 64
SHIPPED = 256
PLANES = Path(__file__).with_name("data") / "planes.npy"
"""The planes for vectors of this dimension, which take some 30 ms to make."""
_BLOCK = 4096
_LIKELIEST = 1_000
"""How many vectors are estimated twice: without that, 1,000 would have to be read to have the nearest hundred."""
_MOST = 8
_SIDES: Float32s = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1).astype(np.float32) * 2 - 1
"""For each value of a byte, the sides that its bits stand for: 1 and -1."""
_COSINES = np.cos(np.pi * np.arange(_BITS + 1) / _BITS).astype(np.float32)


def estimated_cosines(sketches: SketchWords, query: Float32s) -> Float32s:
    """The cosine of each vector to the query: roughly by the bits that differ, and better for the likeliest."""
    differing = np.zeros(sketches.shape[1], np.uint16)
    products = np.vecdot(_planes(len(query)), query)
    asked = _packed(products[np.newaxis])
    for words, word in zip(sketches, asked[:, 0], strict=True):
        differing += np.bitwise_count(words ^ word)
    estimates = _COSINES[differing]
    if len(estimates) > _LIKELIEST:
        last = np.partition(estimates, -_LIKELIEST)[-_LIKELIEST]
        likeliest = np.flatnonzero(estimates >= last)  # equal vectors stay equal
        if len(likeliest) <= _MOST * _LIKELIEST:
            estimates[likeliest] = _weighed(sketches[:, likeliest], products)
    return estimates


def _weighed(sketches: SketchWords, products: Float32s) -> Float32s:
    """Better estimates: a plane counts by how far the query is from it. They take a hundred times as long."""
    sides = np.ascontiguousarray(sketches.T).view(np.uint8)
    # What each byte of a sketch adds, for each value it may have.
    added: Float32s = np.vecdot(products.reshape(-1, 1, 8), _SIDES) / np.abs(products).sum()
    return added[np.arange(_BITS // 8), sides].sum(axis=1, dtype=np.float32)


def sketched(matrix: Float32s) -> SketchWords:
    """The sketch of each row, as a column of words."""
    planes = _planes(matrix.shape[1])
    # Not a product of matrices: that would start threads, which spin while the machine is busy.
    blocks = (matrix[first : first + _BLOCK] for first in range(0, len(matrix), _BLOCK))
    parts = [_packed(np.vecdot(block[:, np.newaxis], planes)) for block in blocks]
    return np.concatenate([np.zeros((SKETCH_WORDS, 0), np.uint64), *parts], axis=1)


def _packed(products: Float32s) -> SketchWords:
    return np.packbits(products > 0, axis=1).view(np.uint64).T


@lru_cache(maxsize=4)
def _planes(dimension: int) -> Float32s:
    """The normals of the planes: those of the embedder that works offline are shipped, as made_planes() makes them.

    They are shipped in 16 bits: one bit of a sketch in ten thousand is then another, where a vector lies on a plane.
    """
    return np.load(PLANES).astype(np.float32) if dimension == SHIPPED else made_planes(dimension)


def made_planes(dimension: int) -> Float32s:
    """The normals of the planes, always the same: as many as can be at right angles, then others, turned at random.

    At right angles they tell more than if each were drawn by itself. Sketches are stored, so that other planes would be
    another format of files.
    """
    chance = np.random.RandomState(0)
    shape = (min(dimension, _BITS), dimension)
    turned = [_orthogonal(chance.standard_normal(shape)) for _ in range(-(-_BITS // dimension))]
    return np.concatenate(turned)[:_BITS].astype(np.float32)


def _orthogonal(matrix: Floats) -> Floats:
    """The rows, each turned to a right angle with all before it; without threads, and the same on every machine."""
    for place, row in enumerate(matrix):
        unit = row / np.sqrt(np.vecdot(row, row))
        turned = unit - np.einsum("k,kj->j", np.vecdot(matrix[:place], unit), matrix[:place])
        matrix[place] = turned / np.sqrt(np.vecdot(turned, turned))
    return matrix
