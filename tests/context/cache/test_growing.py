"""A request that goes on from the one before it is the request that is made from nothing, whatever happened between."""

from __future__ import annotations

import json
from random import Random

import pytest

from loom import Context, StringEntry, plan
from loom.context.cache.plan import CachePlan
from loom.context.cache.simulate import replay
from loom.context.render.request import prepare, target_for
from loom.core.message import (
    Message,
    NativePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from loom.core.window import PrefixChain, Window
from loom.text.tokens import CalibratedCounter, EstimateCounter
from loom.traces.request import read_request

TARGETS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-unheard-of"),  # of which it is assumed that thinking is bound to what stood before it
    ("openai", "gpt-5.6"),
    ("openai_chat", "gpt-4o"),
    ("deepseek", "deepseek-chat"),
    ("gemini", "gemini-3.1-pro"),
]
OPTIONS = [{}, {}, {}, {"cache_ttl": 3600}, {"cache_breakpoints": ["foundation", "convo"]}]
TOOLS = [ToolSpec(f"tool{n}", "Does something. " * n) for n in range(4)]


class Talk:
    """A conversation in which anything happens: messages, tools, thinking, edits, redactions, compactions, visitors."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.host, self.guest = Context("host"), Context("guest")
        self.host.foundation.add(StringEntry(self.words(random.choice([20, 1500]))))
        self.calls = 0

    def words(self, most: int = 60) -> str:
        return " ".join(self.random.choice(["alpha", "beta", "14:05:00", "été", "x1"]) for _ in range(most))

    def go_on(self) -> None:
        acts = [self.say] * 6 + [self.call] * 4 + [self.think] * 3
        acts += [self.keep_a_native_block, self.remind, self.show_once, self.redact, self.instruct, self.change_tools]
        acts += [self.visit, self.compact]
        self.random.choice(acts)()

    def say(self) -> None:
        said = Message.user if self.random.random() < 0.6 else Message.assistant
        self.host.convo.add(said(self.words(self.random.randint(1, 60))))

    def call(self) -> None:
        count = 25 if self.random.random() < 0.1 else self.random.randint(1, 3)
        ids = [f"call{self.calls + n}" for n in range(count)]
        self.calls += count if self.random.random() < 0.8 else 0  # some providers begin to count anew
        calls = tuple(ToolCallPart(id, self.random.choice(TOOLS).name, {"a": self.words(2)}) for id in ids)
        results = tuple(ToolResultPart(id, (TextPart(self.words(9)),), self.random.random() < 0.2) for id in ids)
        self.host.convo.add(Message("assistant", calls))
        if self.random.random() < 0.9:
            self.host.convo.add(Message("user", results))

    def think(self) -> None:
        provider = self.random.choice(["anthropic", "anthropic", "gemini", "deepseek"])
        thought = ThinkingPart(self.words(9), self.random.choice(["signature", None]), provider=provider)
        self.host.convo.add(Message("assistant", (thought, TextPart(self.words(9)))))

    def keep_a_native_block(self) -> None:
        kind = self.random.choice(["compaction", "document", "document"])
        body: Part = NativePart("anthropic", {"type": kind, "content": "so far", "citations": {"enabled": True}})
        self.host.convo.add(Message("assistant", (body,)))

    def remind(self) -> None:
        self.host.attention.clear()
        self.host.attention.add(StringEntry(self.words(5)))

    def show_once(self) -> None:
        self.host.step.add(StringEntry(self.words(5)))

    def redact(self) -> None:
        entries = list(self.host.convo)[-8:]
        if entries:
            self.host.redact(self.random.choice(entries), tombstone=self.random.choice([None, "[gone]"]))

    def instruct(self) -> None:
        section = self.random.choice([self.host.foundation, self.host.topic])
        section.add(self.random.choice([StringEntry(self.words(30)), Message.user(self.words(30))]))

    def change_tools(self) -> None:
        self.host.tools = self.random.sample(TOOLS, self.random.randint(0, len(TOOLS)))

    def visit(self) -> None:
        self.guest.convo.add(StringEntry(self.words(5)))
        self.random.choice([self.host.include, self.host.include, self.host.exclude])(self.guest)

    def compact(self) -> None:
        entries = list(self.host.convo)
        self.host.rewrite(entries[self.random.randint(0, len(entries)) :])


def from_nothing(window: Window) -> Window:
    """The same window, of which nothing was made yet."""
    return Window(
        window.context,
        window.heads,
        tools=window.tools,
        notices=window.notices,
        past=tuple(past._replace(made={}) for past in window.past),
        void=window.void,
    )


def seen(found: CachePlan) -> tuple[object, ...]:
    return str(found), found.cost, found.markers, found.prompt, json.dumps(found.body)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[1])
def test_a_plan_that_goes_on_is_the_plan_from_nothing(target, seed):
    random = Random(seed)
    talk, counter = Talk(random), CalibratedCounter(EstimateCounter())
    rules = target_for(*target).info.cache
    for _ in range(12):
        for _ in range(random.randint(1, 4)):
            talk.go_on()
        window, options = talk.host.compile(clear_volatile=False), random.choice(OPTIONS)
        for counted in random.sample([None, counter], random.randint(1, 2)):
            expected = seen(plan(from_nothing(window), *target, counter=counted, **options))
            assert seen(plan(window, *target, counter=counted, **options)) == expected
        request = prepare(window, *target, **options)
        wire = request.wire(counter)
        assert json.dumps(wire.body) == json.dumps(request.body)
        if wire.chain.blocks:
            read = read_request(request.body, provider=target[0], model=target[1], counter=counter)
            again = PrefixChain.of(read)
            assert (again.nodes, again.ends, again.marks) == (wire.chain.nodes, wire.chain.ends, wire.chain.marks)
            assert (again.settings, again.automatic) == (wire.chain.settings, wire.chain.automatic)
            assert replay([wire.chain] * 2, rules) == replay([read] * 2, rules)
        counter.observe(1000, random.randint(600, 1500))
        if random.random() < 0.85:
            talk.host.commit(window)
