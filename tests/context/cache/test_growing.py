"""A request that goes on from the one before it is the request that is made from nothing, whatever happened between."""

import json

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import initialize, rule

from loom import plan
from loom.context.cache.simulate import replay
from loom.context.render.request import prepare, target_for
from loom.core.message import Message, NativePart, TextPart, ThinkingPart
from loom.core.window import PrefixChain, Window
from loom.text.tokens import CalibratedCounter, EstimateCounter
from loom.traces.request import read_request
from tests.context.test_properties import Contexts, words

TARGETS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-5"),
    ("openai", "gpt-5.6"),
    ("openai_chat", "gpt-4o"),
    ("deepseek", "deepseek-chat"),
    ("gemini", "gemini-3.1-pro"),
]
OPTIONS = [{}, {}, {"cache_ttl": 3600}, {"cache_breakpoints": ["foundation", "convo"]}]
THINKERS = ("anthropic", "gemini", "deepseek")


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


def planned(window, target, **options):
    found = plan(window, *target, **options)
    return str(found), found.cost, found.tokens, found.markers, found.chain, found.prompt, json.dumps(found.body)


class Growing(Contexts):
    """Plans, sends and edits in turn, for one target, with a counter that learns."""

    @initialize(chosen=st.sampled_from(TARGETS))
    def choose(self, chosen):
        self.target = chosen
        self.counter = CalibratedCounter(EstimateCounter())

    @rule(text=words, provider=st.sampled_from(THINKERS), signed=st.booleans())
    def think(self, text, provider, signed):
        thought = ThinkingPart(text, signature="s" if signed else None, provider=provider)
        self.host.convo.add(Message("assistant", (thought, TextPart(text))))

    @rule(type=st.sampled_from(["compaction", "document"]), cites=st.booleans())
    def keep_a_native_block(self, type, cites):
        body = {"type": type, "content": "so far", "citations": {"enabled": cites}}
        self.host.convo.add(Message("assistant", (NativePart("anthropic", body),)))

    @rule(count=st.integers(0, 6))
    def compact(self, count):
        self.moves = True
        self.host.rewrite(list(self.host.convo)[count:])

    @rule(actual=st.integers(500, 2000))
    def learn(self, actual):
        self.counter.observe(1000, actual)

    @rule(options=st.sampled_from(OPTIONS), learned=st.booleans(), commits=st.booleans())
    def plan_on(self, options, learned, commits):
        window = self.host.compile(clear_volatile=False)
        counter = self.counter if learned else None
        expected = planned(from_nothing(window), self.target, counter=counter, **options)
        assert planned(window, self.target, counter=counter, **options) == expected
        if commits:
            self.moves = True  # the laws of sending are not what is tested here
            self.host.commit(window)

    @rule(options=st.sampled_from(OPTIONS))
    def what_is_sent_is_what_is_rendered_and_read(self, options):
        request = prepare(self.host.compile(clear_volatile=False), *self.target, **options)
        wire = request.wire(self.counter)
        assert json.dumps(wire.body) == json.dumps(request.body)
        target = target_for(*self.target)
        if wire.chain.blocks:
            read = read_request(request.body, provider=target.provider, model=target.model, counter=self.counter)
            again = PrefixChain.of(read)
            assert (again.nodes, again.ends, again.marks) == (wire.chain.nodes, wire.chain.ends, wire.chain.marks)
            assert (again.settings, again.automatic) == (wire.chain.settings, wire.chain.automatic)
            rules = target.info.cache
            assert replay([wire.chain] * 2, rules) == replay([read] * 2, rules)


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
