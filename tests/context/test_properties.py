"""Random contexts, visitors with cycles, random edits: the laws hold whatever happens."""

import base64
import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from loom import Context, FileEntry, ImageEntry, StringEntry
from loom.core.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, ToolSpec
from loom.core.window import SECTIONS, STATIC, default_role
from tests.context.render.sdk import check_anthropic, check_gemini, check_openai_chat, check_openai_responses
from tests.context.wire import MODELS, body_of, marked, wire

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
CHECKS = {
    "anthropic": check_anthropic,
    "openai": check_openai_responses,
    "openai_chat": check_openai_chat,
    "gemini": check_gemini,
}
words = st.text(min_size=1, max_size=12).filter(lambda t: t.strip())
who = st.integers(0, 3)
roles = st.sampled_from([None, "system", "user", "assistant"])


class Contexts(RuleBasedStateMachine):
    """Four contexts that may include each other; the first is the one that is sent."""

    @initialize()
    def start(self):
        self.contexts = [Context(f"c{i}") for i in range(4)]
        self.host = self.contexts[0]
        self.calls = 0
        self.open = []
        self.moves = True  # whether something happened that may move what was sent
        self.sent = {provider: [] for provider in MODELS}
        self.folder = Path(tempfile.mkdtemp())
        self.pinned = self.folder / "pinned.md"
        self.pinned.write_text("pinned 0")
        self.plain = self.folder / "plain.md"
        self.plain.write_text("plain 0")

    def reached(self):
        seen, queue = [], [self.host]
        while queue:
            ctx = queue.pop()
            if ctx not in seen:
                seen.append(ctx)
                queue += ctx.visitors
        return seen

    @rule(i=who, section=st.sampled_from(SECTIONS), text=words, role=roles)
    def add(self, i, section, text, role):
        self.moves |= section in STATIC
        self.contexts[i].section(section).add(StringEntry(text, role=role))

    @rule(i=who, section=st.sampled_from(SECTIONS))
    def add_image(self, i, section):
        self.moves |= section in STATIC
        self.contexts[i].section(section).add(ImageEntry(PNG, "image/png"))

    @rule(i=who, count=st.integers(1, 3), thinks=st.booleans())
    def call_tools(self, i, count, thinks):
        ids = [f"call{self.calls + n}" for n in range(count)]
        self.calls += count
        self.open += [(i, id) for id in ids]
        calls = tuple(ToolCallPart(id, "look", {"n": n}) for n, id in enumerate(ids))
        before = (ThinkingPart("hm", signature="s"),) if thinks else ()
        self.contexts[i].convo.add(Message("assistant", (*before, TextPart("looking"), *calls)))

    @rule(data=st.data(), text=words, extra=st.booleans(), elsewhere=st.sampled_from([None, None, None, 1]))
    def answer(self, data, text, extra, elsewhere):
        if self.open:
            i, id = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            i = i if elsewhere is None else elsewhere
            rest = (TextPart("also this"),) if extra else ()
            self.contexts[i].convo.add(Message("user", (ToolResultPart(id, (TextPart(text),)), *rest)))

    @rule(data=st.data(), i=who, section=st.sampled_from(["convo", "step", "attention"]))
    def share(self, data, i, section):
        entries = [e for ctx in self.contexts for e in ctx.entries()]
        if entries:
            self.contexts[i].section(section).add(data.draw(st.sampled_from(entries)))

    @rule(i=who)
    def answer_nothing(self, i):
        self.contexts[i].convo.add(Message("user", (ToolResultPart("never made", (TextPart("?"),)),)))

    @rule(i=who, j=who)
    def include(self, i, j):
        if i != j and self.contexts[j] not in self.contexts[i].visitors:
            before = set(self.reached())
            self.contexts[i].include(self.contexts[j])
            new = set(self.reached()) - before
            self.moves |= any(len(c.section(s)) for c in new for s in STATIC) or any(c.tools for c in new)

    @rule(i=who, j=who)
    def exclude(self, i, j):
        before = set(self.reached())
        self.contexts[i].exclude(self.contexts[j])
        self.moves |= before != set(self.reached())

    @rule(data=st.data(), tombstone=st.sampled_from([None, "[gone]"]))
    def redact(self, data, tombstone):
        entries = list(self.host.entries())
        if entries:
            entry = data.draw(st.sampled_from(entries))
            kept = ("foundation", "focus", "topic", "convo")  # where an entry in two sections is taken out first
            self.moves |= any(entry in self.host.section(name) for name in kept)
            self.host.redact(entry, tombstone=tombstone)

    @rule(i=who, pin=st.booleans())
    def add_file(self, i, pin):
        self.moves = True
        self.contexts[i].foundation.add(FileEntry(self.pinned if pin else self.plain, pin=pin))

    @rule(text=words)
    def edit_the_file(self, text):
        self.moves = True
        self.plain.write_text(text, encoding="utf-8", errors="replace")

    @rule(text=words)
    def edit_the_pinned_file(self, text):
        files = [e for c in self.reached() for e in c.foundation if isinstance(e, FileEntry) and e.pin]
        self.moves |= any(e.id not in self.shown for e in files) if hasattr(self, "shown") else True
        self.pinned.write_text(text, encoding="utf-8", errors="replace")

    @rule(order=st.permutations(["look", "find", "read"]))
    def list_tools_in_another_order(self, order):
        self.moves |= not self.host.tools
        self.host.tools = [ToolSpec(name, name.title()) for name in order]

    @rule(i=who, texts=st.lists(words, max_size=2))
    def new_reminders(self, i, texts):
        self.contexts[i].attention.clear()
        for text in texts:
            self.contexts[i].attention.add(StringEntry(text))

    @rule()
    def look(self):
        one, two = (self.host.compile(clear_volatile=False) for _ in range(2))
        assert str(one) == str(two)
        for provider in MODELS:
            assert json.dumps(body_of(one, provider)) == json.dumps(body_of(two, provider))

    @rule()
    def send(self):
        window = self.host.compile()
        self.shown = {p.entry for p in window.parts}
        volatile = window.only(["step", "attention"])
        for provider, check in CHECKS.items():
            body = body_of(window, provider)
            check(body)
            blocks = wire(body, provider)
            tail = len(wire(body_of(volatile, provider), provider)) - len(volatile.tools)
            stable = blocks[: len(blocks) - tail]
            if not self.moves:
                assert stable[: len(self.sent[provider])] == self.sent[provider]
            marks = marked(body, provider)
            assert marks or not stable or provider != "anthropic", "where everything may carry a marker, one is there"
            assert all(mark < len(stable) for mark in marks)
            assert provider != "anthropic" or len(marked(body, provider)) <= 4
            assert_paired(body) if provider == "anthropic" else None
            self.sent[provider] = stable
        self.moves = False

    @invariant()
    def nothing_is_shown_twice(self):
        if hasattr(self, "host"):
            window = self.host.compile(clear_volatile=False)
            parts = [p for p in window.parts if p.section in (*STATIC, "attention") and p.part != TextPart("[gone]")]
            keys = [(p.role == default_role(p.section) or p.role, p.label, p.content_hash) for p in parts]
            assert len(keys) == len(set(keys))


def assert_paired(body):
    for at, message in enumerate(body["messages"]):
        calls = [b["id"] for b in message["content"] if b["type"] == "tool_use"]
        after = body["messages"][at + 1]["content"] if at + 1 < len(body["messages"]) else []
        answered = [b["tool_use_id"] for b in after[: len(calls)] if b["type"] == "tool_result"]
        assert sorted(answered) == sorted(calls)
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        before = body["messages"][at - 1]["content"] if at else []
        assert sorted(results) == sorted(b["id"] for b in before if b["type"] == "tool_use")
        assert message["content"]


TestContexts = Contexts.TestCase
TestContexts.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
