"""Loads the data sets that recall is measured on into one form: conversations with questions and their evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
DEV = 5
"""Weights were chosen on the first five LoCoMo conversations; the figures of the others were seen, not fitted."""
LETTA_DEV = 550
"""`head` and what counts as said again were chosen on the first half of the Letta set; `phrase` on all of it."""
REALMEM_HELD_OUT = "Kenta"
"""`recency` was chosen on all of RealMem; that only a single sentence is a statement, on the other two persons."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing said, at a place in a session."""

    id: str
    session: str
    position: int
    speaker: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """`evidence` are ids of turns, or of sessions; only the first `until` turns have been said when it is asked.

    `stale` are ids of what the evidence made untrue.
    """

    text: str
    evidence: frozenset[str]
    category: str
    now: datetime
    until: int
    stale: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Corpus:
    """One memory: what was said, and what is asked of it."""

    name: str
    level: Literal["turn", "session"]
    held_out: bool
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]

    @property
    def speakers(self) -> frozenset[str]:
        """Everybody who says something."""
        return frozenset(turn.speaker for turn in self.turns)


def locomo(folder: Path) -> Iterator[Corpus]:
    """Ten long conversations; a photo is told by its caption, as a client would send it."""
    for number, sample in enumerate(json.loads((folder / "locomo" / "locomo10.json").read_text(encoding="utf-8"))):
        talk = sample["conversation"]
        turns = tuple(_locomo_turns(talk))
        now = max(turn.at for turn in turns) + timedelta(days=1)
        questions = tuple(
            Question(item["question"], evidence, CATEGORIES[item["category"]], now, len(turns))
            for item in sample["qa"]
            if (evidence := _evidence(item["evidence"]))
        )
        yield Corpus(f"locomo {number + 1}", "turn", number >= DEV, turns, questions)


def _locomo_turns(talk: dict[str, Any]) -> Iterator[Turn]:
    numbers = sorted(int(key.split("_")[1]) for key in talk if re.fullmatch(r"session_\d+", key))
    for number in numbers:
        begin = datetime.strptime(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for position, turn in enumerate(talk[f"session_{number}"]):
            text = turn["text"]
            if turn.get("blip_caption"):
                text = f"{text} [shows: {turn['blip_caption']}]"
            at = begin + timedelta(minutes=position)
            yield Turn(turn["dia_id"], str(number), position, turn["speaker"], text, at)


def _evidence(items: list[str]) -> frozenset[str]:
    """The ids of turns; some labels hold several in one string, or a stray colon or zero."""
    found = (match for item in items for match in re.finditer(r"D:?(\d+):(\d+)", item))
    return frozenset(f"D{int(match[1])}:{int(match[2])}" for match in found)


def realmem(folder: Path) -> Iterator[Corpus]:
    """Three people with an assistant: which earlier sessions does the assistant need to answer a message?"""
    for path in sorted((folder / "realmem").glob("*.json")):
        turns: list[Turn] = []
        questions: list[Question] = []
        seen: set[str] = set()
        for session in json.loads(path.read_text(encoding="utf-8"))["dialogues"]:
            begin = datetime.strptime(session["current_time"][:10], "%Y-%m-%d").replace(tzinfo=UTC)
            until, message = len(turns), ""
            for position, turn in enumerate(session["dialogue_turns"]):
                at = begin + timedelta(hours=12, minutes=position)
                needed = frozenset(turn.get("memory_session_uuids") or ()) & seen
                if needed and message:
                    questions.append(Question(message, needed, "message", at, until))
                if turn["speaker"] == "User":
                    message = turn["content"]
                name = f"{session['session_uuid']}:{position}"
                turns.append(Turn(name, session["session_uuid"], position, turn["speaker"], turn["content"], at))
            seen.add(session["session_uuid"])
        person = path.stem.split("_")[0]
        held_out = person == REALMEM_HELD_OUT
        yield Corpus(f"realmem {person}", "session", held_out, tuple(turns), tuple(questions))


def letta(folder: Path) -> Iterator[Corpus]:
    """About ten facts and one that contradicts some of them: which one does it supersede?"""
    for number, (_, item) in enumerate(_letta_items(folder)):
        facts = tuple(_letta_facts(item))
        question = Question(item["contradicting_fact"], _superseded(item), "update", _LETTA_AT, len(facts))
        yield Corpus(f"letta {number + 1}", "turn", number >= LETTA_DEV, facts, (question,))


def letta_newest(folder: Path) -> Iterator[Corpus]:
    """The facts, and a day later the one that contradicts some: asked a day after that, does it stand above them?"""
    for number, (asked, item) in enumerate(_letta_items(folder)):
        later = _LETTA_AT + timedelta(days=1)
        said = (*_letta_facts(item), Turn("new", "new", 0, "", item["contradicting_fact"], later))
        now = later + timedelta(days=1)
        question = Question(asked, frozenset(("new",)), "update", now, len(said), _superseded(item))
        yield Corpus(f"letta newest {number + 1}", "turn", number >= LETTA_DEV, said, (question,))


_LETTA_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _letta_items(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in (folder / "letta_evals" / "core_memory_update.jsonl").read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        yield item["input"], item["agent_args"]["extra"]


def _letta_facts(item: dict[str, Any]) -> Iterator[Turn]:
    return (Turn(str(i), str(i), 0, "", fact, _LETTA_AT) for i, fact in enumerate(item["facts"]))


def _superseded(item: dict[str, Any]) -> frozenset[str]:
    return frozenset(str(i) for i in item["supporting_fact_indices"])


def forty(folder: Path) -> Iterator[Corpus]:
    """Forty single statements, each asked for in its own words and in others."""
    items = json.loads((folder / "recall_set_40.json").read_text(encoding="utf-8"))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    turns = tuple(Turn(str(i), str(i), 0, "", item["text"], at) for i, item in enumerate(items))
    questions = tuple(
        Question(item[kind], frozenset((str(i),)), kind, at, len(turns))
        for kind in ("keyword", "paraphrase")
        for i, item in enumerate(items)
    )
    yield Corpus("forty", "turn", False, turns, questions)
