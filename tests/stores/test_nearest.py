"""Vectors are compared exactly while they are few; of many, sketches choose the candidates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.stores._search import Vectors, cosines
from loom.stores._sketches import PLANES, SHIPPED, made_planes


def some_vectors(seed, count, dimension=64):
    """Vectors in a hundred clusters, as texts about a hundred topics would be."""
    chance = np.random.default_rng(seed)
    topics = chance.standard_normal((100, dimension))
    made = topics[chance.integers(0, 100, count)] + chance.standard_normal((count, dimension))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def filled(matrix, *, step, exact_numbers):
    vectors = Vectors(matrix.shape[1], exact_numbers=exact_numbers)
    for first in range(0, len(matrix), step):
        block = matrix[first : first + step]
        vectors.append(list(range(first, first + len(block))), block)
    return vectors


@given(seed=st.integers(0, 2**32), count=st.integers(1, 300), step=st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_few_vectors_are_compared_exactly_however_they_came(seed, count, step):
    matrix = some_vectors(seed, count, 8)
    vectors = filled(matrix, step=step, exact_numbers=10_000)
    assert vectors.is_exact
    assert vectors.numbers.tolist() == list(range(count))
    exact = matrix.astype(np.float64) @ matrix[0].astype(np.float64)
    assert vectors.likeness()(matrix[0]) == pytest.approx(exact, abs=2e-6)


@pytest.mark.parametrize("dimension", [2, 64, 256, 1000])
def test_a_sketch_tells_the_cosine_within_its_error(dimension):
    matrix = some_vectors(1, 2_000, dimension)
    vectors = filled(matrix, step=300, exact_numbers=0)
    assert not vectors.is_exact
    error = vectors.likeness()(matrix[0]) - matrix @ matrix[0]
    assert np.abs(error).mean() < 0.05
    assert vectors.likeness()(matrix[0])[0] == pytest.approx(1, abs=0.001)


def test_the_nearest_are_among_the_likeliest():
    matrix, asked = some_vectors(2, 30_000), some_vectors(3, 40)
    likeness = filled(matrix, step=4096, exact_numbers=0).likeness()
    found = []
    for query in asked:
        likeliest = np.argsort(-likeness(query))[:1000]
        nearest = np.argsort(-cosines(matrix, query))[:10]
        found.append(len(set(nearest) & set(likeliest)) / 10)
    assert np.mean(found) >= 0.99


def test_the_nearest_hundred_are_among_the_four_hundred_likeliest():
    made = some_vectors(2, 30_020, 256)
    matrix, asked = made[:30_000], made[30_000:]
    likeness = filled(matrix, step=4096, exact_numbers=0).likeness()
    found = []
    for query in asked:
        likeliest = np.argsort(-likeness(query))[:400]
        nearest = np.argsort(-cosines(matrix, query))[:100]
        found.append(len(set(nearest) & set(likeliest)) / 100)
    assert np.mean(found) >= 0.98


def test_many_vectors_take_a_tenth_of_their_size():
    matrix = some_vectors(4, 10_000, 256)
    few, many = filled(matrix, step=1000, exact_numbers=10**9), filled(matrix, step=1000, exact_numbers=256 * 5_000)
    assert few.is_exact
    assert not many.is_exact
    assert len(many) == 10_000
    assert many.nbytes < few.nbytes / 6


def test_sketches_do_not_depend_on_when_they_were_made():
    matrix = some_vectors(5, 500)
    at_once, later = filled(matrix, step=500, exact_numbers=0), filled(matrix, step=7, exact_numbers=64 * 200)
    assert np.abs(at_once.likeness()(matrix[3]) - later.likeness()(matrix[3])).max() < 0.01


@pytest.mark.parametrize("exact_numbers", [0, 10**9])
def test_what_was_there_is_not_disturbed_by_what_is_added(exact_numbers):
    matrix = some_vectors(6, 400)
    vectors = filled(matrix[:100], step=100, exact_numbers=exact_numbers)
    likeness, numbers = vectors.likeness(), vectors.numbers
    before = likeness(matrix[0])
    vectors.append(list(range(100, 400)), matrix[100:])
    assert likeness(matrix[0]).tolist() == before.tolist()
    assert numbers.tolist() == list(range(100))
    assert len(vectors.likeness()(matrix[0])) == 400


@pytest.mark.parametrize("exact_numbers", [0, 10**9])
def test_equal_vectors_are_equally_like(exact_numbers):
    matrix = np.repeat(some_vectors(7, 50), 21, axis=0)
    likeness = filled(matrix, step=1050, exact_numbers=exact_numbers).likeness()(some_vectors(8, 1)[0])
    assert (likeness.reshape(50, 21) == likeness[::21, np.newaxis]).all()


def test_the_shipped_planes_are_those_that_are_made():
    made = made_planes(SHIPPED)
    shipped = np.load(PLANES).astype(made.dtype)
    assert np.allclose(shipped, made, atol=2e-4)
    vectors = some_vectors(9, 500, SHIPPED)
    assert np.mean((vectors @ shipped.T > 0) != (vectors @ made.T > 0)) < 2e-4, "sketches that are stored stay valid"
    assert np.allclose(made[:SHIPPED] @ made[:SHIPPED].T, np.eye(SHIPPED), atol=1e-5), "at right angles"
