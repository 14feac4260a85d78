"""The scenes of `loom demo` about agents: users, facts, recall, compaction, checkpoints and costs, and their script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.text import Text

from loom.agent.agent import Agent
from loom.catalog import find_model
from loom.cli.demo import MODEL, PROVIDER, DemoScene, dollars, table
from loom.context.cache.replay import simulate
from loom.core.event import CompactionEnd, Event
from loom.core.message import Part, TextPart, ToolCallPart, Usage
from loom.protocols.model import ModelRequest, ModelResponse
from loom.testing import FakeClock, ScriptedModel
from loom.tokens import EstimateCounter
from loom.tools.function import tool

if TYPE_CHECKING:
    from loom.agent.result import Result
    from loom.core.checkpoint import Compaction
    from loom.core.record import Fact
    from loom.memory.memory import Memory
    from loom.memory.values import Recalled
    from loom.session.session import Session

BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
_KNOWN = timedelta(days=3)
"""When, after the beginning, the demo asks what was true and what was believed."""


class Provider:
    """A scripted model that reports usage as the real provider would: by its cache rules, for these requests."""

    def __init__(self) -> None:
        self.model = ScriptedModel(self._answer, name=f"{PROVIDER}:{MODEL}")
        self._script: list[str | Part] = []
        self._sent: list[Mapping[str, Any]] = []

    def expect(self, answers: Iterable[str | Part]) -> None:
        """Give these answers next."""
        self._script += answers

    def expire(self) -> None:
        """Empty the cache, as the provider does after minutes."""
        self._sent.clear()

    def _answer(self, request: ModelRequest) -> ModelResponse:
        assert request.rendered is not None
        self._sent.append(request.rendered.body)
        step = simulate(self._sent, PROVIDER, MODEL).steps[-1]
        answer = self._script.pop(0)
        part = TextPart(answer) if isinstance(answer, str) else answer
        output = EstimateCounter().count_part(part)
        usage = Usage(input=step.tokens, output=output, cache_read=step.read, cache_write=step.write)
        stop = "tool" if isinstance(part, ToolCallPart) else "end"
        return ModelResponse(parts=(part,), stop=stop, usage=usage, model=self.model.name)


@dataclass(frozen=True, slots=True)
class Spent:
    """One row of the bill."""

    what: str
    usage: Usage


class Story:
    """The agent of the demo, its clock, and its bill."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(BEGIN)
        self.provider = Provider()
        self.bill: list[Spent] = []
        self._file = folder / "travel.db"

    def agent(self) -> Agent:
        """An agent on the one file that holds memory and sessions."""
        memory = {"backend": "sqlite", "path": str(self._file), "embedder": "wordllama"}
        look_up = tool(description="The trains of a route, such as Berlin-Vienna.")(timetable)
        return Agent(handbook(), model=self.provider.model, memory=memory, tools=[look_up], clock=self.clock)

    def wait_for(self, line: Line) -> None:
        """Let time pass until a line is sent: minutes, or days after which the provider's cache is cold."""
        passed = BEGIN + timedelta(days=line.day) - self.clock.now()
        if passed > timedelta(0):
            self.clock.advance(passed)
            self.provider.expire()
        self.clock.advance(timedelta(minutes=1))
        self.provider.expect(line.answers)

    async def run(self, agent: Agent, line: Line, **options: Any) -> Result:
        """Send a line, and put its cost on the bill."""
        self.wait_for(line)
        say = agent.resume if options else agent.run
        result = await say(line.said, user_id=line.user, session_id=line.session, **options)
        self.bill.append(Spent(f"{line.user}, {line.session}", result.usage))
        return result


async def agent_scenes(folder: Path) -> AsyncIterator[DemoScene]:
    """The scenes, in order."""
    story = Story(folder)
    async with story.agent() as agent:
        assert agent.memory is not None
        yield await _meeting(story, agent)
        yield await _facts(agent.memory)
        yield await _recall(story, agent)
        for line in TRIP:
            await story.run(agent, line)
        yield await _compaction(story, await agent.session(user_id="alice", session_id="trip"))
    async with story.agent() as agent:  # as another process would
        trip = await agent.session(user_id="alice", session_id="trip")
        yield await _checkpoints(story, agent, trip)
        yield _bill(story, trip)


