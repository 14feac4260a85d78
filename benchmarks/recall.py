"""How well recall finds the evidence: BM25, embedders, a plain hybrid and Loom side by side, no LLM anywhere.

    python benchmarks/recall.py [folder] [--set NAME] [--method NAME] [--json]

The folder holds the data sets (see `recall_data.py`); each that is missing is left out. The methods are in
`recall_methods.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from recall_data import Corpus, Question, forty, letta, letta_newest, locomo, realmem
from recall_methods import DEPTH, Loom, Method, lines, methods
from rich.console import Console
from rich.progress import Progress

from loom.text.tokens import estimate_tokens

SETS = {"locomo": locomo, "realmem": realmem, "letta": letta, "letta newest": letta_newest, "forty": forty}

FIGURES = ("first", "R@1", "R@5", "R@10", "R@20", "all@10", "nDCG@10", "R@500tok", "newest", "tokens@10")
"""`first`: the first hit is evidence; `newest`: every piece of evidence stands above all that it made stale."""


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
    lowest = max((places.index(name) if name in places else DEPTH for name in question.evidence), default=0)
    newest = all(name not in places[:lowest] for name in question.stale) if question.stale else float("nan")
    all_in = sum(right[:10]) == want
    return [*(100 * s for s in (any(right[:1]), *shares, all_in, gain, within, newest)), float(used[:10][-1])]


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


def within_budgets(way: Loom, corpora: Sequence[Corpus]) -> None:
    """What the user's half first is worth: evidence within a budget of tokens, with and without."""
    print("| Loom, budget | user first | both alike |\n|---|--:|--:|")
    shares: dict[tuple[int, str], list[float]] = {(b, h): [] for b in (500, 1000, 2000) for h in ("user", "both")}
    for corpus in corpora:
        with way.remembered(corpus) as numbers:
            for question in corpus.questions:
                for (budget, prefer), found in shares.items():
                    hits = way.asked(corpus, question, numbers, limit=DEPTH, budget=budget, prefer=prefer)
                    told = {corpus.turns[i].session for i in hits}
                    found.append(100 * len(question.evidence & told) / len(question.evidence))
    for budget in (500, 1000, 2000):
        print(f"| {budget} | {np.mean(shares[budget, 'user']):.1f} | {np.mean(shares[budget, 'both']):.1f} |")
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
            means = np.mean([row["figures"] for row in part], axis=0)
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
        todo = {name: way for name, way in methods(stack).items() if one in (None, name)}
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
            if name == "realmem" and isinstance(way := todo.get("Loom"), Loom):
                within_budgets(way, corpora)
    if "--json" in words:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
