"""Facts, summaries and compaction with a real model on this machine: `python -m benchmarks.llm`.

Ten people with three short dialogues each. Measured is how much of what they said is kept, and how much of what is
kept is right. The prompts were improved while looking at three of the people; those stand apart from the others.
`--minutes` bounds the run, the same for each step; `--model` takes another GGUF file.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.llm_weights import weights
from loom.context.context import Context
from loom.context.entry import MessageEntry
from loom.core.log import Shown
from loom.core.message import Message
from loom.engine.open import open_memory
from loom.errors import BadResponse
from loom.memory._write.extract_llm import LlmExtractor
from loom.memory._write.extract_rules import RuleExtractor
from loom.protocols.extractor import Extractor
from loom.protocols.model import Model, ModelRequest, ModelResponse, ModelSettings
from loom.providers.models.local import LocalModel
from loom.session.compaction.summarize import SUMMARY, Ask, SummaryWriter
from loom.session.session import Session

DATA = Path(__file__).with_name("llm_dialogues.json")
DEVELOPMENT = frozenset({"rosa", "henrik", "amara"})
"""The people whose dialogues were looked at while the prompts were written."""
STEPS = ("facts", "summaries", "compaction")
WINDOW = 4096
MAX_FACTS_OUTPUT = 600
MAX_SUMMARY_OUTPUT = 160
COMPACTION = {
    "trigger": {"type": "disabled"},
    "retain": {"type": "messages", "count": 2},
    "strategy": "summarize",
    "target": 0.7,  # the dialogues are short: at half of them no summary has room
}


FOUND = "gold facts found"
RIGHT = "facts believed that are gold"
GIVEN_UP = "values given up that are no longer believed"
IN_SUMMARY = "gold facts kept in the summary of their dialogue"
IN_COMPACTION = "gold facts kept by a compaction, as shown"
EXPANDED = "messages that expand() gives back whole"
WRITTEN = "compactions that the model wrote"


@dataclass
class Share:
    """So many of so many."""

    of: int = 0
    right: int = 0

    def __str__(self) -> str:
        return f"{self.right} of {self.of} ({100 * self.right / self.of:.0f} %)" if self.of else "nothing"


@dataclass
class Report:
    """What was measured: each share by person, the time of each step, and every text to look at."""

    shares: dict[str, dict[str, Share]] = field(default_factory=dict[str, dict[str, Share]])
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    facts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, what: str, name: str, found: list[bool]) -> None:
        share = self.shares.setdefault(what, {}).setdefault(name, Share())
        share.of += len(found)
        share.right += sum(found)

    def total(self, what: str, *, development: bool | None = None) -> Share:
        """The share over the people that were looked at, over the others, or over all."""
        shares = [
            share
            for name, share in self.shares.get(what, {}).items()
            if development is None or (name in DEVELOPMENT) is development
        ]
        return Share(sum(share.of for share in shares), sum(share.right for share in shares))


class Timer:
    """Adds the wall and CPU seconds of a block to a report."""

    def __init__(self, report: Report, what: str) -> None:
        self.spent = report.seconds.setdefault(what, [0.0, 0.0, 0])

    def __enter__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.spent[0] += time.perf_counter() - self.began[0]
        self.spent[1] += time.process_time() - self.began[1]
        self.spent[2] += 1


def people() -> list[Any]:
    return json.loads(DATA.read_text(encoding="utf-8"))


def told(gold: str, text: str) -> bool:
    """Whether a text holds every word of a gold fact (`who: word other|word`), in any of its spellings."""
    text = text.casefold()
    return all(any(form in text for form in word.split("|")) for word in gold.partition(": ")[2].split())


def same_fact(gold: str, fact: Any, name: str) -> bool:
    """Whether an extracted fact says what a gold fact says, about the same one."""
    who, subject = gold.partition(":")[0], fact.subject.casefold()
    about = subject in {"user", name} if who == "user" else who in subject
    return about and told(gold, f"{fact.predicate} {fact.object}".replace("_", " "))


async def extract(person: Any, extractor: Extractor, folder: Path, report: Report) -> None:
    """Remember what the person said, and compare what is believed at the end with the gold facts."""
    name = person["id"]
    async with open_memory(f"sqlite:{folder / name}.db", extractor=extractor) as memory:
        for number, dialogue in enumerate(person["dialogues"]):
            at = datetime.fromisoformat(dialogue["on"]).replace(tzinfo=UTC)
            said = [Message.user(user) for user, _ in dialogue["turns"]]
            with Timer(report, "facts of a dialogue"):
                await memory.remember(said, user_id=name, session_id=f"s{number}", at=at)
                await memory.metabolize(user_id=name)
        facts = await memory.facts(user_id=name)
    report.add(FOUND, name, [any(same_fact(gold, fact, name) for fact in facts) for gold in person["facts"]])
    report.add(RIGHT, name, [any(same_fact(gold, fact, name) for gold in person["facts"]) for fact in facts])
    report.add(GIVEN_UP, name, [not any(same_fact(gold, fact, name) for fact in facts) for gold in person["stale"]])
    report.facts[name] = [f"{fact.subject} | {fact.predicate} | {fact.object}" for fact in facts]


def greedy(model: Model) -> Ask:
    """Asks a model without chance, so that a second run writes the same."""

    async def ask(history: Sequence[Shown], instruction: str, *, max_output: int) -> ModelResponse:
        messages = (*(item.message for item in history), Message.user(instruction))
        settings = ModelSettings(max_output=max_output, temperature=0.0)
        return await model.complete(ModelRequest(messages=messages, settings=settings))

    return ask


async def summarize(person: Any, model: Model, report: Report) -> None:
    """Have the model summarise each dialogue; a fact counts where a dialogue of the person states it."""
    for dialogue in person["dialogues"]:
        history = [Shown(str(i), message) for i, message in enumerate(messages_of([dialogue]))]
        writer = SummaryWriter(greedy(model), max_output=MAX_SUMMARY_OUTPUT, strategy="summarize")
        with Timer(report, "summary of a dialogue"):
            try:
                text = await writer.write(history, SUMMARY)
            except BadResponse as error:
                text = f"nothing: {error}"
        said = " ".join(item.message.text for item in history)
        report.add(IN_SUMMARY, person["id"], [told(gold, text) for gold in person["facts"] if told(gold, said)])
        report.texts.setdefault(f"{person['id']} summaries", []).append(text)


async def compact(person: Any, model: Model, report: Report) -> None:
    """Put the three dialogues into one session and compact it."""
    context = Context("benchmark")
    for message in messages_of(person["dialogues"]):
        context.convo.add(MessageEntry(message))
    settings = ModelSettings(temperature=0.0)
    session = Session(model=model, context=context, config={"compaction": COMPACTION, "settings": settings})
    with Timer(report, "compaction of three dialogues"):
        done = await session.compact()
    assert done is not None, "there was nothing to compact"
    shown = " ".join(message.text for message in session.messages)
    behind = " ".join(logged.message.text for logged in session.expand(done.id))
    covered = [gold for gold in person["facts"] if told(gold, behind)]
    name = person["id"]
    report.add(WRITTEN, name, [done.strategy == "summarize"])
    report.add(IN_COMPACTION, name, [told(gold, shown) for gold in covered])
    originals = [message.text for message in messages_of(person["dialogues"])][:-2]
    report.add(EXPANDED, name, [text in behind for text in originals])
    report.texts[f"{name} compaction"] = [shown]
    report.tokens[name] = [done.tokens_before, done.tokens_after]


def messages_of(dialogues: list[Any]) -> list[Message]:
    return [
        message
        for dialogue in dialogues
        for user, assistant in dialogue["turns"]
        for message in (Message.user(user), Message.assistant(assistant))
    ]


async def run(
    model: Model, report: Report, *, steps: Sequence[str], minutes: float, done: Callable[[str], None]
) -> None:
    """Measure step by step; `done` is called with the name of the step after each person."""
    asking = LlmExtractor(model, max_output=MAX_FACTS_OUTPUT)
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[Any], Awaitable[None]]] = {
            "facts": lambda person: extract(person, asking, Path(folder), report),
            "summaries": lambda person: summarize(person, model, report),
            "compaction": lambda person: compact(person, model, report),
        }
        async with aclosing(model):
            for name in steps:
                until = time.perf_counter() + 60 * minutes / len(steps)
                for person in people():
                    if time.perf_counter() > until:
                        break
                    await measures[name](person)
                    done(name)


async def floor() -> Report:
    """The facts that plain rules find, without a model."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for person in people():
            await extract(person, RuleExtractor(), Path(folder), report)
    return report


