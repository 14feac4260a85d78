"""Compare local embedders: dense ranking alone, and added to BM25, over all turns of a conversation.

`python -m benchmarks.vectors --data FOLDER [--embedders static wordllama] [--sets locomo beam ...]`

The folder holds the sets as `benchmarks/README.md` names them; sets that are not there are left out. The pairs in other
languages are our own (`vectors_pairs.json`). No weight is fitted: fused is z(BM25) + z(cosine). Reported is recall: how
much of the evidence is among the first 1, 5 and 10.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray

from loom.providers.embedding.choose import pick_embedder
from loom.text.words import query_terms, terms

Array = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Array]
DEPTHS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the labels of what answers it; only the first `until` texts can be found."""

    text: str
    evidence: frozenset[str]
    until: int


@dataclass(frozen=True, slots=True)
class Talk:
    """Texts with a label each (several may share one), and questions."""

    texts: list[str]
    labels: list[str]
    asked: list[Asked]


def locomo(folder: Path) -> Iterator[Talk]:
    """Two people with names and short turns."""
    for sample in json.loads((folder / "locomo/locomo10.json").read_text("utf-8")):
        talk = sample["conversation"]
        turns = [turn for key in talk if re.fullmatch(r"session_\d+", key) for turn in talk[key]]
        texts = [f"{t['speaker']}: {t['text']} {t.get('blip_caption') or ''}".strip() for t in turns]
        asked: list[Asked] = []
        for item in sample["qa"]:
            found = (match for given in item["evidence"] for match in re.finditer(r"D:?(\d+):(\d+)", given))
            evidence = frozenset(f"D{int(match[1])}:{int(match[2])}" for match in found)
            asked += [Asked(item["question"], evidence, len(turns))] if evidence else []
        yield Talk(texts, [turn["dia_id"] for turn in turns], asked)


def realmem(folder: Path) -> Iterator[Talk]:
    """A person with an assistant: which earlier sessions does a message need?"""
    for path in sorted((folder / "realmem").glob("*.json")):
        talk, message = Talk([], [], []), ""
        for session in json.loads(path.read_text("utf-8"))["dialogues"]:
            until = len(talk.texts)
            for turn in session["dialogue_turns"]:
                evidence = frozenset(turn.get("memory_session_uuids") or ()) & set(talk.labels[:until])
                if evidence and message:
                    talk.asked.append(Asked(message, evidence, until))
                message = turn["content"] if turn["speaker"] == "User" else message
                talk.texts.append(turn["content"].strip() or "-")
                talk.labels.append(session["session_uuid"])
        yield talk


def letta(folder: Path) -> Iterator[Talk]:
    """About ten facts: which one does a new one contradict?"""
    for line in (folder / "letta_evals/core_memory_update.jsonl").read_text("utf-8").splitlines():
        item = json.loads(line)["agent_args"]["extra"]
        evidence = frozenset(map(str, item["supporting_fact_indices"]))
        labels = list(map(str, range(len(item["facts"]))))
        yield Talk(item["facts"], labels, [Asked(item["contradicting_fact"], evidence, len(labels))])


