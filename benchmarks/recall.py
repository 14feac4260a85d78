"""How well recall finds the evidence: BM25, embedders, a plain hybrid and Loom side by side, no LLM anywhere.

    python benchmarks/recall.py [folder] [--set NAME] [--method NAME,NAME] [--json]

The folder holds the data sets (see `recall_data.py`); each that is missing is left out. The methods are in
`recall_methods.py`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from recall_data import (
    Corpus,
    Question,
    beam,
    forty,
    letta,
    letta_newest,
    locomo,
    longmemeval,
    longmemeval_48,
    realmem,
)
from recall_methods import DEPTH, Loom, Method, lines, methods
from rich.console import Console
from rich.progress import Progress

from loom.text.tokens import estimate_tokens

SETS = {
    "locomo": locomo,
    "beam": beam,
    "longmemeval": longmemeval,
    "longmemeval 48": longmemeval_48,
    "realmem": realmem,
    "letta": letta,
    "letta newest": letta_newest,
    "forty": forty,
}
BEFORE = {
    "locomo": ("76.7 / 83.5 / 87.7", "74.5 / 82.8 / 87.6"),
    "beam": ("22.7 / 31.6 / 47.4", "21.9 / 28.6 / 40.7"),
    "longmemeval": ("53.5 / 68.8 / 80.8", "52.9 / 70.9 / 79.6"),
    "longmemeval 48": ("", "68.1 / 83.2 / 90.4"),
    "realmem": ("62.3 / 77.7 / 86.4", "58.1 / 74.1 / 84.0"),
}
"""R@5 / R@10 / R@20 with one set of weights for all talk and with wordllama, on the part fitted on and on the other:
measured by this script before each kind of talk had weights of its own."""
BUDGETS = (100, 150, 200, 250, 300, 400, 500, 700, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000)
"""Tokens for which the evidence within a budget is looked at."""
FOREIGN = 40
"""Questions about another memory that are asked of each one."""

TOP = 10
"""Hits among which either of two statements has to be, for their order to count."""
FIGURES = ("first", "R@1", "R@5", "R@10", "R@20", "all@10", "nDCG@10", "R@500tok", "newest", "tokens@10")
"""`first`: the first hit is evidence; `newest`: what is true now stands above what is no longer true."""


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
    fresh, stale = (min((places.index(name) for name in names if name in places), default=DEPTH)
                    for names in (question.evidence - question.stale, question.stale))  # fmt: skip
    newest = float(fresh < stale) if question.stale and min(fresh, stale) < TOP else float("nan")
    all_in = sum(right[:10]) == want
    return [*(100 * s for s in (any(right[:1]), *shares, all_in, gain, within, newest)), float(used[:10][-1])]


def measure(name: str, method: Method, corpora: Sequence[Corpus], progress: Progress) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    task = progress.add_task(name, total=sum(len(c.questions) for c in corpora))
    for corpus in corpora:
        sizes = [estimate_tokens(line) for line in lines(corpus)]
        for question, found in zip(corpus.questions, method(corpus), strict=True):
            progress.advance(task)
            if not question.evidence:
                continue
            figures = judge(corpus, question, found, sizes)
            rows.append({"held_out": corpus.held_out, "category": question.category, "figures": figures})
    progress.remove_task(task)
    return rows


def tokens_needed(way: Loom, corpora: Sequence[Corpus], share: float = 0.8) -> None:
    """The smallest budget that shows a share of the evidence: recall fills one as pack() does, best hits first."""
    within: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    held_out: list[bool] = []
    for corpus in corpora:
        with way.remembered(corpus) as numbers:
            for question in corpus.questions:
                if not question.evidence:
                    continue
                hits = way.recalled(corpus, question, limit=DEPTH).hits
                turns = [corpus.turns[numbers[hit.item.id]] for hit in hits]
                places = [turn.session if corpus.level == "session" else turn.id for turn in turns]
                sizes = [estimate_tokens(hit.text) for hit in hits]
                held_out.append(corpus.held_out)
                for budget, shares in within.items():
                    shown = set(_that_fit(places, sizes, budget))
                    shares.append(len(question.evidence & shown) / len(question.evidence))
    for part, chosen in (("", np.ones(len(held_out), bool)), (" held out", np.array(held_out))):
        means = {budget: np.array(shares)[chosen].mean() for budget, shares in within.items()} if chosen.any() else {}
        enough = next((budget for budget, mean in means.items() if mean >= share), f"more than {BUDGETS[-1]}")
        shown = ", ".join(f"{budget}: {100 * mean:.1f}%" for budget, mean in means.items())
        print(f"Tokens for {share:.0%} of the evidence{part}: {enough} ({shown})\n")


def _that_fit(places: Sequence[str], sizes: Sequence[float], budget: int) -> Iterator[str]:
    """What `recall(budget=)` gives of these: a hit that is too long for what is left is passed over."""
    left = float(budget)
    for place, size in zip(places, sizes, strict=True):
        if size <= left:
            left -= size
            yield place


def abstention(way: Loom, corpora: Sequence[Corpus]) -> None:
    """How well confidence tells questions about a memory from questions about another one."""
    own: list[float] = []
    foreign: list[float] = []
    for corpus, other in pairwise([*corpora, corpora[0]]):
        asked = [q for q in corpus.questions if q.evidence and q.category != "adversarial"][:FOREIGN]
        strange = [q for q in other.questions if q.evidence][:FOREIGN]
        with way.remembered(corpus):
            own += [way.recalled(corpus, q, limit=DEPTH).confidence for q in asked]
            foreign += [
                way.recalled(corpus, replace(q, until=len(corpus.turns)), limit=DEPTH).confidence for q in strange
            ]
    ranks = np.argsort(np.argsort([*own, *foreign])) + 1
    area = (ranks[: len(own)].sum() - len(own) * (len(own) + 1) / 2) / (len(own) * len(foreign))
    print(f"Abstention, n={len(own)} own and {len(foreign)} foreign questions: AUC {area:.3f}\n")
    print("| min_confidence | own questions kept | foreign questions answered |\n|--:|--:|--:|")
    for least in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
        kept, answered = (100 * np.mean(np.array(part) >= least) for part in (own, foreign))
        print(f"| {least} | {kept:.1f} | {answered:.1f} |")
    print()


def groups(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """All, then chosen on and held out where there are both, then each category where there are several."""
    yield "all", list(rows)
    if len({row["held_out"] for row in rows}) > 1:
        yield "settings chosen on these", [row for row in rows if not row["held_out"]]
        yield "held out", [row for row in rows if row["held_out"]]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    for category in categories if len(categories) > 1 else ():
        yield category, [row for row in rows if row["category"] == category]


def print_set(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    print(f"## {name}\n")
    for group, first in groups(next(iter(results.values()))):
        print(f"{group}, n={len(first)}\n\n| method | {' | '.join(FIGURES)} |\n|---|{'--:|' * len(FIGURES)}")
        for method, rows in results.items():
            part = dict(groups(rows))[group]
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                means = np.nanmean([row["figures"] for row in part], axis=0)
            print(f"| {method} | {' | '.join('' if np.isnan(mean) else f'{mean:.1f}' for mean in means)} |")
        print()


def option(words: list[str], name: str) -> str | None:
    """The word behind an option, both taken away."""
    if name not in words:
        return None
    at = words.index(name)
    del words[at]
    return words.pop(at)


def main() -> None:
    words = sys.argv[1:]
    only, one = option(words, "--set"), option(words, "--method")
    folders = [Path(word) for word in words if not word.startswith("-")]
    folder = folders[0] if folders else Path(__file__).parents[2] / "shared" / "data"
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        todo = {name: way for name, way in methods(stack).items() if one is None or name in one.split(",")}
        for name, load in SETS.items():
            if only not in (None, name):
                continue
            try:
                corpora = list(load(folder))
            except FileNotFoundError as error:
                print(f"{name} is left out: {error.filename} is not there\n", file=sys.stderr)
                continue
            with Progress(console=Console(stderr=True), transient=True) as progress:
                report[name] = {m: measure(f"{name}: {m}", way, corpora, progress) for m, way in todo.items()}
            if "--json" in words:
                continue
            print_set(name, report[name])
            if before := BEFORE.get(name):
                print(f"Loom before, R@5 / R@10 / R@20: fitted on {before[0] or 'none'}, held out {before[1]}\n")
            if isinstance(way := todo.get("Loom"), Loom) and name in ("locomo", "beam", "longmemeval", "realmem"):
                tokens_needed(way, corpora)
                if name in ("locomo", "beam"):
                    abstention(way, corpora)
    if "--json" in words:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
