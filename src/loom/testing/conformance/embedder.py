"""The laws of an embedder."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import ClassVar

import anyio
import pytest

from loom.errors import UsageError
from loom.protocols.embedder import Embedder, Purpose, Vector
from loom.testing.conformance.suite import Suite

TEXTS = ("green tea in winter", "a piano", "caf\u00e9 \U0001f375 \u4e1c\u4eac", "green tea in winter", "x")
_ELSEWHERE = """
import asyncio, importlib, json, sys
module, name = sys.argv[1].split(":")
embedder = getattr(importlib.import_module(module), name)()
vectors = asyncio.run(embedder.embed(json.loads(sys.argv[2]), purpose="document"))
print(json.dumps([[float(x) for x in vector] for vector in vectors]))
"""

both_purposes = pytest.mark.parametrize("purpose", ["query", "document"])


class EmbedderSuite(Suite):
    """Subclass it, override the fixture `embedder`, and name the `factory` to compare processes.

    Vectors are compared to `tolerance`: a batch may be summed in another order than its texts.
    """

    factory: ClassVar[str | None] = None
    """How another process makes the same embedder, as `package.module:callable`."""
    tolerance: ClassVar[float] = 1e-5

    @pytest.fixture
    async def embedder(self) -> Embedder:
        """The embedder to test."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture `embedder`")

    @both_purposes
    async def test_each_text_has_a_vector_of_the_dimension(self, embedder: Embedder, purpose: Purpose) -> None:
        """Finite numbers, as many as declared, and not all zero."""
        vectors = await embedder.embed(TEXTS, purpose=purpose)
        assert len(vectors) == len(TEXTS)
        for vector in vectors:
            assert len(vector) == embedder.dimension
            assert all(math.isfinite(number) for number in vector)
            assert any(number != 0 for number in vector)

    @both_purposes
    async def test_the_same_text_has_the_same_vector(self, embedder: Embedder, purpose: Purpose) -> None:
        """Deterministic, from call to call and inside one; different texts differ."""
        one = await embedder.embed(TEXTS, purpose=purpose)
        self._same(one[0], one[3])
        for again, vector in zip(await embedder.embed(TEXTS, purpose=purpose), one, strict=True):
            self._same(again, vector)
        assert list(one[0]) != list(one[1])

    @both_purposes
    async def test_a_batch_gives_what_its_texts_give(self, embedder: Embedder, purpose: Purpose) -> None:
        """In the order of the texts."""
        batch = await embedder.embed(TEXTS, purpose=purpose)
        for text, vector in zip(TEXTS, batch, strict=True):
            (single,) = await embedder.embed([text], purpose=purpose)
            self._same(single, vector)

    async def test_another_process_gives_the_same(self, embedder: Embedder) -> None:
        """Nothing depends on the process, such as the seed of hash()."""
        if self.factory is None:
            pytest.skip(f"{type(self).__name__} names no factory")
        command = [sys.executable, "-c", _ELSEWHERE, self.factory, json.dumps(TEXTS)]
        done = await anyio.run_process(command, env={**os.environ, "PYTHONHASHSEED": "12345"})
        here = await embedder.embed(TEXTS, purpose="document")
        for vector, there in zip(here, json.loads(done.stdout), strict=True):
            self._same(vector, there)

    @both_purposes
    async def test_no_texts_no_vectors(self, embedder: Embedder, purpose: Purpose) -> None:
        """An empty batch is allowed."""
        assert len(await embedder.embed([], purpose=purpose)) == 0

    @pytest.mark.parametrize("empty", ["", " \n"])
    async def test_an_empty_text_is_refused(self, embedder: Embedder, empty: str) -> None:
        """Also inside a batch."""
        with pytest.raises(UsageError):
            await embedder.embed(["tea", empty], purpose="document")

    async def test_a_long_text_is_cut(self, embedder: Embedder) -> None:
        """Not refused."""
        (vector,) = await embedder.embed(["tea " * 50_000], purpose="document")
        assert len(vector) == embedder.dimension

    async def test_the_identity_names_the_dimension(self, embedder: Embedder) -> None:
        """Stored beside the vectors, it tells one vector space from another."""
        assert str(embedder.dimension) in embedder.identity
        assert embedder.identity == embedder.identity.strip()

    def _same(self, one: Vector, other: Vector) -> None:
        assert list(one) == pytest.approx(list(other), abs=self.tolerance)
