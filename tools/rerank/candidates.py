"""The candidates that recall ranks for each question, packed with the teacher for `train.py`.

`python -m tools.rerank.candidates --talk FOLDER --teacher FOLDER --out FOLDER [--measure]`; README.md says what lies in
these folders. `--measure` adds the sets that are measured on, which no training reads. Needs Loom and numpy; no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from struct import unpack
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from recall_data import Corpus, Question, Turn, beam, locomo, longmemeval, realmem
from recall_methods import Loom

from loom import open_memory_sync
from loom.testing import FakeClock
from loom.text.passages import PASSAGE, best_passage, chunks, sentences
from loom.text.words import query_terms
from tools.rerank.chats import all_chats

SEED = 0
DEPTH = 50
"""Candidates of a question."""
SHORT, BEFORE = 40, 25
"""A turn of at most so many words is shown with so many words of the turn before it."""


@dataclass
class Packed:
    """Questions with their candidates; each text is held once."""

    texts: dict[str, int] = field(default_factory=dict)
    real: list[int] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)

    def number(self, text: str) -> int:
        """The number of a text."""
        return self.texts.setdefault(text, len(self.texts))


class Recorder:
    """A reranker that changes nothing and keeps what it was given."""

    name = "recorder"
    given: Sequence[tuple[int, float]] = ()

    async def rerank(self, query: str, hits: Sequence[Any], *, limit: int) -> tuple[Any, ...]:  # noqa: ARG002
        """The hits as they are."""
        self.given = [(hit.item.attributes["n"], hit.score) for hit in hits]
        return tuple(hits[:limit])


def shown(turn: Turn, question: str) -> str:
    """What the model reads of a turn: the speaker, and of a long turn the passage that matches."""
    span = best_passage(turn.text, query_terms(question))
    text = turn.text if span is None else turn.text[span.start : span.end]
    speaker = turn.speaker.capitalize() if turn.speaker in ("user", "assistant") else turn.speaker
    return f"{speaker}: {' '.join(text.split())}" if speaker else " ".join(text.split())


def in_context(text: str, turn: Turn, before: Turn | None) -> str:
    """A short turn behind the end of the turn before it, which it may answer."""
    if before is None or before.session != turn.session or len(turn.text.split()) > SHORT:
        return text
    return f"{before.speaker.capitalize()}: {' '.join(before.text.split()[-BEFORE:])} / {text}"


def pack(packed: Packed, corpora: Iterable[Corpus], name: str, part: str) -> None:
    """Remember each corpus, ask its questions, and keep the candidates with what is evidence."""
    recorder, clock = Recorder(), FakeClock()
    with ExitStack() as stack:
        where = f"sqlite:{stack.enter_context(TemporaryDirectory())}/memory.db"
        options = {"embedder": "static", "with_facts": False, "clock": clock, "durability": "fast"}
        memory = stack.enter_context(open_memory_sync(where, reranker=recorder, **options))
        way = Loom(memory, clock)
        for corpus in corpora:
            with way.remembered(corpus):
                for number, question in enumerate(corpus.questions):
                    if not question.evidence:
                        continue
                    recorder.given = ()
                    way.recalled(corpus, question, limit=1)
                    given = recorder.given[:DEPTH]
                    if given:
                        packed.questions.append(_entry(packed, corpus, number, given, name=name, part=part))
    print(f"{name}: {len(packed.questions)} questions, {len(packed.texts)} texts", flush=True)  # noqa: T201


def _entry(
    packed: Packed, corpus: Corpus, number: int, given: Sequence[tuple[int, float]], *, name: str, part: str
) -> dict[str, Any]:
    question = corpus.questions[number]
    places, alone, behind = [n for n, _ in given], list[int](), list[int]()
    level = [corpus.turns[n].session if corpus.level == "session" else corpus.turns[n].id for n in places]
    if part == "train":  # evidence that recall missed is learnt from as well
        missed = [n for n, turn in enumerate(corpus.turns) if turn.id in question.evidence and n not in set(places)]
        places, level = [*places, *missed[:5]], [*level, *(corpus.turns[n].id for n in missed[:5])]
    for n in places:
        text = shown(corpus.turns[n], question.text)
        alone.append(packed.number(text))
        behind.append(packed.number(in_context(text, corpus.turns[n], corpus.turns[n - 1] if n else None)))
    right = [int(title in question.evidence) for title in level]
    if name == "life":  # the answer to a message repeats it: neither right nor wrong
        right = [-1 if not y and f"{int(t) - 1}" in question.evidence else y for y, t in zip(right, level, strict=True)]
    return {
        "set": name, "part": "held out" if part == "measure" and corpus.held_out else part, "corpus": corpus.name,
        "number": number, "question": question.text, "kind": question.category, "turns": places, "alone": alone,
        "behind": behind, "right": right, "base": [round(score, 4) for _, score in given],
    }  # fmt: skip


def own_chats() -> Iterator[Corpus]:
    """The chats that chats.py makes."""
    for chat in all_chats():
        days = [datetime.fromisoformat(turn["day"]).replace(tzinfo=UTC) for turn in chat.turns]
        turns = tuple(
            Turn(str(n), str(turn["session"]), n, turn["speaker"], turn["text"], day + timedelta(minutes=n))
            for n, (turn, day) in enumerate(zip(chat.turns, days, strict=True))
        )
        now = turns[-1].at + timedelta(days=1)
        questions = tuple(
            Question(q["text"], frozenset(map(str, q["evidence"])), q["kind"], now, len(turns)) for q in chat.questions
        )
        yield Corpus(f"{chat.kind}: {chat.name}", "turn", False, turns, questions)


# Questions that rules make of what people said: real words, although they share them with the answer.

_TIME = (
    r"(?:on [A-Z]\w+ \d+\w*|on \d+/\d+|last \w+|yesterday|today|recently|this \w+|"
    r"(?:a|two|three|\w+) (?:day|week|month|year)s? ago)"
)
_DID = {
    "got": "get", "bought": "buy", "started": "start", "finished": "finish", "attended": "attend", "joined": "join",
    "visited": "visit", "ordered": "order", "planted": "plant", "watched": "watch", "completed": "complete",
    "met": "meet", "made": "make", "found": "find", "signed up for": "sign up for", "took": "take", "tried": "try",
    "went to": "go to", "moved to": "move to", "read": "read", "saw": "see", "picked up": "pick up", "learned": "learn",
    "received": "receive", "set up": "set up", "decided to": "decide to", "spent": "spend", "lost": "lose",
}  # fmt: skip
_OBJECT = r"((?:(?!\b(?:and|but|which|because|so|who|that|while)\b)[\w'\"\-&$%. ]){4,60})"
_RULES: Sequence[tuple[re.Pattern[str], Sequence[str]]] = (
    (re.compile(rf"\bI(?:'ve| have)? (?:just |recently |finally |also )?({'|'.join(_DID)}) {_OBJECT}"),
     ("When did I {verb} {rest}?", "Did I {verb} {rest}?", "How long ago did I {verb} {rest}?",
      "What do you know about {rest}?")),
    (re.compile(rf"\bI(?:'ve| have) been (\w+ing) {_OBJECT}"),
     ("How long have I been {verb} {rest}?", "Since when am I {verb} {rest}?", "What have I been {verb}?")),
    (re.compile(rf"\bI(?:'m| am) (\w+ing) {_OBJECT}"),
     ("What am I {verb}?", "Am I {verb} {rest}?", "Which plans did I mention about {rest}?")),
    (re.compile(rf"\bI (?:really |usually |always |mostly )?(prefer|like|love|enjoy|hate|need|want) {_OBJECT}"),
     ("What do I {verb}?", "Do I {verb} {rest}?", "What should you know about me and {rest}?")),
    (re.compile(rf"\b[Mm]y (\w+(?: \w+)?) (?:is|are|was|were) {_OBJECT}"),
     ("What did I say about my {verb}?", "What is my {verb}?", "What is special about my {verb}?")),
    (re.compile(r"\b(\d[\d,.]*|\$\d[\d,.]*) ((?:[a-z]+ ?){1,4})"),
     ("How many {rest} did I mention?", "What number of {rest} did I tell you?", "How much or how many: {rest}?")),
)  # fmt: skip


def made_questions(corpus: Corpus, most: int, seed: str) -> Corpus:
    """The corpus with questions that rules make of the user's sentences, at most so many."""
    draw, found = random.Random(seed), list[Question]()
    now = max(turn.at for turn in corpus.turns) + timedelta(days=1)
    for turn in corpus.turns:
        if turn.speaker.lower() != "user" or len(turn.text) > 1500:
            continue
        for start, end in sentences(turn.text):
            sentence = turn.text[start:end]
            if sentence.endswith("?"):
                continue
            for pattern, forms in _RULES:
                if match := pattern.search(sentence):
                    rest = re.sub(_TIME + ".*", "", match[2]).strip(" ,.'\"")
                    if len(rest) < 4:
                        continue
                    verb = _DID.get(match[1], match[1])
                    asked = draw.choice(forms).format(verb=verb, rest=fewer_words(draw, rest))
                    found.append(Question(asked, frozenset((turn.id,)), "made", now, len(corpus.turns)))
                    break
    once = {question.text: question for question in found}
    counts = {text: sum(one.text == text for one in found) for text in once}
    kept = [question for text, question in once.items() if counts[text] == 1]
    questions = draw.sample(kept, min(most, len(kept)))
    return replace(corpus, questions=tuple(questions), level="turn")