async def _meeting(story: Story, agent: Agent) -> DemoScene:
    said = [(line, await story.run(agent, line)) for line in MEETING]
    columns = ("day", "user", "says", "answer", "tokens", "cached", "cost")
    rows = [
        (
            _day(BEGIN + timedelta(days=line.day)),
            line.user,
            line.said,
            result.text,
            f"{result.usage.input:,}",
            f"{result.cache_share:.0%}",
            dollars(result.cost),
        )
        for line, result in said
    ]
    data = [
        {"user": line.user, "session": line.session, "said": line.said, "answer": result.text, "usd": result.cost}
        | {"usage": result.usage}
        for line, result in said
    ]
    return DemoScene(
        "One agent, two users, several sessions",
        'Agent("...", memory="sqlite:./travel.db") keeps each user\'s memory and conversations in one file. '
        f"The answers are scripted, so no key is needed; tokens, cache and prices are those of {MODEL} for the "
        "requests that would be sent. A new day finds the provider's cache empty, so its first request writes it.",
        table(columns, rows, right=columns[-3:]),
        data,
    )


async def _facts(memory: Memory) -> DemoScene:
    then = BEGIN + _KNOWN
    ever = await memory.facts(user_id="alice", predicate="lives_in", history=True)
    now = await memory.facts(user_id="alice", predicate="lives_in")
    past = await memory.facts(user_id="alice", predicate="lives_in", at=then)
    believed = await memory.facts(user_id="alice", predicate="lives_in", known_at=then)
    of_bob = await memory.facts(user_id="bob", predicate="lives_in")
    asked = {
        "Where does Alice live?": _objects(now),
        f"Where did she live on {then.day} {then:%B}? (at=)": _objects(past),
        f"What was believed on {then.day} {then:%B}? (known_at=)": _objects(believed),
        "And Bob?": _objects(of_bob),
    }
    columns = ("fact", "true from", "true until", "believed from", "believed until")
    rows = [(f.text, *map(_day, (f.valid_from, f.valid_until, f.recorded_at, f.superseded_at))) for f in ever]
    return DemoScene(
        "A fact changes, and its history stays",
        "Facts were extracted from the messages, here by plain rules (a real model finds more). Each has two time "
        "axes: when it was true, and when it was believed. The move retired an old fact; nothing was overwritten.",
        Group(table(columns, rows), Text(), table(("question", "answer"), asked.items())),
        {"facts": [dict(zip(columns, row, strict=True)) for row in rows], "asked": asked},
    )


async def _recall(story: Story, agent: Agent) -> DemoScene:
    alice, bob = [await story.run(agent, line) for line in ASKING]
    hits = _hits(alice.recalled)
    shown = story.provider.model.requests[-2].messages[-1].parts[-1]
    assert isinstance(shown, TextPart)
    rows = [(hit["text"], f"{hit['score']:.2f}", _strongest(hit["why"])) for hit in hits]
    return DemoScene(
        "Recall says why",
        f"{ASKING[0].said!r}, asks Alice in a new session. This was found for her, with the signals that added most to "
        "its score; below it is what the model was shown, after the conversation, where it costs no cached byte. "
        "Bob asks the same; only Bob's own memory was searched, and nothing of hers is shown.",
        Group(
            table(("found for Alice", "score", "of which"), rows, right=("score",)),
            Text(),
            Text(shown.text, style="cyan"),
            Text(),
            table(("found for Bob",), [(hit["text"],) for hit in _hits(bob.recalled)]),
            Text(),
            Text(
                f"Of the {alice.usage.input:,} tokens of Alice's request {alice.usage.cache_write:,} went into the "
                "cache; the memory after them did not."
            ),
        ),
        {"hits": hits, "shown": shown.text, "others": [hit["text"] for hit in _hits(bob.recalled)]},
    )