def show(report: Report, console: Console) -> None:
    console.print("| what | people | development | the others | all |")
    for what, by_person in report.shares.items():
        apart = f"{report.total(what, development=True)} | {report.total(what, development=False)}"
        console.print(f"| {what} | {len(by_person)} | {apart} | {report.total(what)} |", soft_wrap=True)
    for what, (wall, cpu, count) in report.seconds.items():
        console.print(f"| {what} | {wall / count:.1f} s, {cpu / count:.1f} s of CPU |")


def save(report: Report, path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; the 1.5B model if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="what to measure; all if not given")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="shared by the steps; a step whose share is over begins no person"
    )
    parser.add_argument("--report", type=Path, help="where to write every fact and summary as JSON, person by person")
    asked = parser.parse_args()
    console = Console()
    report = Report()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        path = asked.model or weights(progress)
        task = progress.add_task(asked.steps[0], total=len(asked.steps) * len(people()))

        def done(step: str) -> None:
            progress.update(task, description=step, advance=1)
            save(report, asked.report)

        model = LocalModel(path, threads=asked.threads, context_window=WINDOW)
        anyio.run(lambda: run(model, report, steps=asked.steps, minutes=asked.minutes, done=done))
    rules = anyio.run(floor)
    console.print(f"the rules alone: {rules.total(FOUND)} found; {rules.total(RIGHT)} believed are gold")
    show(report, console)


if __name__ == "__main__":
    main()
