"""`loom demo`: what Loom does, in a minute. No key, no server, nothing is sent."""

from __future__ import annotations

import base64
import struct
import tempfile
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from loom.agent.agent import Agent
from loom.catalog import find_model
from loom.cli.cache import explanation_view, plan_view
from loom.cli.output import Json, console, plain, print_json
from loom.context.cache.diagnose import simulate
from loom.context.cache.explain import explain
from loom.context.cache.plan import CachePlan, plan
from loom.context.context import Context
from loom.context.entry import ImageEntry, StringEntry
from loom.context.file_entry import FileEntry
from loom.core.log import CompactionEnd, Event
from loom.core.message import ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart, ToolSpec, Usage
from loom.core.window import Window
from loom.protocols.model import ModelRequest, ModelResponse
from loom.testing import FakeClock, ScriptedModel
from loom.text.tokens import EstimateCounter
from loom.tools.function import tool

if TYPE_CHECKING:
    from loom.agent.agent import Result
    from loom.core.log import Compaction
    from loom.core.record import Fact
    from loom.memory.memory import Memory
    from loom.memory.results import Recalled
    from loom.session.session import Session

PROVIDER, MODEL = "anthropic", "claude-sonnet-5"
"""The provider whose cache rules and prices are used. Nothing is sent to it."""


@dataclass(frozen=True, slots=True)
class DemoScene:
    """One step of the demo: what is shown, why, and the same as data."""

    title: str
    words: str
    view: RenderableType
    data: object


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> Table:
    """A plain table; the columns named in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    numbers = set(right)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", no_wrap=name in numbers)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def dollars(amount: float | None) -> str:
    """A price; a dash where none is known."""
    return "-" if amount is None else f"${amount:.4f}"


def demo(json: Json = False) -> None:
    """Show two users, facts that change, recall, compaction, checkpoints, the cache and all costs. Needs no key."""
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(_perform, Path(folder), json)


async def _perform(folder: Path, json: bool) -> None:
    out = console()
    shown: list[DemoScene] = []
    async for scene in play(folder):
        shown.append(scene)
        if not json:
            out.print(Rule(f"{len(shown)}. {scene.title}", align="left"))
            out.print(Text(scene.words, style="italic"))
            out.print()
            out.print(scene.view)
            out.print()
    if json:
        print_json([{"title": scene.title, "data": plain(scene.data)} for scene in shown])


async def play(folder: Path) -> AsyncIterator[DemoScene]:
    """The scenes of the demo, one at a time."""
    async for scene in agent_scenes(folder):
        yield scene
    for scene in context_scenes(folder):
        yield scene


# The scenes of `loom demo` about agents: users, facts, recall, compaction, checkpoints and costs, and their script.

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


class Story:
    """The agent of the demo, its clock, and its bill."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(BEGIN)
        self.provider = Provider()
        self.bill: defaultdict[str, Usage] = defaultdict(Usage)
        self._file = folder / "travel.db"

    def agent(self) -> Agent:
        """An agent on the one file that holds memory and sessions."""
        memory = {"backend": "sqlite", "path": str(self._file), "embedder": "static"}
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
        self.bill[f"{line.user}, {line.session}"] += result.usage
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
    story.bill["alice, trip: the summary"] += usage
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
    spent = {**story.bill, "all": sum(story.bill.values(), Usage())}
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
    return "\n".join(
        ["You are the travel desk of a small company. These are the rules of the desk:", *_numbered(rules, areas)]
    )


def _numbered(rules: Iterable[str], areas: Iterable[str]) -> Iterator[str]:
    """Every rule for every area, with its number."""
    pairs = ((rule, area) for area in areas for rule in rules)
    return (f"{number}. {rule.format(area)}" for number, (rule, area) in enumerate(pairs, 1))


# The scenes of `loom demo` about contexts: compile, plan, edit, pin, and other providers.

OTHERS = (("openai", "gpt-5.6"), ("gemini", "gemini-3.1-pro"), ("vllm", "llama-4"))
_SOUL = "sue"
"""The id of the file's entry; otherwise ids are random."""

_AREAS = (
    *("naming", "errors", "retries", "logging", "money", "time zones", "tests", "migrations", "access", "limits"),
    *("queues", "caching", "deadlines", "releases", "alerts", "backups", "secrets", "payments", "refunds", "audits"),
    *("exports", "imports", "search", "ordering", "currencies", "rounding", "locking", "sessions", "quotas", "docs"),
)
_RULES = (
    "Say what {} is for before saying how it works; a reader who knows the purpose can judge the rest.",
    "A change to {} needs a test that fails without it, and a line in the changelog that a user understands.",
    "When {} and speed disagree, ask which of the two a customer would notice first, and write the answer down.",
    "Do not copy code for {} between services; move it into the shared package and give it an owner.",
    "The person who touched {} last answers questions about it this week, even when the question is simple.",
)


def context_scenes(folder: Path) -> Iterator[DemoScene]:
    """The scenes, in order."""
    soul = folder / "SOUL.md"
    soul.write_text(_handbook("Be kind."), encoding="utf-8")
    agent = build(soul, pin=False)
    window = agent.compile()
    first = plan(window, PROVIDER, MODEL)
    yield DemoScene(
        "Under the hood: a context is compiled, and planned before it is sent",
        "Six sections, a visitor (security rules), a file (SOUL.md) and an image become one immutable window. These "
        "are its parts in the order of the request, and what the cache will do with them. The reminder in attention "
        "comes after the last marker, so it can change freely.",
        Group(_parts_table(window), Text(), plan_view(first)),
        {"parts": len(window.parts), "chars": window.chars, "plan": first},
    )
    _turn(agent)
    second = plan(agent.compile(), PROVIDER, MODEL)
    yield DemoScene(
        "The conversation continues",
        "A tool call, its result and a question were appended. Every earlier byte is where it was: the cache hits.",
        _summary(second),
        second,
    )
    yield _edit(agent, soul)
    yield _edit_pinned(soul)
    yield DemoScene(
        "The same window, other providers",
        "One context, rendered for each: with markers where the provider accepts them, repeated where it needs that, "
        "none where it finds prefixes itself. 1st and 2nd are the costs of the two requests, relative to no cache.",
        _providers_table(rows := _providers(soul)),
        rows,
    )


