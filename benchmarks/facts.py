"""How much the rules learn from people's own words, and how much of it is right.

`python -m benchmarks.facts` prints, for each set and each half of its conversations, how many facts the rules find, how
many of the turns that hold an answer give one, the standing instructions of RealMem, and the precision of the facts
that were judged one by one (`facts_judged.tsv`). `--draw 200` prints facts drawn at random, with the turn each comes
from, for judging. Rules are written with the even conversations of each set in sight; the odd ones only measure them.

The data are not part of the project: `--data` says where they are. The judged list holds no text of theirs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from benchmarks.recall_data import locomo, realmem
from loom.core.record import Episode, Provenance
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.wishes import INSTRUCTION, wishes_in
from loom.protocols.extractor import Claim

DATA = Path("../shared/data")
JUDGED = Path(__file__).with_name("facts_judged.tsv")
COLUMNS = ("set", "half", "turn", "predicate", "object", "verdict", "reason")
AT = datetime(2026, 1, 14, 12, tzinfo=UTC)
SEED = 11


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a user; `answers` if a question of the set is answered by it."""

    set: str
    id: str
    is_even: bool
    speaker: str | None
    text: str
    answers: bool = False

    @property
    def half(self) -> str:
        """The half of the set that its conversation belongs to."""
        return "even" if self.is_even else "odd"


@dataclass(frozen=True, slots=True)
class Found:
    """A fact that the rules found in a turn."""

    turn: Turn
    claim: Claim

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it in the judged list: the object only as a digest."""
        object = f"{self.claim.subject}|{self.claim.object}" if self.claim.subject != "user" else self.claim.object
        digest = hashlib.sha256(object.encode()).hexdigest()[:12]
        return self.turn.set, self.turn.id, self.claim.predicate, digest


def turns_of(folder: Path) -> Iterator[Turn]:
    """Every message of a user, in all sets."""
    yield from _longmemeval(folder)
    for number, corpus in enumerate(realmem(folder)):
        for turn in corpus.turns:
            if turn.speaker == "User":
                yield Turn("realmem", f"{corpus.name[8:]}/{turn.id}", number % 2 == 0, None, turn.text)
    for number, corpus in enumerate(locomo(folder)):
        for turn in corpus.turns:
            text = turn.text.partition(" [shows: ")[0]
            yield Turn("locomo", f"{number}/{turn.id}", number % 2 == 0, turn.speaker, text)
    for number, chat in enumerate(_lines(folder / "beam" / "beam_100K_dev.jsonl.gz")):
        for message in chat["messages"]:
            if message["role"] == "user":
                text = message["content"].partition("->->")[0].strip()
                yield Turn("beam", f"{number}/{message['id']}", number % 2 == 0, None, text)


def _longmemeval(folder: Path) -> Iterator[Turn]:
    """The sessions of every question; one that several questions share counts once."""
    seen: set[str] = set()
    with gzip.open(folder / "longmemeval" / "oracle_dev.json.gz", "rt", encoding="utf-8") as file:
        questions: list[dict[str, Any]] = json.load(file)
    for number, question in enumerate(questions):
        for name, session in zip(question["haystack_session_ids"], question["haystack_sessions"], strict=True):
            if name in seen:
                continue
            seen.add(name)
            for position, turn in enumerate(session):
                if turn["role"] == "user":
                    answers = bool(turn.get("has_answer"))
                    yield Turn("longmemeval", f"{name}/{position}", number % 2 == 0, None, turn["content"], answers)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


async def facts_in(turns: Iterable[Turn]) -> list[Found]:
    """The facts that the rules find to be true; what they find to be over is left out."""
    rules = RuleExtractor()
    found: list[Found] = []
    for turn in turns:
        source = Provenance("user")
        episode = Episode(id=turn.id, text=turn.text, at=AT, recorded_at=AT, provenance=source, speaker=turn.speaker)
        claims = (await rules.extract([episode])).claims
        kept = {(c.subject, c.predicate, c.object): Found(turn, c) for c in claims if c.valid_from and not c.retracts}
        found += kept.values()
    return found