def real_talk(corpora: Iterable[Corpus], packed: Packed) -> None:
    """Passages of what was really said, and the questions in it: the sentence encoder is imitated on these."""
    asked = dict[str, None]()
    for corpus in corpora:
        for turn in corpus.turns:
            for start, end in chunks(turn.text[:6000], size=PASSAGE, overlap=0):
                packed.real.append(packed.number(shown(replace(turn, text=turn.text[start:end]), "")))
            for start, end in sentences(turn.text[:3000]):
                sentence = " ".join(turn.text[start:end].split())
                if sentence.endswith("?") and 5 <= sentence.count(" ") <= 40:
                    asked[sentence] = None
    packed.real, packed.queries = list(dict.fromkeys(packed.real)), list(asked)
    print(f"real: {len(packed.real)} passages, {len(packed.queries)} questions in them", flush=True)  # noqa: T201


def fewer_words(draw: random.Random, text: str) -> str:
    """A part of the words, so that the question does not repeat all of the answer."""
    words = text.split()
    if len(words) > 3 and draw.random() < 0.6:
        words = words[: draw.randint(2, len(words) - 1)]
    return " ".join(words)


def fitted_longmemeval(folder: Path) -> Corpus:
    """The questions that weights were fitted on, over their own sessions alone: nothing of the others is seen."""
    with gzip.open(folder / "longmemeval" / "oracle_dev.json.gz", "rt", encoding="utf-8") as file:
        items = json.load(file)
    held = {session for item in items[1::2] for session in item["haystack_session_ids"]}
    own = {session for item in items[::2] for session in item["haystack_session_ids"]} - held
    corpus = next(iter(longmemeval(folder)))
    turns = tuple(turn for turn in corpus.turns if turn.session in own)
    present = {turn.id for turn in turns}
    questions = tuple(
        replace(q, evidence=q.evidence & present, until=len(turns)) for q in corpus.questions if q.evidence & present
    )
    return Corpus("longmemeval, fitted sessions", "turn", False, turns, questions)


