"""A store as agents leave one behind, for the tests of the pages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from loom import Agent, CompactionConfig, Retain, open_memory, tool
from loom.context.cache.simulate import common_length
from loom.core.message import Part, TextPart, ToolCallPart, ToolResultPart, Usage
from loom.core.scope import Scope
from loom.memory.memory import Memory
from loom.protocols.memory_store import Job
from loom.protocols.model import ModelRequest, ModelResponse
from loom.testing import FakeClock, ScriptedModel

TALK = (
    "I live in Madrid.",
    "My sister is called Maria.",
    "I prefer window seats when I fly.",
    "Always answer in short sentences.",
    "I moved to Lisbon last month.",
    "What do you know about me?",
)


async def fill(url: str, *, users: tuple[str, ...] = ("ann", "Zoë"), sessions: int = 2) -> None:
    """Conversations with facts that change, a compaction, blocks with versions, and a wish that waits."""
    compaction = CompactionConfig(strategy="truncate", retain=Retain(type="messages", count=4))
    async with Agent("offline", memory=url, compaction=compaction) as agent:
        for user in users:
            for number in range(sessions):
                for text in TALK:
                    await agent.run(text, user_id=user, session_id=f"talk-{number}")
            session = await agent.session(user_id=user, session_id="talk-0")
            assert await session.compact() is not None
    async with open_memory(url) as memory:
        user = users[0]
        await memory.set_block("plan", "Ship on Friday.\nTell Bob.", user_id=user)
        await memory.set_block("plan", "Ship on Monday.\nTell Bob.", user_id=user)
        for company, year in (("Acme", 2020), ("Initech", 2023)):
            begun = datetime(year, 1, 1, tzinfo=UTC)
            await memory.assert_fact("Maria", "works_at", company, user_id=user, valid_from=begun)
        await memory.instruct("Never use tables.", user_id=user, confirmed=False)


# -- a store that is good to look at


INSTRUCTIONS = "You help people plan their journeys. " + " ".join(
    f"Rule {n}: {rule}"
    for n, rule in enumerate(
        (
            "say when you are not sure, and where you looked.",
            "give prices with their currency and the day on which they were seen.",
            "never book anything before the traveller has said yes to the price.",
            "name the station or the airport, not only the city.",
            "keep an answer under a hundred words unless a plan is asked for.",
        )
        * 8
    )
)
JOURNEY = (
    ("Hi, I'm Ana. I live in Madrid and I work at Acme.", "Welcome, Ana. Where would you like to go?"),
    ("My sister is called Maria. She lives in Porto.", "Then a visit to Porto is a good reason for a journey."),
    ("Find a train from Madrid to Lisbon on 12 March.", "search"),
    (
        "I prefer window seats, and I am a vegetarian.",
        "Noted: a window seat, and a vegetarian meal where one is served.",
    ),
    ("Always give prices in euro.", "I will give every price in euro from now on."),
    ("How much is the night train, and when does it leave?", "search"),
    (
        "Book nothing yet. My budget is 420 euro for all of it.",
        "Nothing is booked. 420 euro is the limit for all of it.",
    ),
    ("I moved to Lisbon last week, so the journey is the other way round.", "Then Lisbon to Madrid it is."),
    ("Which of the trains arrives before 11:30 at Chamartín?", "search"),
    (
        "Maria comes with me. Two window seats, please.",
        "Two window seats beside each other, from Oriente to Chamartín.",
    ),
    ("I left Acme and work at Initech now.", "Congratulations. Shall the invoice name Initech?"),
    (
        "What do you know about me?",
        "You live in Lisbon, your sister Maria travels with you, and you want window seats.",
    ),
)
OTHERS = {
    "hotel-near-oriente": (
        (
            "Is there a quiet hotel near Oriente station for 14 March?",
            "Two are quiet: one by the river, one in Moscavide.",
        ),
        ("The one by the river. What is the price for two nights?", "212 euro for two nights, breakfast included."),
        ("Too much. What about Moscavide?", "148 euro for two nights; it is four minutes by metro."),
    ),
    "phrases-in-portuguese": (
        ("How do I order a vegetarian meal?", "Sou vegetariana. O que me recomenda?"),
        ("And how do I ask for the bill?", "A conta, por favor."),
    ),
}


@tool
def search_trains(origin: str, destination: str) -> str:
    """Search the timetable."""
    lines = [
        f"{origin} {7 + n}:{n * 7 % 60:02} to {destination} {12 + n}:{n * 11 % 60:02}, {39 + n * 4} euro"
        for n in range(12)
    ]
    return "\n".join(lines)


class CachingModel(ScriptedModel):
    """Answers from a script, and reports what a provider with a prefix cache would read and write of each prompt."""

    def __init__(self, clock: FakeClock, *, reports: bool = True) -> None:
        super().__init__(self._answer, name="anthropic:claude-sonnet-4-5", context_window=200_000)
        self._clock, self._reports = clock, reports
        self._last, self._at = "", clock.now()

    def _answer(self, request: ModelRequest) -> ModelResponse:
        assert request.rendered is not None
        body: Any = request.rendered.body
        text = json.dumps([body.get("tools"), body.get("system"), body["messages"]], ensure_ascii=False)
        kept = self._clock.now() - self._at < timedelta(minutes=5)
        size = len(text) // 4
        read = common_length(text, self._last) // 4 if kept else 0
        written = max(0, size - read - 30)
        self._last, self._at = text, self._clock.now()
        usage = Usage(input=size, output=40, cache_read=read, cache_write=written)
        parts = self._parts(request)
        waits = isinstance(parts[0], ToolCallPart)
        return ModelResponse(
            parts=parts,
            stop="tool" if waits else "end",
            usage=usage if self._reports else Usage(input=size, output=40),
            model="claude-sonnet-4-5",
            reported={"read": read, "write": written} if self._reports else {},
        )

    def _parts(self, request: ModelRequest) -> tuple[Part, ...]:
        spoken = [message for message in request.messages if message.role == "user" and message.text]
        if any(isinstance(part, ToolResultPart) for part in request.messages[-1].parts):
            return (TextPart("The 08:07 from Oriente arrives at 13:11 and costs 43 euro; the night train is 71 euro."),)
        for asked, said in (*JOURNEY, *(pair for pairs in OTHERS.values() for pair in pairs)):
            if spoken and asked in spoken[-1].text and said != "search":
                return (TextPart(said),)
        place = {"origin": "Lisboa Oriente", "destination": "Madrid Chamartín"}
        return (ToolCallPart(f"call-{len(request.messages)}", "search_trains", place),)


TRAVELLER = "ana"


async def fill_rich(url: str) -> None:
    """Months of a traveller: facts that change, tools, a compaction, a fork, a cache that was lost, a job that failed."""
    clock = FakeClock(datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0) - timedelta(days=32))
    compaction = CompactionConfig(strategy="snapshot", retain=Retain(type="messages", count=6))
    options: dict[str, Any] = {"memory": url, "tools": [search_trains], "compaction": compaction, "clock": clock}
    options |= {"config": {"keep_requests": True}, "facts": "rules"}
    async with Agent(INSTRUCTIONS, model=CachingModel(clock), **options) as agent:
        for number, (text, _) in enumerate(JOURNEY):
            clock.advance(timedelta(days=9) if number in {4, 7} else timedelta(minutes=2))
            await agent.run(text, user_id=TRAVELLER, session_id="train-to-lisbon")
        session = await agent.session(user_id=TRAVELLER, session_id="train-to-lisbon")
        assert await session.compact() is not None
        clock.advance(60)
        await agent.run(JOURNEY[-1][0], user_id=TRAVELLER, session_id="train-to-lisbon")
        await session.fork(4, session_id="what-if-by-bus")
        for name, lines in OTHERS.items():
            for text, _ in lines:
                clock.advance(timedelta(minutes=1))
                await agent.run(text, user_id=TRAVELLER, session_id=name)
        for user in ("ben@harbour.example", "李小龍"):
            await agent.run(JOURNEY[0][0], user_id=user, session_id="first")
    clock.advance(90)
    dated = f"Today is {clock.now():%Y-%m-%d %H:%M}. {INSTRUCTIONS}"
    async with Agent(dated, model=CachingModel(clock), **options) as agent:
        await agent.run(
            "Which rules do you follow, and where did you look?", user_id=TRAVELLER, session_id="train-to-lisbon"
        )
    async with Agent(INSTRUCTIONS, model=CachingModel(clock, reports=False), **options) as agent:
        for text, _ in OTHERS["phrases-in-portuguese"]:
            clock.advance(60)
            await agent.run(text, user_id=TRAVELLER, session_id="not-reported")
    async with open_memory(url, clock=clock) as memory:
        await _fill_memory(memory, clock)


async def _fill_memory(memory: Memory, clock: FakeClock) -> None:
    for text in (
        "Lisbon to Madrid.\nTwo window seats.",
        "Lisbon to Madrid, 12 March.\nTwo window seats.\nUnder 420 euro.",
    ):
        await memory.set_block("journey", text, user_id=TRAVELLER)
        clock.advance(timedelta(days=1))
    for company, year in (("Globex", 2019), ("Acme", 2022)):
        await memory.assert_fact(
            "Maria", "works_at", company, user_id=TRAVELLER, valid_from=datetime(year, 5, 1, tzinfo=UTC)
        )
        clock.advance(timedelta(days=3))
    await memory.assert_fact("Maria", "sister_of", "Ana", user_id=TRAVELLER)
    await memory.assert_fact("Initech", "located_in", "Lisbon", user_id=TRAVELLER)
    await memory.instruct("Never use tables.", user_id=TRAVELLER, confirmed=False)
    scope, now = Scope("default", TRAVELLER), clock.now()
    job = Job(id="job-1", scope=scope, kind="mail", key="mail-1", run_at=now)
    await memory.store.write(scope, jobs=[job])
    (lease,) = await memory.store.lease(now=now, until=now + timedelta(minutes=1), scope=scope, kinds=["mail"])
    await memory.store.fail(lease, reason="no worker knows this kind of job", now=now, retry_at=None)