def beam(folder: Path) -> Iterator[Talk]:
    """A user with an assistant that answers at length."""
    with gzip.open(folder / "beam/beam_100K_dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        for chat in map(json.loads, lines):
            texts = [re.sub(r"\s*->->.*$", "", m["content"], flags=re.DOTALL) or "-" for m in chat["messages"]]
            labels = [str(message["id"]) for message in chat["messages"]]
            asked: list[Asked] = []
            for item in (item for items in chat["questions"].values() for item in items):
                evidence = frozenset(map(str, _numbers(item.get("source_chat_ids")))) & set(labels)
                asked += [Asked(item["question"], evidence, len(texts))] if evidence else []
            yield Talk(texts, labels, asked)


def _numbers(given: Any) -> Iterator[int]:
    if isinstance(given, int):
        yield given
    elif isinstance(given, dict):
        yield from _numbers(list(given.values()))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    elif isinstance(given, list):
        items: list[Any] = given  # pyright: ignore[reportUnknownVariableType]
        yield from (number for item in items for number in _numbers(item))


def longmemeval(folder: Path) -> Iterator[Talk]:
    """All sessions of all questions as one store of a user with an assistant."""
    talk, held = Talk([], [], []), set[str]()
    items = json.loads(gzip.decompress((folder / "longmemeval/oracle_dev.json.gz").read_bytes()))
    evidence: dict[str, set[str]] = defaultdict(set)
    for item in items:
        for session, turns in zip(item["haystack_session_ids"], item["haystack_sessions"], strict=True):
            for place, turn in enumerate(turns):
                label = f"{session}:{place}"
                if turn.get("has_answer"):
                    evidence[item["question_id"]].add(label)
                if turn["content"].strip() and label not in held:
                    held.add(label)
                    talk.texts.append(turn["content"])
                    talk.labels.append(label)
    for item in items:
        if (found := frozenset(evidence[item["question_id"]])) and not item["question_id"].endswith("_abs"):
            talk.asked.append(Asked(item["question"], found, len(talk.texts)))
    yield talk


def pairs(language: str, _: Path) -> Iterator[Talk]:
    """Forty questions of our own in one language, each with the one of forty statements that answers it."""
    held = json.loads((Path(__file__).parent / "vectors_pairs.json").read_text("utf-8"))[language]
    labels = list(map(str, range(len(held))))
    yield Talk(
        [statement for _, statement in held],
        labels,
        [Asked(question, frozenset((label,)), len(held)) for (question, _), label in zip(held, labels, strict=True)],
    )


SETS: dict[str, Callable[[Path], Iterator[Talk]]] = {
    "locomo": locomo,
    "realmem": realmem,
    "letta": letta,
    "beam": beam,
    "longmemeval": longmemeval,
    **{f"pairs-{language}": partial(pairs, language) for language in ("de", "ru", "zh", "ja")},
}


class Words:
    """BM25 (Lucene's formula, k1 1.2, b 0.75) over texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        docs = [Counter(terms(text)) for text in texts]
        self._lengths = np.array([sum(doc.values()) for doc in docs], np.float32)
        self._often: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, doc in enumerate(docs):
            for term, count in doc.items():
                self._often[term].append((place, count))

    def scores(self, query: str, until: int) -> Array:
        """The score of each of the first `until` texts."""
        total = np.zeros(until, np.float32)
        mean = max(float(self._lengths[:until].mean()), 1e-9)
        for term in query_terms(query):
            found = np.array([pair for pair in self._often.get(term, ()) if pair[0] < until], int).reshape(-1, 2)
            where, often = found[:, 0], found[:, 1].astype(np.float32)
            weight = np.log(1 + (until - len(where) + 0.5) / (len(where) + 0.5))
            total[where] += weight * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * self._lengths[where] / mean))
        return total


def spread(scores: Array) -> Array:
    """The scores with mean 0 and deviation 1."""
    return (scores - scores.mean()) / (scores.std() + 1e-9)


def recall(talk: Talk, asked: Asked, scores: Array) -> list[float]:
    """How much of the evidence is among the first labels, for each depth."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    first = list(dict.fromkeys(talk.labels[place] for place in order))
    return [len(asked.evidence.intersection(first[:depth])) / len(asked.evidence) for depth in DEPTHS]


def measure(read: Callable[[Path], Iterator[Talk]], folder: Path, embedders: dict[str, Embed]) -> dict[str, Any]:
    """Mean recall of each way of ranking over all questions of a set."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for talk in read(folder):
        words = Words(talk.texts)
        vectors = {name: (embed(talk.texts), embed([a.text for a in talk.asked])) for name, embed in embedders.items()}
        for place, asked in enumerate(talk.asked):
            lexical = words.scores(asked.text, asked.until)
            found["BM25"].append(recall(talk, asked, lexical))
            for name, (held, wanted) in vectors.items():
                dense = held[: asked.until] @ wanted[place]
                found[f"{name} dense"].append(recall(talk, asked, dense))
                found[f"{name} fused"].append(recall(talk, asked, spread(lexical) + spread(dense)))
    return {"n": len(found["BM25"]), **{name: 100 * np.mean(values, axis=0) for name, values in found.items()}}


def embedder_named(name: str) -> Embed:
    """What turns texts into vectors of length 1."""
    embedder = pick_embedder(name).embedder
    return lambda texts: np.array(anyio.run(partial(embedder.embed, list(texts), purpose="document")), np.float32)


def speed(embed: Embed, texts: Sequence[str]) -> float:
    """Texts a second of processor time, once the table is loaded: the best of three."""
    embed(texts[:100])
    took: list[float] = []
    for _ in range(3):
        began = time.process_time()
        embed(texts)
        took.append(time.process_time() - began)
    return len(texts) / min(took)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--embedders", nargs="+", default=["static", "wordllama"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    given = parser.parse_args()
    embedders = {name: embedder_named(name) for name in given.embedders}
    ways = ["BM25", *(f"{name} {way}" for way in ("dense", "fused") for name in embedders)]
    print("recall at 1 / 5 / 10, percent")
    print("| set | n |", " | ".join(ways), "|")
    print("|---|--:|" + "---|" * len(ways))
    for name in given.sets:
        try:
            row = measure(SETS[name], given.data, embedders)
        except FileNotFoundError as error:
            print(f"| {name} | left out: {error.filename} is not there |")
            continue
        cells = [" / ".join(f"{share:.1f}" for share in row[way]) for way in ways]
        print(f"| {name} | {row['n']} |", " | ".join(cells), "|", flush=True)
    turns = [turn for talk in letta(given.data) for turn in talk.texts]
    for name, embed in embedders.items():
        print(f"{name}: {speed(embed, turns):,.0f} short texts a second of processor time")


if __name__ == "__main__":
    main()
