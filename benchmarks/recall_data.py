"""Loads the data sets that recall is measured on into one form: conversations with questions and their evidence."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

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

    `stale` are those that are no longer true, among the evidence or beside it. A question without evidence has no
    answer.
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


BEAM_FIT = 5
"""Weights were fitted on the first five BEAM chats."""


def beam(folder: Path) -> Iterator[Corpus]:
    """Long chats between a user and an assistant; each answer fills a page."""
    with gzip.open(folder / "beam" / "beam_100K_dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            chat = json.loads(line)
            turns = tuple(_beam_turns(chat["messages"]))
            now = turns[-1].at + timedelta(days=1)
            questions = tuple(
                _beam_question(item, ability, now, len(turns))
                for ability, items in chat["questions"].items()
                for item in items
            )
            yield Corpus(f"beam {chat['chat_id']}", "turn", number >= BEAM_FIT, turns, questions)


def _beam_turns(messages: list[dict[str, Any]]) -> Iterator[Turn]:
    """The messages; a part of the chat is a session, with the date that is said at its beginning."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    for message in messages:
        if message["time_anchor"]:
            at = max(at, datetime.strptime(message["time_anchor"], "%B-%d-%Y").replace(tzinfo=UTC))
        at += timedelta(minutes=1)
        text = re.sub(r"\s*->->.*$", "", message["content"], flags=re.DOTALL)
        yield Turn(str(message["id"]), str(message["batch"]), message["id"], message["role"], text, at)


def _beam_question(item: dict[str, Any], ability: str, now: datetime, until: int) -> Question:
    ids: Any = item.get("source_chat_ids") or []
    parts = cast("dict[str, list[int]]", ids if isinstance(ids, dict) else {"": ids})
    evidence = frozenset(str(id) for part in parts.values() for id in part)
    stale = frozenset(map(str, parts.get("original_info", ()))) - frozenset(map(str, parts.get("updated_info", ())))
    return Question(item["question"], evidence, ability, now, until, stale)


def longmemeval(folder: Path) -> Iterator[Corpus]:
    """All sessions of all questions in one memory; a round is a message of the user with its answer."""
    items = _longmemeval_items(folder)
    turns = _longmemeval_turns(items)
    for name, part in (("longmemeval, fitted", items[::2]), ("longmemeval, held out", items[1::2])):
        questions = tuple(_longmemeval_question(item, len(turns)) for item in part)
        yield Corpus(name, "turn", name.endswith("held out"), turns, questions)


HAYSTACKS = 5
"""How often the questions of LongMemEval are dealt out anew to memories of 48 sessions."""


def longmemeval_48(folder: Path) -> Iterator[Corpus]:
    """Every question over its own sessions among others, 48 together, five times with other sessions around.

    A memory of 48 sessions holds those of some 25 questions; each of them is asked of it.
    """
    items = _longmemeval_items(folder)
    fitted = {item["question_id"] for item in items[::2]}
    for deal in range(HAYSTACKS):
        for number, (asked, around) in enumerate(_dealt(items, random.Random(deal))):
            turns = _longmemeval_turns(sorted((*asked, *around), key=lambda one: one["haystack_dates"][0]))
            for held_out in (True, False):
                part = [item for item in asked if (item["question_id"] in fitted) != held_out]
                name = f"longmemeval 48 {deal}.{number}{'' if held_out else ', fitted'}"
                questions = tuple(_longmemeval_question(item, len(turns)) for item in part)
                yield Corpus(name, "turn", held_out, turns, questions)


def _dealt(items: list[dict[str, Any]], deal: random.Random) -> Iterator[tuple[list[Any], list[Any]]]:
    """All questions in random groups that have 48 sessions; those of the last one are filled up with others."""
    rest = deal.sample(items, len(items))
    while rest:
        asked = [rest.pop()]
        while rest and _sessions(asked) < _SESSIONS:
            asked.append(rest.pop())
        others = [item for item in deal.sample(items, len(items)) if item not in asked]
        around: list[dict[str, Any]] = []
        while _sessions([*asked, *around]) < _SESSIONS:
            around.append(others.pop())
        yield asked, around


_SESSIONS = 48


def _sessions(items: list[dict[str, Any]]) -> int:
    return len({session for item in items for session in item["haystack_session_ids"]})


def _longmemeval_items(folder: Path) -> list[dict[str, Any]]:
    """The questions. A session that two of them have under two names gets one: a memory shows the same words once."""
    with gzip.open(folder / "longmemeval" / "oracle_dev.json.gz", "rt", encoding="utf-8") as file:
        items: list[dict[str, Any]] = json.load(file)
    names: dict[str, str] = {}
    for item in items:
        pairs = zip(item["haystack_session_ids"], item["haystack_sessions"], strict=True)
        item["haystack_session_ids"] = [
            names.setdefault(json.dumps([message["content"] for message in messages]), name) for name, messages in pairs
        ]
    return items


def _longmemeval_turns(items: list[dict[str, Any]]) -> tuple[Turn, ...]:
    """All turns of the sessions of some questions, each session once."""
    turns: dict[str, list[Turn]] = {}
    for item in items:
        for session, date, messages in zip(
            item["haystack_session_ids"], item["haystack_dates"], item["haystack_sessions"], strict=True
        ):
            begin = _longmemeval_date(date)
            turns.setdefault(
                session,
                [
                    Turn(name, session, position, m["role"], m["content"] or "-", begin + timedelta(minutes=position))
                    for position, (name, m) in enumerate(zip(_rounds(session, messages), messages, strict=True))
                ],
            )
    return tuple(turn for part in turns.values() for turn in part)


def _rounds(session: str, messages: list[dict[str, Any]]) -> Iterator[str]:
    """The name of the round of each message: a new one begins with each message of the user."""
    number = -1
    for message in messages:
        number += message["role"] == "user" or number < 0
        yield f"{session}:{number}"


def _longmemeval_question(item: dict[str, Any], until: int) -> Question:
    evidence: frozenset[str] = frozenset(
        name
        for session, messages in zip(item["haystack_session_ids"], item["haystack_sessions"], strict=True)
        for name, message in zip(_rounds(session, messages), messages, strict=True)
        if message.get("has_answer")
    )
    if item["question_id"].endswith("_abs"):
        evidence = frozenset[str]()
    now = _longmemeval_date(item["question_date"])
    dates = dict(zip(item["haystack_session_ids"], item["haystack_dates"], strict=True))
    newest = max(item["haystack_session_ids"], key=lambda session: dates[session])
    stale = frozenset[str]()
    if item["question_type"] == "knowledge-update":
        stale = frozenset(name for name in evidence if name.rpartition(":")[0] != newest)
    return Question(item["question"], evidence, item["question_type"], now, until, stale)


def _longmemeval_date(text: str) -> datetime:
    return datetime.strptime(text, "%Y/%m/%d (%a) %H:%M").replace(tzinfo=UTC)


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