async def _compaction(story: Story, session: Session) -> DemoScene:
    before = session.messages
    planned = await session.compact(dry_run=True)
    done, usage = await _compacted(story, session)
    data: dict[str, Any] = {
        "plan": {"saves": planned.saves, "calls": planned.calls, "rewritten": planned.rewritten_tokens},
        "strategy": done.strategy,
        "tokens": {"before": done.tokens_before, "after": done.tokens_after},
        "messages": {"before": len(before), "after": len(session.messages), "in_log": len(session.log)},
        "facts_missing": session.coverage().missing,
        "summary_usd": session.cost_of(usage),
    }
    await session.undo()
    data["undone"] = session.messages == before
    change = f"{done.tokens_before:,} -> {done.tokens_after:,} tokens"
    rows = [
        ("dry run", str(planned)),
        ("done", f"{done.strategy}: {change}, {len(before)} -> {data['messages']['after']} messages"),
        ("cost", f"{dollars(data['summary_usd'])}: the summary request reuses the prefix that is already cached"),
        ("saved", f"{done.tokens_before - done.tokens_after:,} tokens of every later request"),
        ("hidden", f"{data['facts_missing']} of the facts in the replaced messages; the log keeps all of them"),
        ("undo", f"all {len(session.messages)} messages are shown again, unchanged: {data['undone']}"),
    ]
    return DemoScene(
        "A long conversation is compacted, and restored",
        "Alice plans a trip; timetables fill the window. compact(dry_run=True) shows what would be replaced before "
        "anything changes; the log keeps every message, so undo() brings them back.",
        table(("", ""), rows),
        data,
    )


async def _compacted(story: Story, session: Session) -> tuple[Compaction, Usage]:
    """Compact with the scripted summary; returns the compaction and its usage."""
    seen: list[Event] = []
    stop = session.subscribe(seen.append)
    story.provider.expect([SUMMARY])
    done = await session.compact()
    assert done is not None
    stop()
    usage = next(event.usage for event in seen if isinstance(event, CompactionEnd))
    story.bill.append(Spent("alice, trip: the summary", usage))
    return done, usage


async def _checkpoints(story: Story, agent: Agent, restored: Session) -> DemoScene:
    points = await restored.checkpoints()
    forked = await story.run(agent, OTHERWISE, at=2)
    other = await agent.session(user_id="alice", session_id=forked.session_id)
    data = {
        "checkpoints": len(points),
        "restored": {"turns": restored.turn, "last": restored.messages[-1].text},
        "forked": {"at": 2, "turns": other.turn, "last": other.messages[-1].text},
    }
    rows = [
        ("restored", str(restored.turn), f"{restored.messages[-2].text} -> {restored.messages[-1].text}"),
        ("forked at turn 2", str(other.turn), f"{other.messages[-2].text} -> {other.messages[-1].text}"),
    ]
    return DemoScene(
        "Every turn is saved: restore, go back, fork",
        f"The agent was closed and opened again. The trip was restored from its file, which has {len(points)} "
        "checkpoints of it: after each round of tools, each turn, the compaction and its undo. resume(at=2) begins a "
        "second conversation where the first one was after two turns; both continue separately.",
        table(("conversation", "turns", "how it ends"), rows, right=("turns",)),
        data,
    )


def _bill(story: Story, session: Session) -> DemoScene:
    spent: dict[str, Usage] = {}
    for item in story.bill:
        spent[item.what] = spent.get(item.what, Usage()) + item.usage
    spent["all"] = sum(spent.values(), Usage())
    bare = {what: Usage(input=usage.input, output=usage.output) for what, usage in spent.items()}
    rows = [
        (
            what,
            f"{usage.input:,}",
            f"{usage.output:,}",
            f"{usage.cache_read / usage.input:.0%}",
            dollars(session.cost_of(usage)),
            dollars(session.cost_of(bare[what])),
        )
        for what, usage in spent.items()
    ]
    data = [
        {"session": what, "usage": usage, "usd": session.cost_of(usage), "usd_uncached": session.cost_of(bare[what])}
        for what, usage in spent.items()
    ]
    columns = ("session", "in", "out", "cached", "cost", "without a cache")
    return DemoScene(
        "What each cost",
        f"By the prices and cache rules of {MODEL}, as of {find_model(MODEL, PROVIDER).as_of}. The cache shares are "
        "predicted, because nothing was sent. The first request of a day writes the cache and costs more than it would "
        "without one; the others read it.",
        table(columns, rows, right=columns[1:]),
        data,
    )


def _hits(recalled: Recalled | None) -> list[dict[str, Any]]:
    """The best hits as data."""
    best = recalled.hits[:3] if recalled else ()
    return [
        {
            "text": hit.item.text,
            "score": round(hit.score, 2),
            "why": {name: round(value, 2) for name, value in sorted(hit.why.items())},
        }
        for hit in best
    ]


