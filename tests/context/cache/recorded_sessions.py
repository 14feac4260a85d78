"""Sessions as programs record them, made by a provider's cache in small: entries, lifetimes, lookback, grid.

The caches here know blocks and times, never the rules by which an audit judges. There are two makers of sessions that
share nothing but the caches: `coding_session` is the one on which the limits of the audit were chosen, and
`service_session` is held out, with other sizes, other pauses and other habits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Literal, TypeAlias

from loom.context.cache.collapses import CollapseCause
from loom.traces.transcript import RecordedCall, RecordedCompaction, Transcript

Block: TypeAlias = tuple[str, int]
"""What a block says, and its tokens."""
Prefix: TypeAlias = bytes
Kind: TypeAlias = Literal["marks", "grid"]
LOOKBACK = 20


@dataclass
class Provider:
    """A prompt cache: entries at marks with a lifetime, or every prefix in steps of 128 tokens for ten minutes."""

    kind: Kind = "marks"
    minimum: int = 1024
    kept: dict[Prefix, tuple[float, float]] = field(default_factory=dict[Prefix, tuple[float, float]])
    """Until when an entry lives, and for how long it is kept again when it is read."""

    def call(self, key: str, blocks: list[Block], marks: dict[int, float], at: float, visible: float) -> list[int]:
        """Tokens read, written for five minutes, written for an hour, and fresh."""
        prefixes = list(accumulate((name for name, _ in blocks), _chained, initial=key.encode()))[1:]
        ends = list(accumulate(tokens for _, tokens in blocks))
        if self.kind == "grid":
            marks = dict.fromkeys(range(len(blocks)), 600.0)
        found = -1
        for mark in sorted(marks, reverse=True):
            for n in range(mark, max(found, mark - LOOKBACK), -1):
                until = self.kept.get(prefixes[n], (0.0, 0.0))[0]
                if n > found and at < until:
                    found = n
        read = ends[found] if found >= 0 else 0
        if found >= 0:
            prefix = prefixes[found]
            self.kept[prefix] = (at + self.kept[prefix][1], self.kept[prefix][1])
        reached, written = read, {300.0: 0, 3600.0: 0, 600.0: 0}
        for mark, seconds in sorted(marks.items()):
            if ends[mark] >= self.minimum:
                self.later.append((visible, prefixes[mark], at + seconds, seconds))
                written[seconds] += max(0, ends[mark] - reached)
                reached = max(reached, ends[mark])
        if self.kind == "grid":
            read -= read % 128
            return [read if read >= self.minimum else 0, 0, 0, ends[-1] - (read if read >= self.minimum else 0)]
        return [read, written[300.0], written[3600.0], ends[-1] - reached]

    later: list[tuple[float, Prefix, float, float]] = field(default_factory=list[tuple[float, Prefix, float, float]])
    """Entries of answers that have not begun yet."""

    def settle(self, now: float) -> None:
        """Let everything be readable whose answer has begun."""
        for visible, prefix, until, seconds in self.later:
            if visible <= now:
                self.kept[prefix] = max(self.kept.get(prefix, (0.0, 0.0)), (until, seconds))
        self.later = [item for item in self.later if item[0] > now]


def _chained(before: bytes, name: str) -> bytes:
    return blake2b(before + b"\0" + name.encode(), digest_size=16).digest()


@dataclass
class Agent:
    """A program that talks to a model, and writes down what each call used."""

    provider: Provider
    random: random.Random
    model: str
    system: list[Block]
    lifetimes: tuple[float, float] = (300.0, 300.0)
    """Of the mark behind the system prompt, and of the one behind the conversation."""
    reports_writes: bool = True
    marks_tail: bool = False
    """Whether it marks the tail as well, which the next request does not repeat: that write is never read."""
    now: float = 1_760_000_000.0
    version: str = "2.1.0"
    effort: str = "medium"
    tools: str = "t1"
    messages: list[Block] = field(default_factory=list[Block])
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    compactions: list[RecordedCompaction] = field(default_factory=list[RecordedCompaction])
    line: int = 0
    made: int = 0

    def say(self, tokens: int) -> None:
        """Add a message of either side."""
        self.made += 1
        self.messages.append((f"m{self.made}", tokens))

    def call(self, *, tail: int = 0, output: int = 200, at: float | None = None) -> RecordedCall:
        """Send everything, with a tail that the next request will not repeat."""
        at = self.now if at is None else at
        self.provider.settle(at)
        blocks = [*self.system, *self.messages]
        marks = {len(self.system) - 1: self.lifetimes[0], len(blocks) - 1: self.lifetimes[1]}
        if tail:
            self.made += 1
            blocks.append((f"tail {self.made}", tail))
            if self.marks_tail:
                marks[len(blocks) - 1] = self.lifetimes[1]
        key = f"{self.model} {self.tools}"
        read, short, long, fresh = self.provider.call(key, blocks, marks, at, visible=at + 1.5)
        self.line += 3
        writes = {"written_short": short, "written_long": long} if self.reports_writes else {}
        call = RecordedCall(
            id=f"msg_{len(self.calls)}_{self.random.random()}",
            at=at,
            model=self.model,
            fresh=fresh,
            output=output,
            read=read,
            number=len(self.messages),
            line=self.line,
            program_version=self.version,
            effort=self.effort,
            tools=self.tools,
            **writes,
        )
        self.calls.append(call)
        return call

    def compact(self, tokens: int) -> None:
        """Replace the conversation by a summary, and write that down."""
        self.line += 1
        before = sum(size for _, size in [*self.system, *self.messages])
        self.messages = []
        self.say(tokens)
        self.compactions.append(
            RecordedCompaction(
                at=self.now, number=len(self.messages), line=self.line, trigger="auto", before=before, after=tokens
            )
        )

    def transcript(self) -> Transcript:
        """What was written down."""
        return Transcript(
            program="a program",
            session_id=f"s{self.random.random()}",
            path="session.jsonl",
            calls=tuple(self.calls),
            compactions=tuple(self.compactions),
        )


def plant(agent: Agent, cause: CollapseCause) -> None:
    """Do what loses the cache before the next call."""
    chosen = agent.random
    match cause:
        case "idle":
            kept = 600.0 if agent.provider.kind == "grid" else max(agent.lifetimes)
            agent.now += chosen.uniform(1.1, 30) * kept
        case "compaction":
            agent.compact(chosen.randint(2_500, 9_000))
        case "model_changed":
            others = {"gpt-5": "gpt-5.1", "gpt-5.1": "gpt-5", "claude-opus-5": "claude-sonnet-5"}
            agent.model = others.get(agent.model, "claude-opus-5")
        case "tools_changed":
            agent.tools += "+"
        case "program_changed":
            agent.version += ".1"
            agent.system = [(f"{name} of {agent.version}", tokens) for name, tokens in agent.system]
        case "effort_changed":
            agent.effort = "high" if agent.effort != "high" else "low"
            agent.messages = [(f"{name} at {agent.effort}", tokens) for name, tokens in agent.messages]
        case "unexplained":
            at = chosen.randrange(max(1, len(agent.messages) // 2))
            agent.messages[at] = (f"{agent.messages[at][0]} edited", agent.messages[at][1])


Made: TypeAlias = tuple[Transcript, int]
"""A session, and the number of the call before which something was planted; -1 for none."""


def coding_session(seed: int, cause: CollapseCause | None = None) -> Made:
    """A coding agent on a cache with marks: one call after another, tool results of a few thousand tokens."""
    chosen = random.Random(f"coding {seed} {cause}")
    lifetimes = chosen.choice([(300.0, 300.0), (3600.0, 3600.0), (3600.0, 300.0)])
    system = [("tools", chosen.randint(8_000, 14_000)), ("system", chosen.randint(3_000, 6_000))]
    agent = Agent(Provider(), chosen, "claude-sonnet-5", system, lifetimes)
    turns = chosen.randint(12, 60)
    at = chosen.randint(6, turns - 2) if cause else -1
    for n in range(turns):
        agent.now += chosen.uniform(3, 0.9 * min(lifetimes) if chosen.random() < 0.1 else 60)
        if n == at and cause:
            plant(agent, cause)
        agent.say(chosen.randint(50, 400) if chosen.random() < 0.3 else chosen.randint(500, 4_000))
        agent.call(tail=chosen.choice([0, 0, 60]))
        agent.say(chosen.randint(60, 900))
    return agent.transcript(), at


def service_session(seed: int, cause: CollapseCause | None = None) -> Made:
    """A service: bursts of calls, prompts of any size, retries, parallel and small other calls; marks or a grid."""
    chosen = random.Random(f"service {seed} {cause}")
    grid = chosen.random() < 0.4 and cause not in {"unexplained", "effort_changed"}
    minimum = chosen.choice([512, 1024, 4096])
    models = {512: "claude-opus-5", 1024: "claude-sonnet-5", 4096: "claude-haiku-4-5"}
    agent = Agent(
        Provider("grid" if grid else "marks", 1024 if grid else minimum),
        chosen,
        chosen.choice(["gpt-5", "gpt-5.1"]) if grid else models[minimum],
        [("instructions", int(chosen.lognormvariate(8.3, 0.9)) + 300), ("schema", chosen.randint(100, 30_000))],
        chosen.choice([(300.0, 300.0), (3600.0, 3600.0)]),
        reports_writes=not grid,
        marks_tail=chosen.random() < 0.3,
    )
    length = chosen.randint(9, 140)
    at = chosen.randint(8, length - 1) if cause else -1
    planted = -1
    for n in range(length):
        agent.now += chosen.expovariate(1 / 20) % 200 + 3
        if n == at and cause:
            while sum(size for _, size in agent.messages) < 30_000:  # a loss that is worth the name
                agent.say(chosen.randint(2_000, 9_000))
                agent.call()
                agent.now += 10
            plant(agent, cause)
            planted = len(agent.calls)
        agent.say(int(chosen.paretovariate(1.3) * 120) % 20_000 + 20)
        agent.call(output=chosen.randint(1, 4_000), tail=chosen.choice([0, 0, 0, 300, 900, 4_000]))
        habit = chosen.random()
        if n != at and habit < 0.06:  # the same request again, or two at a time
            agent.call(at=agent.now + chosen.choice([0.0, 0.4, 1.2]))
        elif n != at and habit < 0.12:
            _other_prompt(agent)
        agent.say(chosen.randint(5, 2_500))
    if cause:  # a small other call may only stand last where the conversation goes on after it
        agent.now += 5
        agent.call()
    return agent.transcript(), planted


def _other_prompt(agent: Agent) -> None:
    """A title, a check: another small prompt in the middle of the conversation."""
    conversation, system, model = agent.messages, agent.system, agent.model
    if sum(tokens for _, tokens in [*system, *conversation]) < 9_000:
        return
    agent.messages, agent.system = [], [(f"other {agent.random.random()}", agent.random.randint(300, 3_900))]
    if agent.random.random() < 0.5 and agent.provider.kind == "marks":
        agent.model = "claude-haiku-4-5"
    agent.now += 2.5
    agent.call()
    agent.messages, agent.system, agent.model = conversation, system, model
    agent.now += 2.5
    agent.call()


MAKERS: dict[str, Callable[[int, CollapseCause | None], Made]] = {
    "coding": coding_session,
    "service": service_session,
}


def not_reported(transcript: Transcript) -> Transcript:
    """The same session of a provider that says nothing of its cache."""
    calls = tuple(
        replace(call, fresh=call.fresh + (call.read or 0), read=None, written_short=None, written_long=None)
        for call in transcript.calls
    )
    return replace(transcript, calls=calls)
