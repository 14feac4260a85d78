"""Makes the chats and the questions over them: `python -m tools.rerank.chats OUT.jsonl.gz`.

Three kinds, all from the templates beside this file and a seed: a user and an assistant over a long project, a user who
tells an assistant about their life in many sessions, and two people with names. A question knows its evidence because
the generator put it there. A line of the file is one chat with its turns and questions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

SEED = 0
PROJECTS, LIVES, PAIRS = 80, 70, 70
HERE = Path(__file__).parent
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_SLOT = re.compile(r"\{(\w+?)(\d?)\}")


@dataclass
class Frame:
    """A kind of fact: how it is said and asked for."""

    topic: str
    event: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    asked_changed: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


_MARKS = {"+": "said", "?": "asked", ">": "changed", ">?": "asked_changed", "!": "wanted", "~": "beside"}


def read_frames(path: Path) -> list[Frame]:
    """The frames of a file of templates."""
    found: list[Frame] = []
    for line in path.read_text("utf-8").splitlines():
        mark, _, rest = line.partition(" ")
        if mark == "=":
            topic, _, event = rest.partition(" | ")
            found.append(Frame(topic, event))
        elif mark in _MARKS:
            getattr(found[-1], _MARKS[mark]).append(rest)
    return found


def read_lists(path: Path) -> dict[str, list[str]]:
    """Lines of the form `name: one, two, three`."""
    lines = (line.partition(": ") for line in path.read_text("utf-8").splitlines() if line[:1] not in ("#", ""))
    return {name: values.split(", ") for name, _, values in lines}


def read_sections(path: Path) -> dict[str, list[str]]:
    """The lines below each `[name]`."""
    found: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


SLOTS = read_lists(HERE / "slots.txt")
SYNONYMS = read_lists(HERE / "synonyms.txt")
TOPICS = read_lists(HERE / "topics.txt")
ANSWERS = read_sections(HERE / "answers.txt")
LIFE = read_frames(HERE / "life.txt")
PROJECT = read_frames(HERE / "projects.txt")
PACKS = read_sections(HERE / "packs.txt")


class Filler:
    """Fills the slots of templates: a slot has one value throughout a fact, `{count2}` another than `{count}`."""

    def __init__(self, draw: random.Random, today: date, lists: dict[str, list[str]]) -> None:
        self.draw, self.today, self.lists, self.values = draw, today, lists, dict[str, str]()

    def later(self, today: date) -> None:
        """Go on with the same values on another day."""
        self.today = today
        self.values.pop("when", None)

    def fill(self, text: str) -> str:
        """The template with its slots filled."""
        done = _SLOT.sub(lambda match: self._value(match[1], match[2]), text)
        done = re.sub(r"\b([Aa]) (?=[aeiouAEIOU8]\w)(?!uni|one|use|Eur)", r"\1n ", done)
        done = re.sub(r"\bthe (the|our|your|a) ", r"\1 ", done)
        done = re.sub(r"\b([Ss]ince) on\b", r"\1", done)
        return done[0].upper() + done[1:]

    def _value(self, name: str, number: str) -> str:
        key = name + number
        if name in ("when", "date"):
            if key not in self.values or (name == "when" and number):
                self.values[key] = said_date(self.draw, self.today, past=name == "when")
            return self.values[key]
        if key not in self.values:
            if name in ("subject", "place", "measure", "value") and key in self.lists:
                return self.values.setdefault(key, self.draw.choice(self.lists[key]))
            if key in self.lists:  # a list of this very name, such as subject2
                return self.values.setdefault(key, self.draw.choice(self.lists[key]))
            taken = {value for other, value in self.values.items() if other.rstrip("123") == name}
            free = [value for value in self.lists[name] if value not in taken] or self.lists[name]
            self.values[key] = self.draw.choice(free)
        return self.values[key]


def said_date(draw: random.Random, today: date, *, past: bool) -> str:
    """A day before or after today, in one of the ways people say it."""
    days = draw.choice((1, 2, 3, 5, 7, 9, 12, 14, 18, 21, 30, 45))
    that = today - timedelta(days=days) if past else today + timedelta(days=days + draw.randrange(20))
    if past and draw.random() < 0.4:
        weeks = {1: "yesterday", 2: "two days ago", 7: "a week ago", 14: "two weeks ago", 21: "three weeks ago",
                 30: "a month ago", 45: "six weeks ago"}  # fmt: skip
        return weeks.get(days, f"last {that:%A}")
    month = MONTHS[that.month - 1]
    ending = "th" if 10 < that.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(that.day % 10, "th")
    forms = [f"{month} {that.day}{ending}", f"{month} {that.day}", f"the {that.day}{ending} of {month}"]
    if not past:
        return draw.choice([*forms, f"{month} {that.day}, {that.year}"])
    return draw.choice([*(f"on {form}" for form in forms), f"on {that.month}/{that.day}"])


class Chat:
    """One conversation under way."""

    def __init__(self, name: str, kind: str, draw: random.Random) -> None:
        self.name, self.kind, self.draw = name, kind, draw
        self.turns: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.today = date(2024, 1, 1) + timedelta(days=draw.randrange(300))
        self.session = -1

    def begin(self, days: int) -> None:
        """A new session, some days later."""
        self.session += 1
        self.today += timedelta(days=days)

    def say(self, speaker: str, text: str) -> int:
        """Add a turn and give its number."""
        self.turns.append({"session": self.session, "speaker": speaker, "text": text, "day": self.today.isoformat()})
        return len(self.turns) - 1

    def ask(self, text: str, evidence: Sequence[int], kind: str) -> None:
        """Add a question that these turns answer."""
        self.questions.append({"text": text, "evidence": sorted(set(evidence)), "kind": kind})


def reworded(draw: random.Random, text: str) -> str:
    """The text with some words exchanged for others that mean the same."""
    for word, others in SYNONYMS.items():
        if word in text and draw.random() < 0.3:
            text = re.sub(rf"\b{word}\b", draw.choice(others), text, count=1)
    return text


def longer(draw: random.Random, text: str, section: str, chance: float) -> str:
    """The text with a sentence or two around it that say nothing of interest."""
    while draw.random() < chance:
        more = draw.choice(ANSWERS[section])
        text = f"{text} {more}" if draw.random() < 0.6 or section != "more" else f"{more} {text}"
        chance /= 2
    return text


_PROPER = {"I", "I'm", "I've", *MONTHS} | {
    word for values in SLOTS.values() for value in values if (word := value.split()[0]) not in ("The", "A")
}


def lowered(text: str) -> str:
    """The text as it goes on after other words: the first letter small, unless it is a name."""
    first = re.split(r"[\s,:;'.]", text)[0]
    return text if first in _PROPER or first in ("I", "Dr") else text[0].lower() + text[1:]


def spoken(draw: random.Random, text: str) -> str:
    """The text as somebody might type it: casual words, no capitals or short forms, now and then."""
    text = longer(draw, reworded(draw, text), "more", 0.6)
    if draw.random() < 0.25:
        text = draw.choice(("So, ", "Okay, ", "Hey, ", "Well, ", "Just so you know, ", "Quick update: ")) + lowered(
            text
        )
    if draw.random() < 0.3:
        for long, short in (("I am ", "I'm "), ("it is ", "it's "), ("do not ", "don't "), ("I have ", "I've ")):
            text = text.replace(long, short)
    return text.lower() if draw.random() < 0.05 else text


def answer(draw: random.Random, topic: str, *, echo: str = "", advice: str = "", length: int = 0) -> str:
    """A long answer: an opening, a numbered or headed list, a closing; what the user said may be repeated."""
    topic = topic.rstrip("?.! ")
    fill = {"topic": topic, "Topic": topic[:1].upper() + topic[1:], "echo": echo.rstrip("?.! ")}
    count = length or draw.randint(3, 9)
    heads, bodies = draw.sample(ANSWERS["head"], count), draw.sample(ANSWERS["body"], count)
    style = draw.choice(("number", "bold", "plain"))
    lines = [draw.choice(ANSWERS["open"]).format(**fill)]
    if echo and draw.random() < 0.6:
        lines.append(draw.choice(ANSWERS["echo"]).format(**fill))
    place = draw.randrange(count)
    for n, (head, body) in enumerate(zip(heads, bodies, strict=True)):
        told = body.format(**fill)
        if advice and n == place:
            told += draw.choice((f" Above all, {advice}.", f" My advice here: {advice}.", f" In short: {advice}."))
        shown = {"number": f"{n + 1}. **{head}**: {told}", "bold": f"### {head}\n{told}", "plain": told}[style]
        lines.append(shown)
    lines.append(draw.choice(ANSWERS["close"]))
    return "\n\n".join(lines)


def as_echo(text: str) -> str:
    """What a user said, in the words of an assistant."""
    first = re.split(r"(?<=[.!?;])\s", text)[0].rstrip(".;!?")
    for old, new in ((r"\bI am\b", "you are"), (r"\bI'm\b", "you are"), (r"\bI have\b", "you have"),
                     (r"\bI\b", "you"), (r"\b[Mm]y\b", "your"), (r"\bme\b", "you"), (r"\bmine\b", "yours"),
                     (r"\b[Ww]e\b", "you"), (r"\b[Oo]ur\b", "your")):  # fmt: skip
        first = re.sub(old, new, first)
    return first[:1].lower() + first[1:]


@dataclass
class Told:
    """A fact that was told: its filler, and the turns it is in."""

    frame: Frame
    filler: Filler
    first: int
    reply: int
    second: int | None = None


def ask_about(chat: Chat, told: Told, facts: Sequence[Told], share: float = 1.0) -> None:
    """The questions over one fact: some of those that its template has."""
    draw, frame = chat.draw, told.frame
    if frame.topic == "advice":
        text = draw.choice(frame.asked)
        chat.ask(
            told.filler.fill(text),
            [turn for one in _alike(facts, told, text) for turn in (one.first, one.reply)],
            "advice",
        )
        return
    asked = draw.sample(frame.asked, min(len(frame.asked), 1 + (draw.random() < 0.4)))
    plain = [(text, "fact") for text in asked if draw.random() < share]
    changed = [(draw.choice(frame.asked_changed), "update")] if told.second is not None and frame.asked_changed else []
    wanted = [(draw.choice(frame.wanted), "preference")] if frame.wanted and draw.random() < share else []
    event = [("@" + frame.event, "event")] if frame.event and draw.random() < 0.35 * share else []
    for text, kind in (*plain, *changed, *wanted, *event):
        said = chat.turns[told.first]["text"].lower()
        named = (told.filler.values.get(match[1] + match[2]) for match in _SLOT.finditer(text))
        if kind == "fact" and any(value is None or value.lower() not in said for value in named):
            continue  # it asks for something that this wording left out
        question, turns = told.filler.fill(text.lstrip("@")), list[int]()
        if kind == "event":
            question = draw.choice(ANSWERS["asked of an event"]).format(e=lowered(question))
        for one in _alike(facts, told, text):
            turns.append(one.first)
            if one.second is not None and (kind in ("update", "event") or frame.topic == "never"):
                turns.append(one.second)
        if len(turns) < 5:
            question = reworded(draw, question)
            if chat.kind != "people":
                matter = lowered(told.filler.fill(frame.event)) if frame.event else "it"
                question = asked_longer(draw, question, kind, matter)
            chat.ask(question, turns, kind)


def _alike(facts: Sequence[Told], told: Told, text: str) -> list[Told]:
    """The facts of the same kind that a question fits as well: they are evidence too."""
    slots = [match[1] + match[2] for match in _SLOT.finditer(text)]
    same = [one for one in facts if one.frame is told.frame]
    values = [told.filler.values.get(slot) for slot in slots]
    return [one for one in same if [one.filler.values.get(slot) for slot in slots] == values]


_OPENINGS = (
    "Do you remember: ", "Remind me, ", "I forgot: ", "Quick question, ", "Can you tell me: ",
    "Back to what I told you: ",
)  # fmt: skip


def asked_longer(draw: random.Random, question: str, kind: str, about: str) -> str:
    """The question with some words around it, as people write to an assistant."""
    roll, section = draw.random(), "longer wants" if kind == "preference" else "asked longer"
    if roll < 0.15 and kind != "preference":
        return draw.choice(_OPENINGS) + lowered(question)
    if roll < 0.4:
        return draw.choice(ANSWERS[section]).format(q=lowered(question), Q=question, e=about)
    return question


def ask_about_two(chat: Chat, facts: Sequence[Told], count: int) -> None:
    """Questions that need two facts: which came first, how long in between, how many in all, how it went."""
    draw = chat.draw
    with_events = [one for one in facts if one.frame.event]
    for _ in range(count):
        one, two = draw.sample(with_events, 2)
        if one.frame is two.frame:
            continue
        first, second = (x.filler.fill(x.frame.event) for x in (one, two))
        first, second = first[0].lower() + first[1:], second[0].lower() + second[1:]
        form = draw.choice((
            "Which happened first, {a} or {b}?", "What came earlier: {a} or {b}?",
            "How many days lie between {a} and {b}?",
            "How many weeks passed from {a} to {b}?", "Did {a} come before {b}?", "How long after {a} was {b}?",
            "How many days did I have between {a} and {b}?", "In which order did these happen: {a}, {b}?",
            "I'm putting together a timeline. Was {b} before or after {a}?",
        ))  # fmt: skip
        turns = [x.first for told in (one, two) for x in _alike(facts, told, told.frame.event)]
        if len(turns) < 6:
            chat.ask(form.format(a=first, b=second), turns, "order")


def ask_for_all(chat: Chat, facts: Sequence[Told]) -> None:
    """Questions over all facts that share a person or a topic."""
    draw, groups = chat.draw, defaultdict[str, list[Told]](list)
    for one in facts:
        groups[one.frame.topic].append(one)
        for slot in ("name", "part"):
            if slot in one.filler.values and "{" + slot + "}" in "".join(one.frame.said):
                groups[f"{slot} {one.filler.values[slot]}"].append(one)
    for group, members in sorted(groups.items()):
        turns = [one.first for one in members if _names(chat, one, group)]
        if not 2 <= len(turns) <= 6:
            continue
        slot, _, value = group.partition(" ")
        if slot == "name":
            forms = (
                "What has {x} done for me?", "How did my dealings with {x} develop?", "When did I mention {x}?",
                "In which matters was {x} involved, in order?", "Can you sum up my contacts with {x} so far?",
                "Can you give me a summary of how {x} and I have worked together over time, with the key steps?",
            )  # fmt: skip
        elif slot == "part":
            forms = (
                "Can you summarise how the {x} has developed through our talks?", "What have I told you about the {x}?",
                "In which order did I bring up the aspects of the {x}?", "How did my work on the {x} go?",
                "How many times did I come to you with the {x}?",
                "Can you list the order in which I brought up different sides of the {x} throughout our conversations?",
                "Can you give me a comprehensive summary of everything around the {x}, with decisions and open points?",
            )  # fmt: skip
        else:
            value = TOPICS.get(group, [""])[0]
            if not value:
                continue
            forms = (
                "How many {x} did I mention?", "Can you list the {x} in order?", "Can you list all the {x}?",
                "Give me an overview of the {x}, please.", "Which {x} did I tell you about?",
            )  # fmt: skip
        question = draw.choice(forms).format(x=value)
        if "summar" in question and chat.kind != "people":  # the answers belong to it as well
            turns += [one.reply for one in members if one.first in turns]
        chat.ask(question, turns, "all")


def _names(chat: Chat, one: Told, group: str) -> bool:
    """Whether the turn speaks of what the group shares: a template may have left it out."""
    slot, _, value = group.partition(" ")
    return slot not in ("name", "part") or value.lower() in chat.turns[one.first]["text"].lower()


def pack_lists(lines: Sequence[str], project: str, draw: random.Random) -> dict[str, list[str]]:
    """The slots of a project."""
    values = dict(line.partition(": ")[::2] for line in lines)
    held = {name: found.split("; ") for name, found in values.items()}
    people = draw.sample(SLOTS["name"], 5)
    measures = [re.fullmatch(r"(.+?)(?: \((.+)\))? (\d+)-(\d+)", m) for m in held["measures"]]
    lists = {
        **SLOTS, "part": held["parts"], "tool": held["tools"], "role": held["roles"], "event": held["dates"],
        "trouble": held["troubles"], "advice": held["advice"], "project": [project], "name": people,
    }  # fmt: skip
    for n, match in enumerate(m for m in measures if m):
        lists[f"measure#{n}"] = [match[1]]
        low, high = int(match[3]), int(match[4])
        lists[f"value#{n}"] = [f"{draw.randint(low, high)} {match[2] or ''}".strip() for _ in range(12)]
    return lists


def project_chat(number: int, draw: random.Random) -> Chat:
    """A user and an assistant, some fifty rounds over one project."""
    chat = Chat(f"project {number}", "project", draw)
    project = list(PACKS)[number % len(PACKS)]
    lists = pack_lists(PACKS[project], project, draw)
    rounds = draw.randint(26, 48)
    facts: list[Told] = []
    chat.begin(0)
    while len(chat.turns) < 2 * rounds:
        if chat.turns and draw.random() < 0.16:
            chat.begin(draw.choice((1, 2, 3, 5, 8, 13)))
        roll = draw.random()
        open_ones = [
            one for one in facts if one.second is None and one.frame.changed and one.first < len(chat.turns) - 9
        ]
        if roll < 0.13 and open_ones:
            told = draw.choice(open_ones)
            told.filler.later(chat.today)
            told.second = chat.say("user", spoken(draw, told.filler.fill(draw.choice(told.frame.changed))))
            chat.say("assistant", answer(draw, _topic(draw, told.filler), echo=as_echo(chat.turns[-1]["text"])))
        elif roll < 0.24 and facts:
            chat.say("user", draw.choice(ANSWERS["filler"]))
            chat.say("assistant", answer(draw, _topic(draw, facts[-1].filler)))
        else:
            facts.append(tell_project(chat, draw, draw.choice(PROJECT), lists))
    for told in facts:
        ask_about(chat, told, facts, 0.5)
    ask_about_two(chat, facts, 5)
    ask_for_all(chat, facts)
    return _thinned(chat, 22)


def tell_project(chat: Chat, draw: random.Random, frame: Frame, lists: dict[str, list[str]]) -> Told:
    """A message about the project, and its answer."""
    filler = Filler(draw, chat.today, lists)
    if frame.topic == "measure":
        n = draw.choice([key[8:] for key in lists if key.startswith("measure#")])
        filler.lists = {**lists, "measure": lists[f"measure#{n}"], "value": lists[f"value#{n}"]}
    filler.values["list"] = ", ".join(draw.sample(lists["part"], min(5, len(lists["part"]))))
    said = spoken(draw, filler.fill(draw.choice(frame.said)))
    if draw.random() < 0.12:
        said += "\n\n" + pasted(draw, lists)
    first = chat.say("user", said)
    advice = draw.choice(lists["advice"]) if frame.topic == "advice" or draw.random() < 0.3 else ""
    reply = chat.say("assistant", answer(draw, _topic(draw, filler), echo=as_echo(said), advice=advice))
    return Told(frame, filler, first, reply)


def pasted(draw: random.Random, lists: dict[str, list[str]]) -> str:
    """Notes that a user pastes below a message."""
    parts = draw.sample(lists["part"], min(4, len(lists["part"])))
    if draw.random() < 0.4:
        names = [re.sub(r"\W+", "_", part) for part in parts]
        code = (f"def {name}(items):\n    return [item for item in items if item.{name}]" for name in names)
        return "Here is what I have:\n```python\n" + "\n".join(code) + "\n```"
    return "My notes so far:\n" + "\n".join(
        f"- {part}: {draw.choice(('open', 'half done', 'to be checked'))}" for part in parts
    )


def _topic(draw: random.Random, filler: Filler) -> str:
    part = filler.values.get("part")
    if part:
        return draw.choice((f"the {part}", f"working on the {part}", f"the next steps with the {part}"))
    return draw.choice(("planning your next steps", "your question", "this stage of your project"))


def life_chat(number: int, draw: random.Random) -> Chat:
    """A user who asks an assistant for this and that, and tells something about themselves in passing."""
    chat = Chat(f"life {number}", "life", draw)
    facts: list[Told] = []
    advised: list[tuple[int, int, str]] = []
    for frame in draw.sample(LIFE, draw.randint(26, 40)):
        chat.begin(draw.choice((0, 1, 2, 4, 7, 11)))
        told = tell_life(chat, draw, frame)
        facts.append(told)
        for _ in range(draw.choice((0, 1, 1, 2))):
            chat.say("user", draw.choice(ANSWERS["filler"]))
            chat.say("assistant", answer(draw, _request(draw, frame), length=draw.randint(3, 7)))
        if draw.random() < 0.3:
            advised.append(recommend(chat, draw))
        late = [one for one in facts if one.second is None and one.frame.changed and one is not told]
        if late and draw.random() < 0.4:
            again = draw.choice(late)
            chat.begin(draw.choice((2, 5, 9, 20)))
            again.filler.later(chat.today)
            again.second = tell_life(chat, draw, again.frame, again.filler).first
    for told in facts:
        ask_about(chat, told, facts, 0.6)
    for turn, reply, question in advised:
        chat.ask(question, [turn, reply], "advice")
    ask_about_two(chat, facts, 7)
    ask_for_all(chat, facts)
    return _thinned(chat, 26)


def tell_life(chat: Chat, draw: random.Random, frame: Frame, filler: Filler | None = None) -> Told:
    """A fact in passing: the message is about something else, which the assistant answers."""
    again, filler = filler is not None, filler or Filler(draw, chat.today, SLOTS)
    fact = filler.fill(draw.choice(frame.changed if again else frame.said))
    other = frame if draw.random() < 0.7 else draw.choice(LIFE)
    request = Filler(draw, chat.today, SLOTS).fill(draw.choice(other.beside))
    roll = draw.random()
    by_the_way = draw.choice(
        ("By the way, ", "Oh, and ", "Speaking of which, ", "Unrelated, but ", "I should add that ")
    )
    lower = lowered(fact)
    if roll < 0.4:
        text = f"{request} {by_the_way}{lower}"
    elif roll < 0.75:
        text = f"{fact} {request}"
    else:
        more = Filler(draw, chat.today, SLOTS).fill(draw.choice(draw.choice(LIFE).beside))
        text = f"{more} {by_the_way}{lower} {request}"
    first = chat.say("user", spoken(draw, text))
    reply = chat.say("assistant", answer(draw, _request(draw, other), echo=as_echo(fact), length=draw.randint(3, 7)))
    return Told(frame, filler, first, reply)


def _request(draw: random.Random, frame: Frame) -> str:
    asked = Filler(draw, date(2024, 1, 1), SLOTS).fill(draw.choice(frame.beside)).rstrip("?.")
    return (
        f"the question of {asked[0].lower()}{asked[1:]}"
        if draw.random() < 0.3
        else f"{frame.topic} and what goes with it"
    )


KINDS = {
    "café": ("Blue Kettle", "Corner Crumb", "Café Amsel", "The Quiet Spoon", "Mondlicht"),
    "guest house": ("Villa Tern", "The Crooked Gate", "Casa Azul", "Harbour Rest", "Pension Lerche"),
    "podcast": ("Deep Water Radio", "Nine to Never", "The Slow Desk", "Maps & Myths", "Small Talk, Big Questions"),
    "app": ("Tallyho", "Plantlog", "Budgetbee", "Trailmark", "Nightpage"),
    "book": ("The Patient Gardener", "Bread Alone", "Walking Uphill", "How Rooms Work", "The Second Draft"),
    "trail": ("Heron Loop", "the Old Salt Path", "Copper Ridge", "Nine Bridges Way", "Fox Hollow"),
    "shop": ("Thread & Thimble", "Nagel und Sohn", "The Lamp Doctor", "Second Wind Cycles", "Paper Moon"),
}
TRAITS = (
    "is open on Mondays", "allows dogs", "is the cheapest of them", "has a view of the river", "is best for beginners",
    "closes at six", "was founded by two sisters", "needs no registration", "is quiet in the morning",
    "has step-free access", "takes twenty minutes", "gives a discount to students", "is run by volunteers",
    "has its own workshop", "works offline",
)  # fmt: skip


def recommend(chat: Chat, draw: random.Random) -> tuple[int, int, str]:
    """The assistant recommends things with names; asked later by a trait or a name."""
    kind = draw.choice(list(KINDS))
    names, traits = draw.sample(KINDS[kind], 4), draw.sample(TRAITS, 4)
    asked = (
        f"Can you recommend a {kind} to me?",
        f"I am looking for a good {kind}, any ideas?",
        f"Which {kind} would suit me?",
    )
    turn = chat.say("user", draw.choice(asked).replace("a app", "an app"))
    lines = [
        f"{n + 1}. **{name}**: this {kind} {trait}." for n, (name, trait) in enumerate(zip(names, traits, strict=True))
    ]
    body = draw.sample(ANSWERS["body"], 2)
    text = "\n".join([f"Here are some options:\n\n{body[0]}".format(topic=kind), *lines, body[1].format(topic=kind)])
    reply = chat.say("assistant", text)
    pick = draw.randrange(4)
    question = draw.choice((
        f"What was the name of the {kind} you recommended that {traits[pick]}?",
        f"You once gave me a list of suggestions: which one {traits[pick]}?",
        f"What did you say about {names[pick]}?", f"Which {kind} did you suggest to me, the one that {traits[pick]}?",
    ))  # fmt: skip
    return turn, reply, question


def people_chat(number: int, draw: random.Random) -> Chat:
    """Two people with names who tell each other what is new."""
    chat = Chat(f"people {number}", "people", draw)
    pair = draw.sample(SLOTS["name"], 2)
    lists = {**SLOTS, "name": [name for name in SLOTS["name"] if name not in pair]}
    frames = [frame for frame in LIFE if frame.topic not in ("rules", "seats")]
    facts: list[tuple[str, Told]] = []
    for _ in range(draw.randint(9, 15)):
        chat.begin(draw.choice((2, 5, 8, 13, 20)))
        one, other = draw.sample(pair, 2)
        chat.say(one, draw.choice(ANSWERS["hello"]).format(other=other))
        chat.say(other, draw.choice(ANSWERS["chat"]))
        for frame in draw.sample(frames, draw.randint(2, 4)):
            one, other = draw.sample(pair, 2)
            late = [t for who, t in facts if who == one and t.second is None and t.frame.changed]
            if late and draw.random() < 0.2:
                told = draw.choice(late)
                told.filler.later(chat.today)
                told.second = chat.say(one, told.filler.fill(draw.choice(told.frame.changed)))
            else:
                facts.append((one, tell_person(chat, frame, one, other, lists)))
            chat.say(other, draw.choice(ANSWERS["react"]))
            if draw.random() < 0.6:
                chat.say(one, draw.choice(ANSWERS["chat"]))
        chat.say(other, draw.choice(ANSWERS["bye"]).format(other=one))
    for who, told in facts:
        before = len(chat.questions)
        ask_about(chat, told, [other for name, other in facts if name == who], 0.8)
        kept = [q for q in chat.questions[before:] if q["kind"] != "preference"]
        chat.questions[before:] = [{**q, "text": about(q["text"], who)} for q in kept]
    for who in pair:
        mine, before = [told for name, told in facts if name == who], len(chat.questions)
        if len(mine) > 2:
            ask_about_two(chat, mine, 2)
            ask_for_all(chat, mine)
        chat.questions[before:] = [{**q, "text": about(q["text"], who)} for q in chat.questions[before:]]
    return _thinned(chat, 24)


def tell_person(chat: Chat, frame: Frame, one: str, other: str, lists: dict[str, list[str]]) -> Told:
    """A fact in one turn; a part of it may follow after a question of the other person."""
    draw = chat.draw
    filler = Filler(draw, chat.today, lists)
    fact = filler.fill(draw.choice(frame.said))
    if draw.random() < 0.3:
        chat.say(other, draw.choice(("What's new with you?", "And you? Anything exciting?", "How was your week?",
                                     "You look happy, what happened?")))  # fmt: skip
    end = draw.choice(("", "", " I still can't believe it.", " It feels good.", " What do you think?"))
    first = chat.say(one, longer(draw, reworded(draw, fact), "more people", 0.6) + end)
    return Told(frame, filler, first, first)


_PERSONS = (
    (r"\bdid I\b", "did {}"),
    (r"\bdo I\b", "does {}"),
    (r"\bhave I\b", "has {}"),
    (r"\bHave I\b", "Has {}"),
    (r"\bDid I\b", "Did {}"),
    (r"\bam I\b", "is {}"),
    (r"\bAm I\b", "Is {}"),
    (r"\bwas I\b", "was {}"),
    (r"\bhad I\b", "had {}"),
    (r"\bDo I\b", "Does {}"),
    (r"\bmust I\b", "must {}"),
    (r"\bcan I\b", "can {}"),
    (r"\bI have\b", "{} has"),
    (r"\bI had\b", "{} had"),
    (r"\bI am\b", "{} is"),
    (r"\bwe\b", "they"),
    (r"\b[Ww]hich happened\b", "Which happened"),
    (r"\bmine\b", "{}'s"),
    (r"\b[Mm]y\b", "{}'s"),
    (r"\b[Oo]ur\b", "{}'s"),
    (r"\bme\b", "{}"),
    (r"\bI\b", "{}"),
)


def about(question: str, who: str) -> str:
    """A question of the first person, asked about somebody with a name."""
    for old, new in _PERSONS:
        question = re.sub(old, new.format(who), question)
    named = [match.start() for match in re.finditer(rf"\b{who}\b(?!'s)", question)]
    for start in reversed(named[1:]):
        question = question[:start] + "they" + question[start + len(who) :]
    head, found, rest = question.partition(who)
    question = head + found + rest.replace(f"{who}'s", "their")
    if who not in question:
        question = f"{question.rstrip('?.')}, according to {who}?"
    return question[0].upper() + question[1:]


def _thinned(chat: Chat, most: int) -> Chat:
    """The chat with at most so many questions, each text once."""
    once = {q["text"]: q for q in chat.questions}
    kept = chat.draw.sample(sorted(once), min(most, len(once)))
    chat.questions = [once[text] for text in kept]
    return chat


def all_chats() -> Iterator[Chat]:
    """All chats; each has a seed of its own."""
    for make, count in ((project_chat, PROJECTS), (life_chat, LIVES), (people_chat, PAIRS)):
        for number in range(count):
            yield make(number, random.Random(f"{SEED} {make.__name__} {number}"))


def main() -> None:
    """Write one line a chat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out, counts = parser.parse_args().out, [0, 0, 0]
    # mtime=0, so that the same chats make the same file
    with out.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        for chat in all_chats():
            held = {"name": chat.name, "kind": chat.kind, "turns": chat.turns, "questions": chat.questions}
            file.write(json.dumps(held, ensure_ascii=False).encode() + b"\n")
            counts = [n + m for n, m in zip(counts, (1, len(chat.turns), len(chat.questions)), strict=True)]
    print("{} chats, {} turns, {} questions".format(*counts))  # noqa: T201


if __name__ == "__main__":
    main()
