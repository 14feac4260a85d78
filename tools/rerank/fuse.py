"""Fit how the score of the model and the ranking of recall are added up, and say what that is worth.

`python -m tools.rerank.fuse measured.json.gz SCORES_FOLDER --talk FOLDER [--name own] [--form behind] [--first 30]`.
Three weights for people with names and three for a user with an assistant, fitted on the parts that the ranking itself
was fitted on; the scores of LongMemEval's part are those of the two folds that had not seen the question.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from recall_data import Corpus, beam, locomo, longmemeval

Array = np.ndarray[Any, np.dtype[np.float64]]
STEPS, RATE, PULL = 400, 0.03, 0.002


def scaled(values: Array) -> Array:
    """In standard deviations from the mean."""
    return (values - values.mean()) / (values.std() + 1e-6)


def signals(question: dict[str, Any], scores: Sequence[float], first: int) -> Array:
    """The ranking, the score, and the score among the candidates of this question."""
    count = min(first, len(question["base"]))
    score = np.array(scores[:count])
    return np.stack([scaled(np.array(question["base"][:count])), score, scaled(score)], 1)


def fitted(parts: Sequence[Sequence[tuple[Array, Array]]]) -> Array:
    """The weights that make the evidence most likely; each data set counts the same."""
    weights, mean, square = np.array([1.0, 0.2, 0.2]), np.zeros(3), np.zeros(3)
    for step in range(1, STEPS + 1):
        slope = PULL * weights
        for part in parts:
            for given, right in part:
                share = np.exp(given @ weights - (given @ weights).max())
                slope = slope - (given[right].mean(0) - share / share.sum() @ given) / len(part) / len(parts)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        weights = weights - RATE * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-9)
    return weights


def found(corpus: Corpus, question: dict[str, Any], order: Sequence[int], depth: int) -> float:
    """The share of the evidence among the first places."""
    evidence = corpus.questions[question["number"]].evidence
    names = list(dict.fromkeys(corpus.turns[n].id for n in order))
    return 100 * len(evidence & {*names[:depth]}) / len(evidence)


def main() -> None:
    """Fit, and print one line a data set and part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--talk", type=Path, required=True)
    parser.add_argument("--name", default="model")
    parser.add_argument("--form", choices=("alone", "behind"), default="behind")
    parser.add_argument("--first", type=int, default=30)
    given = parser.parse_args()
    questions = json.loads(gzip.decompress(given.measured.read_bytes()))["questions"]
    held = {
        run: json.loads(gzip.decompress(path.read_bytes()))[given.form]
        for run in ("full", "a", "b")
        if (path := given.scores / f"scores_{given.name}_{run}.json.gz").exists()
    }
    corpora = {c.name: c for load in (locomo, beam, longmemeval) for c in load(given.talk)}
    groups: dict[tuple[str, str], list[tuple[dict[str, Any], Array]]] = {}
    for n, question in enumerate(questions):
        is_trained = question["set"] == "longmemeval" and question["part"] != "held out"
        run = "ba"[len(question["question"]) % 2] if is_trained else "full"
        rows = groups.setdefault((question["set"], question["part"]), [])
        rows.append((question, signals(question, held[run][n], given.first)))
    weights: dict[str, Array] = {}
    for kind, sets in (("people", ["locomo"]), ("roles", ["beam", "longmemeval"])):
        parts = [
            [
                (rows, right)
                for question, rows in groups[name, "measure"]
                if (right := np.array(question["right"][: len(rows)]) > 0).any() and not right.all()
            ]
            for name in sets
        ]
        weights |= dict.fromkeys(sets, fitted(parts))
        print(f"{kind}: ranking, score, score in its list: {weights[sets[0]].round(2).tolist()}")  # noqa: T201
    for (name, part), rows in groups.items():
        before, after = list[str](), list[str]()
        for depth in (5, 10, 20):
            plain = [found(corpora[q["corpus"]], q, q["turns"], depth) for q, _ in rows]
            better = list[float]()
            for question, columns in rows:
                best = np.argsort(-(columns @ weights[name]), kind="stable").tolist()
                order = [question["turns"][place] for place in best] + question["turns"][len(best) :]
                better.append(found(corpora[question["corpus"]], question, order, depth))
            before.append(f"{np.mean(plain):.1f}")
            after.append(f"{np.mean(better):.1f}")
        title = "held out" if part == "held out" else "fitted on"
        print(f"{name}, {title}, n={len(rows)}: {' / '.join(before)} -> {' / '.join(after)}")  # noqa: T201


if __name__ == "__main__":
    main()
