"""Ask the questions of a data set through Loom with the trained model as its reranker.

`python -m tools.rerank.measure MODEL.int8.onnx TOKENIZER.json --talk FOLDER [--set beam] [--every N] [--held-out]`.
Says what the first 5, 10 and 20 hits hold with and without it, and what it costs. The weights of the fusion are those
that `fuse.py` fitted. Needs Loom, onnxruntime and tokenizers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from recall_data import Corpus, Question, beam, locomo, longmemeval
from recall_methods import DEPTH, Loom

from loom import open_memory_sync
from loom.core.record import Hit, rank_key
from loom.testing import FakeClock
from tools.rerank.candidates import in_context, shown

SETS = {"locomo": locomo, "beam": beam, "longmemeval": longmemeval}
FIRST = 30
"""Candidates that the model reads."""
WEIGHTS = {"people": (0.99, 0.24, 0.20), "roles": (0.45, 0.29, 0.18)}
"""Of the ranking (in standard deviations), of the score, and of the score in standard deviations."""
ASKED, SHOWN = 64, 144


class ModelReranker:
    """Reads the question and each of the first candidates together, and adds what it finds to the ranking."""

    name = "model"

    def __init__(self, model: Path, tokenizer: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.corpus: Corpus | None = None
        self.seconds: list[float] = []

    async def rerank(self, query: str, hits: Sequence[Hit], *, limit: int) -> tuple[Hit, ...]:
        """The first candidates in a better order; the others are left to recall."""
        assert self.corpus is not None
        first = sorted(hits, key=rank_key)[: min(FIRST, limit)]
        began = time.process_time()
        scores = np.array([self._score(query, hit) for hit in first])
        self.seconds.append(time.process_time() - began)
        of_roles = {turn.speaker for turn in self.corpus.turns} <= {"user", "assistant"}
        ranked, plain, spread = WEIGHTS["roles" if of_roles else "people"]
        base = _scaled(np.array([hit.score for hit in first]))
        fused = (ranked * base + plain * scores + spread * _scaled(scores)).tolist()
        better = [Hit(hit.item, s, {**hit.why, self.name: s}) for hit, s in zip(first, fused, strict=True)]
        return tuple(sorted(better, key=rank_key))

    def _score(self, query: str, hit: Hit) -> float:
        assert self.corpus is not None
        number: Any = getattr(hit.item, "attributes", {})["n"]
        turn = self.corpus.turns[number]
        text = in_context(shown(turn, query), turn, self.corpus.turns[number - 1] if number else None)
        asked, read = (self._tokenizer.encode(t, add_special_tokens=False).ids for t in (query, text))
        ids = [101, *asked[:ASKED], 102, *read[:SHOWN], 102]
        kinds = [0] * (min(len(asked), ASKED) + 2) + [1] * (min(len(read), SHOWN) + 1)
        # One pair at a time: 8-bit weights scale their input by the whole batch, so a neighbour would show.
        given = {"input_ids": [ids], "token_type_ids": [kinds], "attention_mask": [[1] * len(ids)]}
        arrays = {name: np.array(value, np.int64) for name, value in given.items()}
        return float(self._session.run(None, arrays)[0][0])


def _scaled(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / (values.std() + 1e-6)


def found(corpus: Corpus, question: Question, places: Sequence[int]) -> list[float]:
    """The share of the evidence among the first 5, 10 and 20."""
    names = list(dict.fromkeys(corpus.turns[n].id for n in places))
    return [100 * len(question.evidence & {*names[:depth]}) / len(question.evidence) for depth in (5, 10, 20)]


def main() -> None:
    """Print one line a data set and part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--talk", type=Path, required=True)
    parser.add_argument("--set", choices=list(SETS), action="append")
    parser.add_argument("--every", type=int, default=1, help="only each so manieth question")
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    reranker, clock = ModelReranker(given.model, given.tokenizer), FakeClock()
    for name in given.set or SETS:
        rows: dict[bool, list[tuple[list[float], list[float]]]] = {False: [], True: []}
        reranker.seconds.clear()
        with ExitStack() as stack:
            ways: list[Loom] = []
            for one in (None, reranker):
                where = f"sqlite:{stack.enter_context(TemporaryDirectory())}/memory.db"
                options = {"embedder": "static", "with_facts": False, "clock": clock, "durability": "fast"}
                ways.append(Loom(stack.enter_context(open_memory_sync(where, reranker=one, **options)), clock))
            for corpus in SETS[name](given.talk):
                if given.held_out and not corpus.held_out:
                    continue
                reranker.corpus = corpus
                with ways[0].remembered(corpus) as plain, ways[1].remembered(corpus) as better:
                    for question in [q for q in corpus.questions if q.evidence][:: given.every]:
                        both = [
                            found(corpus, question, way.asked(corpus, question, numbers, limit=DEPTH))
                            for way, numbers in zip(ways, (plain, better), strict=True)
                        ]
                        rows[corpus.held_out].append((both[0], both[1]))
        for held_out, part in rows.items():
            if part:
                before, after = (" / ".join(f"{x:.1f}" for x in np.mean(side, 0)) for side in zip(*part, strict=True))
                title = "held out" if held_out else "fitted on"
                print(f"{name}, {title}, n={len(part)}: R@5 / R@10 / R@20 {before} -> {after}", flush=True)  # noqa: T201
        print(f"  {1000 * np.median(reranker.seconds):.0f} ms of CPU a question", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