def letta_facts(folder: Path, packed: Packed) -> None:
    """Letta's questions over single facts; the one that names the answer and shares most words is taken as evidence."""
    draw = random.Random(SEED)
    rows = [
        json.loads(line) for line in (folder / "letta_evals/core_memory_read.jsonl").read_text("utf-8").splitlines()
    ]
    for number, row in enumerate(rows):
        facts, answer = row["agent_args"]["extra"]["facts"], row["ground_truth"].lower()
        stems = {word[:6] for word in re.findall(r"\w+", row["input"].lower())}
        shared = [
            len(stems & {word[:6] for word in re.findall(r"\w+", fact.lower())}) if answer in fact.lower() else -1
            for fact in facts
        ]
        right = [int(count == max(shared) > 0) for count in shared]
        if not any(right):
            continue
        others = [fact for other in draw.sample(rows, 3) for fact in other["agent_args"]["extra"]["facts"]]
        texts = [packed.number(fact) for fact in (*facts, *others)]
        packed.questions.append({
            "set": "letta", "part": "train", "corpus": "letta", "number": number, "question": row["input"],
            "kind": "fact",
            "turns": list(range(len(texts))), "alone": texts, "behind": texts, "right": [*right, *(0 for _ in others)],
            "base": [0.0] * len(texts),
        })  # fmt: skip


def read_teacher(path: Path) -> dict[str, np.ndarray]:
    """The weights of all-MiniLM-L6-v2: rows of large matrices in 8 bits with a scale each, so that they can travel."""
    raw = path.read_bytes()
    (length,) = unpack("<Q", raw[:8])
    held: dict[str, np.ndarray] = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        values = np.frombuffer(raw[first:last], np.float32).reshape(entry["shape"])
        if name == "embeddings.word_embeddings.weight":
            scale = np.abs(values).max(1, keepdims=True) / 127
            held[f"{name}|rows"], held[f"{name}|scale"] = np.round(values / scale).astype(np.int8), scale
        else:
            held[name] = values.astype(np.float16)
    return held


def main() -> None:
    """Write `lists.json.gz`, `measured.json.gz` and `teacher.npz`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("talk", "teacher", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    packed = Packed()
    for kind in ("project", "life", "people"):
        pack(packed, (c for c in own_chats() if c.name.startswith(f"{kind}:")), kind, "train")
    fitted = fitted_longmemeval(given.talk)
    pack(packed, [fitted], "longmemeval", "train")
    pack(packed, [made_questions(fitted, 1200, "longmemeval")], "made", "train")
    persons = [made_questions(c, 500, c.name) for c in realmem(given.talk) if not c.held_out]
    pack(packed, persons, "made", "train")
    letta_facts(given.talk, packed)
    real_talk([fitted, *(corpus for corpus in realmem(given.talk) if not corpus.held_out)], packed)
    _write(given.out / "lists.json.gz", packed)
    if given.measure:
        packed = Packed()
        for name, load in (("locomo", locomo), ("beam", beam), ("longmemeval", longmemeval)):
            pack(packed, load(given.talk), name, "measure")
        _write(given.out / "measured.json.gz", packed)
    np.savez(given.out / "teacher.npz", **read_teacher(given.teacher / "model.safetensors"))


def _write(path: Path, packed: Packed) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        held = {"texts": [*packed.texts], "questions": packed.questions, "real": packed.real, "queries": packed.queries}
        json.dump(held, file, ensure_ascii=False)


if __name__ == "__main__":
    main()
