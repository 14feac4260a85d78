"""Facts, summaries and compaction with a real model on this machine: `python -m benchmarks.llm`.

Ten people with three short dialogues each. Measured is how much of what they said is kept, and how much of what is
kept is right. `--minutes` bounds the run, a third of it for each step; `--model` takes another GGUF file.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
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
from loom.core.checkpoint import Shown
from loom.core.message import Message
from loom.engine.open import open_memory
from loom.memory.extract.llm import LlmExtractor
from loom.memory.extract.rules import RuleExtractor
from loom.protocols.extractor import Extractor
from loom.protocols.model import ModelSettings
from loom.providers.models.local import LocalModel
from loom.session.compaction.ask import ask_model
from loom.session.compaction.writing import SUMMARY, Writer
from loom.session.session import Session

DATA = Path(__file__).with_name("llm_dialogues.json")
WINDOW = 4096
MAX_FACTS_OUTPUT = 400
MAX_SUMMARY_OUTPUT = 160
COMPACTION = {
    "trigger": {"type": "disabled"},
    "retain": {"type": "messages", "count": 2},
    "strategy": "summarize",
    "target": 0.9,  # the dialogues are short: at half of them no summary has room
}


@dataclass
class Share:
    """So many of so many."""

    of: int = 0
    right: int = 0

    def add(self, found: list[bool]) -> None:
        self.of += len(found)
        self.right += sum(found)

    def __str__(self) -> str:
        return f"{self.right} of {self.of} ({100 * self.right / self.of:.0f} %)" if self.of else "nothing"


@dataclass
class Report:
    """What was measured."""

    people: dict[str, int] = field(default_factory=dict[str, int])
    recall: Share = field(default_factory=Share)
    precision: Share = field(default_factory=Share)
    stale: Share = field(default_factory=Share)
    in_summary: Share = field(default_factory=Share)
    in_compaction: Share = field(default_factory=Share)
    by_expand: Share = field(default_factory=Share)
    summarized: Share = field(default_factory=Share)
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    facts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


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
    report.recall.add([any(same_fact(gold, fact, name) for fact in facts) for gold in person["facts"]])
    report.precision.add([any(same_fact(gold, fact, name) for gold in person["facts"]) for fact in facts])
    report.stale.add([not any(same_fact(gold, fact, name) for fact in facts) for gold in person["stale"]])
    report.facts[name] = [f"{fact.subject} | {fact.predicate} | {fact.object}" for fact in facts]


async def summarize(person: Any, model: LocalModel, report: Report) -> None:
    """Have the model summarise each dialogue; a fact counts where a dialogue of the person states it."""
    for dialogue in person["dialogues"]:
        history = [Shown(str(i), message) for i, message in enumerate(messages_of([dialogue]))]
        writer = Writer(ask_model(model), max_output=MAX_SUMMARY_OUTPUT, strategy="summarize")
        with Timer(report, "summary of a dialogue"):
            text = await writer.write(history, SUMMARY)
        said = " ".join(item.message.text for item in history)
        report.in_summary.add([told(gold, text) for gold in person["facts"] if told(gold, said)])
        report.texts.setdefault(f"{person['id']} summaries", []).append(text)


async def compact(person: Any, model: LocalModel, report: Report) -> None:
    """Put the three dialogues into one session and compact it."""
    context = Context("benchmark")
    for message in messages_of(person["dialogues"]):
        context.convo.add(MessageEntry(message))
    settings = ModelSettings(temperature=0.0)
    session = Session(model=model, context=context, config={"compaction": COMPACTION, "settings": settings})
    with Timer(report, "compaction of three dialogues"):
        done = await session.compact()
    shown = " ".join(message.text for message in session.messages)
    behind = " ".join(logged.message.text for logged in session.expand(done.id))
    covered = [gold for gold in person["facts"] if told(gold, behind)]
    report.summarized.add([done.strategy == "summarize"])
    report.in_compaction.add([told(gold, shown) for gold in covered])
    originals = [message.text for message in messages_of(person["dialogues"])][:-2]
    report.by_expand.add([text in behind for text in originals])
    report.texts[f"{person['id']} compaction"] = [shown]
    report.tokens[person["id"]] = [done.tokens_before, done.tokens_after]


def messages_of(dialogues: list[Any]) -> list[Message]:
    return [
        message
        for dialogue in dialogues
        for user, assistant in dialogue["turns"]
        for message in (Message.user(user), Message.assistant(assistant))
    ]


async def run(path: Path, *, threads: int, minutes: float, progress: Progress) -> Report:
    report = Report()
    people = json.loads(DATA.read_text(encoding="utf-8"))
    model = LocalModel(path, threads=threads, context_window=WINDOW)
    asking = LlmExtractor(model, max_output=MAX_FACTS_OUTPUT)
    try:
        with tempfile.TemporaryDirectory() as folder:
            steps: dict[str, Callable[[Any], Awaitable[None]]] = {
                "facts": lambda person: extract(person, asking, Path(folder), report),
                "summaries": lambda person: summarize(person, model, report),
                "compaction": lambda person: compact(person, model, report),
            }
            for name, step in steps.items():
                task = progress.add_task(name, total=len(people))
                until = time.perf_counter() + 20 * minutes
                for person in people:
                    if time.perf_counter() > until:
                        break
                    await step(person)
                    report.people[name] = report.people.get(name, 0) + 1
                    progress.advance(task)
    finally:
        await model.aclose()
    return report


async def floor() -> Report:
    """The facts that plain rules find, without a model."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for person in json.loads(DATA.read_text(encoding="utf-8")):
            await extract(person, RuleExtractor(), Path(folder), report)
    return report


def show(report: Report, console: Console) -> None:
    console.print(f"dialogues: { {name: 3 * people for name, people in report.people.items()} }")
    for what, share in (
        ("gold facts found", report.recall),
        ("facts believed that are gold", report.precision),
        ("values given up that are no longer believed", report.stale),
        ("gold facts kept in the summary of their dialogue", report.in_summary),
        ("gold facts kept by a compaction, as shown", report.in_compaction),
        ("messages that expand() gives back whole", report.by_expand),
        ("compactions that the model wrote", report.summarized),
    ):
        console.print(f"| {what} | {share} |")
    for what, (wall, cpu, count) in report.seconds.items():
        console.print(f"| {what} | {wall / count:.1f} s, {cpu / count:.1f} s of CPU |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; the 1.5B model if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin with no further person after a third of it, in each step"
    )
    parser.add_argument("--report", type=Path, help="where to write every fact and summary as JSON")
    asked = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        path = asked.model or weights(progress)
        report = anyio.run(lambda: run(path, threads=asked.threads, minutes=asked.minutes, progress=progress))
    rules = anyio.run(floor)
    console.print(f"the rules alone, 30 dialogues: {rules.recall} found; {rules.precision} believed are gold")
    show(report, console)
    if asked.report:
        asked.report.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