def _edit(agent: Context, soul: Path) -> DemoScene:
    before = agent.compile(clear_volatile=False)
    soul.write_text(_handbook("Be blunt."), encoding="utf-8")
    after = agent.compile(clear_volatile=False)
    found, cost = explain(before, after, PROVIDER, MODEL), plan(after, PROVIDER, MODEL)
    return DemoScene(
        "One edit, and what it costs",
        "One word of SOUL.md changes while the agent runs. The next request contains it, and this is the price:",
        Group(explanation_view(found), Text(), _summary(cost)),
        {"explanation": found, "plan": cost},
    )


def _edit_pinned(soul: Path) -> DemoScene:
    soul.write_text(_handbook("Be kind."), encoding="utf-8")
    agent = build(soul, pin=True)
    agent.compile()
    _turn(agent)
    before = agent.compile()
    soul.write_text(_handbook("Be blunt."), encoding="utf-8")
    after = agent.compile(clear_volatile=False)
    found = explain(before, after, PROVIDER, MODEL)
    cost = plan(after, PROVIDER, MODEL)
    update = [p.part.text for p in after.parts if isinstance(p.part, TextPart) and p.part.text.startswith("[Update")]
    return DemoScene(
        "The same edit with FileEntry(..., pin=True)",
        "The text that was sent stays where it is; the change is appended to the conversation:",
        Group(Text("\n".join(update), style="cyan"), Text(), explanation_view(found), Text(), _summary(cost)),
        {"explanation": found, "plan": cost},
    )


def build(soul: Path, *, pin: bool) -> Context:
    """The agent of the demo."""
    agent, security = Context("agent"), Context("security")
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    agent.tools.append(ToolSpec("read_file", "Read a file of the repository.", schema))
    agent.foundation.add(StringEntry("You review changes to a payment service."))
    agent.foundation.add(FileEntry(soul, pin=pin, id=_SOUL))
    security.foundation.add(StringEntry("Never log a card number. Treat every input as hostile.", name="Security"))
    agent.include(security)
    agent.focus.add(StringEntry("Review PR #42 and suggest improvements."))
    agent.topic.add(ImageEntry(_picture(), "image/png", "failing build"))
    agent.convo.add(Message.user("What changed in the retry logic, and is it safe?"))
    agent.attention.add(StringEntry("It is late; answer in three sentences."))
    return agent


def _turn(agent: Context) -> None:
    call = ToolCallPart("call_1", "read_file", {"path": "retry.py"})
    result = "def retry(call, tries=3):\n    for left in range(tries, 0, -1):\n        ...\n" * 12
    agent.convo.add(Message("assistant", (TextPart("I will read the file first."), call)))
    agent.convo.add(Message("user", (ToolResultPart("call_1", (TextPart(result),)),)))
    agent.convo.add(Message.assistant("The loop retries three times without a pause."))
    agent.convo.add(Message.user("How would you fix it?"))


def _providers(soul: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for provider, model in ((PROVIDER, MODEL), *OTHERS):
        agent = build(soul, pin=False)
        first = plan(agent.compile(), provider, model)
        _turn(agent)
        second = plan(agent.compile(), provider, model)
        rules = find_model(model, provider).cache
        rows.append(
            {
                "provider": provider,
                "model": model,
                "matching": rules.matching,
                "markers": len(second.markers),
                "first": first.relative_cost,
                "second": second.relative_cost,
                "read": second.read,
                "tokens": second.tokens,
            }
        )
    return rows


def _providers_table(rows: list[dict[str, object]]) -> Table:
    words, numbers = ("provider", "model", "matching"), ("markers", "tokens", "read", "1st", "2nd")
    shown = [
        (
            *(str(row[name]) for name in words),
            *(f"{row[name]:,}" for name in ("markers", "tokens", "read")),
            *(f"{row[name]:.2f}x" for name in ("first", "second")),
        )
        for row in rows
    ]
    return table((*words, *numbers), shown, right=numbers)


def _summary(found: CachePlan) -> Text:
    parts = f"read {found.read:,}, write {found.write:,}, uncached {found.uncached:,}"
    return Text(f"This request of {found.tokens:,} tokens: {parts}; {found.relative_cost:.2f} of the uncached price.")


def _parts_table(window: Window) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=10)
    table.add_column(style="dim", no_wrap=True, min_width=12)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for part in window.parts:
        shown = "(the image itself)" if isinstance(part.part, ImagePart) else part.text.replace("\n", " ")
        table.add_row(part.section, part.context, Text(f"{part.role}: {shown}"))
    return table


def _handbook(motto: str) -> str:
    """A file of a few thousand tokens: below the minimum prefix nothing is cached."""
    return "\n".join([motto, "", *_numbered(_RULES, _AREAS)]) + "\n"


def _picture(size: int = 96) -> str:
    """A small PNG: a red diagonal on white."""
    rows = b"".join(
        b"\0" + b"".join(b"\xd0\x20\x20" if abs(x - y) < 4 else b"\xff\xff\xff" for x in range(size))
        for y in range(size)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()