def _strongest(why: Mapping[str, float]) -> str:
    """The three strongest signals of a hit."""
    strongest = sorted(why.items(), key=lambda signal: (-signal[1], signal[0]))[:3]
    return ", ".join(f"{name} {value:.2f}" for name, value in strongest)


def _objects(facts: Iterable[Fact]) -> str:
    return ", ".join(fact.object for fact in facts) or "nothing is known"


def _day(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d}" if at else "-"


# What the users of the demo say, and what the model is scripted to answer.


@dataclass(frozen=True, slots=True)
class Line:
    """One message of a user, and the answers of the model: a tool call takes one more."""

    day: int
    """Days after the story begins."""
    user: str
    session: str
    said: str
    answers: tuple[str | Part, ...]


def _asks(day: int, session: str, said: str, route: str, answer: str) -> Line:
    """A message of Alice that makes the model call the timetable tool."""
    call = ToolCallPart(f"call_{route.replace('-', '_')}", "timetable", {"route": route})
    return Line(day, "alice", session, said, (call, answer))


MEETING: Final = (
    Line(0, "alice", "hello", "Hi, I'm Alice. I live in Tokyo and I work as a nurse.", ("Welcome, Alice.",)),
    Line(0, "alice", "hello", "My sister Anna keeps a sailing boat in Yokohama.", ("A boat in the family!",)),
    Line(0, "alice", "hello", "Please always answer in short sentences.", ("I will.",)),
    Line(0, "bob", "first", "I'm Bob. I live in Oslo.", ("Welcome, Bob.",)),
    Line(14, "alice", "news", "I moved to Berlin.", ("Berlin it is.",)),
)
ASKING: Final = (
    Line(18, "alice", "visit", "Where does my sister keep her boat?", ("In Yokohama.",)),
    Line(18, "bob", "second", "Where does my sister keep her boat?", ("You have not told me of a sister.",)),
)
TRIP: Final = (
    _asks(20, "trip", "Find me a train to Vienna for Friday.", "Berlin-Vienna", "At 08:02, 89 EUR, no change."),
    _asks(20, "trip", "And from Vienna to Trieste on Sunday?", "Vienna-Trieste", "At 07:58, 49 EUR, one change."),
    _asks(20, "trip", "How do I get from Trieste to Venice?", "Trieste-Venice", "At 10:14, 19 EUR, no change."),
    Line(20, "alice", "trip", "Book all three, window seats.", ("Noted: three trains, window seats, 157 EUR.",)),
    Line(20, "alice", "trip", "What is still open?", ("A bed in Vienna for two nights.",)),
)
OTHERWISE: Final = Line(20, "alice", "trip", "Can I see Graz on the way?", ("Yes: the train stops there at 10:36.",))
SUMMARY: Final = (
    "Alice travels from Berlin: Vienna on Friday at 08:02 for 89 EUR, Trieste on Sunday at 07:58 for 49 EUR, "
    "Venice at 10:14 for 19 EUR; window seats, 157 EUR in all."
)


def timetable(route: str) -> str:
    """The answer of the timetable tool: long, as tool results often are."""
    start, _, end = route.partition("-")
    hours = (f"{hour:02}:{(hour * 7 + past) % 60:02}" for hour in range(5, 23) for past in (0, 24, 48))
    return "\n".join(f"{at} {start} Central, platform {n % 9 + 1}, to {end}, daily" for n, at in enumerate(hours))


def handbook() -> str:
    """The agent's instructions: longer than the shortest prefix that a provider caches."""
    areas = ("trains", "ferries", "visas", "hotels", "luggage", "refunds", "delays", "insurance", "maps", "tickets")
    rules = (
        "Before you advise on {}, say which day and which place you mean, so that a mistake is seen at once.",
        "Quote the source for anything about {} that costs money, with the date on which you looked it up.",
        "If two sources on {} disagree, show both and say which one you would follow, and why.",
        "Never book {} without a clear yes; a question about a price is not a yes.",
        "What a traveller told you of {} once, do not ask again: it is in your memory, or in the conversation.",
    )
    lines = [f"{n}. {rule.format(area)}" for n, (area, rule) in enumerate(((a, r) for a in areas for r in rules), 1)]
    return "\n".join(["You are the travel desk of a small company. These are the rules of the desk:", *lines])
