"""Fits the weights of the ranking, one set for each kind of talk, and says what they are worth on held-out data.

    python benchmarks/fit_rank.py [folder] [--talk people|several|lookup|message]

Candidates and signals are those that recall() ranks. The loss is listwise: the softmax over the places of a question
(turns, rounds or sessions; a place scores as its best turn) against its evidence. Fitted on some conversations of each
data set, reported on the others, then the other way round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from recall_data import Corpus, Question, beam, locomo, longmemeval, realmem
from recall_methods import DEPTH, loom
from rich.console import Console
from rich.progress import Progress

from loom.memory._recall import rank as ranking
from loom.memory._recall import recall
from loom.memory._recall.rank import WEIGHTS, Candidates, QuestionHints, Ranking, Talk, asks_several, looks_up

SETS: Mapping[Talk, Sequence[Callable[[Path], Iterator[Corpus]]]] = {
    "people": [locomo],
    "several": [locomo],
    "lookup": [beam, longmemeval],
    "message": [realmem],
}
NOT_FITTED = ("phrase", "head", "alike")
"""Signals of statements, which these sets do not have."""
STEPS, RATE, PULL = 300, 0.05, 0.003

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Example:
    """One question: its signals (a row per candidate), the place of each candidate, and which places are evidence."""

    corpus: str
    held_out: bool
    signals: Array
    places: Array
    evidence: Array
    missed: int

    def recall(self, weights: Array, depth: int) -> float:
        """The share of the evidence among the first places."""
        score = np.full(len(self.evidence), -np.inf)
        np.maximum.at(score, self.places.astype(int), self.signals @ weights)
        first = np.argsort(-score, kind="stable")[:depth]
        return 100 * self.evidence[first].sum() / (self.evidence.sum() + self.missed)


@contextmanager
def ranked_candidates() -> Generator[list[tuple[Candidates, QuestionHints]]]:
    """What rank() was given, while the block lasts."""
    given: list[tuple[Candidates, QuestionHints]] = []
    shipped = recall.rank

    def rank(
        candidates: Candidates,
        hints: QuestionHints | None = None,
        weights: Mapping[Talk, Mapping[str, float]] = WEIGHTS,
    ) -> Ranking:
        given.append((candidates, hints or QuestionHints()))
        return shipped(candidates, hints, weights)

    recall.rank = rank
    try:
        yield given
    finally:
        recall.rank = shipped


def examples(corpora: Sequence[Corpus], names: Sequence[str], talk: Talk, progress: Progress) -> Iterator[Example]:
    task = progress.add_task(corpora[0].name, total=sum(len(c.questions) for c in corpora))
    with ExitStack() as stack:
        way = loom(stack)
        for corpus in corpora:
            with way.remembered(corpus) as numbers, ranked_candidates() as given:
                for question in corpus.questions:
                    progress.advance(task)
                    if not question.evidence or not is_of(question.text, talk):
                        continue
                    given.clear()
                    way.asked(corpus, question, numbers, limit=DEPTH)
                    found = _example(corpus, question, numbers, names, given[0]) if given else None
                    if found is not None:
                        yield found
    progress.remove_task(task)


def is_of(question: str, talk: Talk) -> bool:
    """Whether a question, asked of the sets of a kind of talk, is ranked with the weights of that kind."""
    if talk in ("people", "several"):
        return asks_several(question) == (talk == "several")
    return looks_up(question) == (talk == "lookup")


def _example(
    corpus: Corpus,
    question: Question,
    numbers: Mapping[str, int],
    names: Sequence[str],
    given: tuple[Candidates, QuestionHints],
) -> Example | None:
    candidates, hints = given
    turns = [corpus.turns[numbers[id]] for id in candidates.ids]
    titles = [turn.session if corpus.level == "session" else turn.id for turn in turns]
    place = {title: n for n, title in enumerate(dict.fromkeys(titles))}
    evidence = np.array([title in question.evidence for title in place], float)
    if not 0 < evidence.sum() < len(evidence):
        return None
    columns = {name: ranking._calibrated(column) for name, column in ranking._signals(candidates).items()}
    columns |= ranking._priors(candidates, hints)
    signals = np.stack([columns.get(name, np.zeros(len(candidates.ids))) for name in names], 1)
    missed = len(question.evidence) - int(evidence.sum())
    return Example(corpus.name, corpus.held_out, signals, np.array([place[t] for t in titles]), evidence, missed)


def fitted(parts: Sequence[Sequence[Example]], size: int) -> Array:
    """The weights that make the evidence of all parts most likely; each part counts the same."""
    weights, first, second = np.zeros(size), np.zeros(size), np.zeros(size)
    for step in range(1, STEPS + 1):
        slope = PULL * weights
        for part in parts:
            slope = slope + sum((_slope(one, weights) for one in part), np.zeros(size)) / len(part)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights = weights - RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-9)
    return weights


def _slope(one: Example, weights: Array) -> Array:
    score = one.signals @ weights
    order = np.lexsort((-score, one.places))
    _, starts = np.unique(one.places[order], return_index=True)
    best = order[starts]  # the best candidate of each place
    share = np.exp(score[best] - score[best].max())
    return one.signals[best].T @ (share / share.sum() - one.evidence / one.evidence.sum())


def report(talk: Talk, sets: Mapping[str, Sequence[Example]], names: Sequence[str]) -> None:
    halves = [[[e for e in part if e.held_out == held] for part in sets.values()] for held in (False, True)]
    fits = [fitted([part for part in half if part], len(names)) for half in halves]
    shipped = np.array([WEIGHTS[talk].get(name, 0.0) for name in names])
    plain = np.array([float(name in ("bm25", "dense")) for name in names])
    print(f"\n## {talk}\n\n| weights | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    rows = (("as shipped", shipped), ("fitted", fits[0]), ("fitted on the held-out part", fits[1]))
    for name, weights in rows:
        print(f"| {name} | {' | '.join(f'{weight:.2f}' for weight in weights)} |")
    print("\n| held out | n | bm25 + dense | as shipped | fitted |\n|---|--:|--:|--:|--:|")
    for (name, part), held in zip(sets.items(), halves[1], strict=True):
        for label, some, own in ((name, held, fits[0]), (f"{name}, swapped", part, fits[1])):
            rest = [e for e in some if e.held_out == (own is fits[0])]
            if rest:
                cells = (_figures(rest, weights) for weights in (plain, shipped, own))
                print(f"| {label} | {len(rest)} | {' | '.join(cells)} |")


def _figures(part: Sequence[Example], weights: Array) -> str:
    return " / ".join(f"{np.mean([one.recall(weights, depth) for one in part]):.1f}" for depth in (5, 10, 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--talk", choices=list(SETS), help="fit one kind of talk only")
    options = parser.parse_args()
    for talk, loads in SETS.items():
        if options.talk not in (None, talk):
            continue
        names = [name for name in WEIGHTS[talk] if name not in NOT_FITTED]
        names += [name for name in ("bm25", "dense") if name not in names]
        try:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                sets = {
                    load.__name__: list(examples(list(load(options.folder)), names, talk, progress)) for load in loads
                }
        except FileNotFoundError as error:
            print(f"{talk} is left out: {error.filename} is not there", file=sys.stderr)
            continue
        report(talk, sets, names)


if __name__ == "__main__":
    main()
