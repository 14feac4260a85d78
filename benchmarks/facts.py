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
from loom.core.record import Claim, Episode, Provenance
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.wishes import INSTRUCTION, wishes_in

DATA = Path("../shared/data")
JUDGED = Path(__file__).with_name("facts_judged.tsv")
COLUMNS = ("draws", "set", "half", "turn", "predicate", "object", "verdict", "reason")
DRAWS = {
    "a": "odd half, seed 11, before its facts were seen",
    "b": "odd half, seed 12, after what the first draw showed was changed",
    "c": "even half, seed 11",
    "d": "all, seed 21",
    "e": "all of LongMemEval, RealMem and BEAM that no draw had, the rules of today",
}
"""Each was drawn and judged one by one; what a later draw shares with an earlier one was judged then."""
AT = datetime(2026, 1, 14, 12, tzinfo=UTC)
SEED = 21


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


def print_yield(turns: Sequence[Turn], found: Sequence[Found]) -> None:
    """Facts, instructions and turns with facts of each half of each set."""
    heads = ("turns", "facts", "instructions", "turns with facts", "per 1,000")
    print(f"{'set':12} {'half':5} {heads[0]:>6} {heads[1]:>6} {heads[2]:>12} {heads[3]:>17} {heads[4]:>9}")
    for name, half in sorted({(turn.set, turn.half) for turn in turns}):
        count = sum((turn.set, turn.half) == (name, half) for turn in turns)
        own = [one for one in found if (one.turn.set, one.turn.half) == (name, half)]
        orders = sum(one.claim.predicate == INSTRUCTION for one in own)
        saying = len({one.turn.id for one in own})
        rate = 1000 * saying / count
        print(f"{name:12} {half:5} {count:6,} {len(own) - orders:6,} {orders:12,} {saying:17,} {rate:9.1f}")
    answers = {turn.id for turn in turns if turn.answers}
    given = len({one.turn.id for one in found} & answers)
    print(
        f"\nturns that hold an answer (LongMemEval): {given} of {len(answers)} give a fact ({given / len(answers):.1%})"
    )
    print(
        "predicates:", ", ".join(f"{name} {n}" for name, n in Counter(f.claim.predicate for f in found).most_common())
    )


def print_instructions(turns: Sequence[Turn], found: Sequence[Found]) -> None:
    """The instructions of RealMem, which holds orders of the moment and hardly a standing one."""
    claimed = [one.claim.object for one in found if one.turn.set == "realmem" and one.claim.predicate == INSTRUCTION]
    standing = [text for turn in turns if turn.set == "realmem" for text in wishes_in(turn.text)]
    print(f"\ninstructions in all of RealMem: {len(claimed)} found, {len(standing)} would stand", *claimed, *standing)


def read_judged() -> list[dict[str, str]]:
    """The judged facts."""
    with JUDGED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def print_precision(found: Sequence[Found]) -> None:
    """The precision of each draw, and that of all judged facts that the rules still find."""
    rows = read_judged()
    print()
    for name, what in DRAWS.items():
        own = [row for row in rows if name in row["draws"]]
        print(f"draw {name}, {what}: {_share(own)}")
    keys = {one.key for one in found}
    still = [row for row in rows if (row["set"], row["turn"], row["predicate"], row["object"]) in keys]
    print(f"judged facts that are found today: {_share(still)} of {len(found)}")
    for name, half in sorted({(row["set"], row["half"]) for row in still}):
        own = [row for row in still if (row["set"], row["half"]) == (name, half)]
        print(f"  {name:12} {half:5} {_share(own)}")


def _share(rows: Sequence[dict[str, str]]) -> str:
    right = sum(row["verdict"] == "right" for row in rows)
    return f"{right} of {len(rows)} right ({right / max(len(rows), 1):.1%})"


def drawn(found: Sequence[Found], half: str, count: int, seed: int) -> list[Found]:
    """Facts of one half or of all, drawn at random; the order of the data decides nothing."""
    own = sorted((one for one in found if half in ("all", one.turn.half)), key=lambda one: one.key)
    return random.Random(seed).sample(own, min(count, len(own)))


def print_drawn(found: Sequence[Found], half: str, count: int, seed: int) -> None:
    """Facts to be judged: the row of the list, the verdict if there is one, the fact, and its turn."""
    known = {(row["set"], row["turn"], row["predicate"], row["object"]): row["verdict"] for row in read_judged()}
    for one in drawn(found, half, count, seed):
        print("\t".join((one.turn.set, one.turn.half, *one.key[1:], known.get(one.key, "not judged"))))
        print(f"    {one.claim.subject} {one.claim.predicate}: {one.claim.object}")
        print(f"    {' '.join(one.turn.text.split())}")


def main() -> None:
    """Print yield, instructions and precision, or facts to be judged."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the data sets")
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="print N facts, for judging")
    parser.add_argument("--half", choices=("even", "odd", "all"), default="all", help="of which conversations")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    turns = list(turns_of(given.data))
    found = anyio.run(facts_in, turns)
    if given.draw:
        print_drawn(found, given.half, given.draw, given.seed)
        return
    print_yield(turns, found)
    print_instructions(turns, found)
    print_precision(found)


if __name__ == "__main__":
    main()
